//! Splits the bytes of a stream into events, regardless of where the network split them. The events
//! are server-sent events or lines of JSON.

use memchr::memchr;
use serde_json::value::RawValue;

use super::decode::{broken, parse};
use planck_agent::model::Failure;

/// The maximum length of an event in bytes, unless the caller sets another limit.
pub const MAX_EVENT: usize = 16 << 20;

/// Finds the events in a stream of bytes. `each` is called once for each complete event, in order.
pub trait FrameSplitter: Send {
    fn feed(
        &mut self,
        bytes: &[u8],
        each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure>;
    /// Ends the stream. A last event without a terminator is still reported.
    fn finish(&mut self, each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure>;
    /// Returns whether the bytes are a single document rather than a stream. A document is reported
    /// when `finish` is called.
    fn is_document(&self) -> bool {
        false
    }
}

/// Skips a byte order mark at the beginning of a body.
#[derive(Debug, Default)]
struct BodyStart {
    seen: Vec<u8>,
    over: bool,
}

impl BodyStart {
    const MARK: &[u8] = b"\xef\xbb\xbf";

    /// Returns the bytes after the byte order mark, or `None` until enough bytes have arrived to
    /// tell whether there is one.
    fn pass<'a>(&mut self, bytes: &'a [u8]) -> Option<std::borrow::Cow<'a, [u8]>> {
        if self.over {
            return Some(bytes.into());
        }
        self.seen.extend_from_slice(bytes);
        if self.seen.len() < Self::MARK.len() && Self::MARK.starts_with(&self.seen) {
            return None;
        }
        self.over = true;
        let seen = std::mem::take(&mut self.seen);
        Some(
            seen.strip_prefix(Self::MARK)
                .unwrap_or(&seen)
                .to_vec()
                .into(),
        )
    }
}

/// Splits bytes into lines that end in `\n` or `\r\n`, and keeps the incomplete last line.
#[derive(Debug)]
struct LineSplitter {
    carry: Vec<u8>,
    limit: usize,
}

impl LineSplitter {
    fn feed(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            self.line(line, &mut each)?;
        }
        self.keep(rest)
    }

    fn line(
        &mut self,
        line: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.carry.is_empty() {
            return each(without_return(line));
        }
        self.keep(line)?;
        let result = each(without_return(&self.carry));
        self.carry.clear();
        result
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.carry.len() + bytes.len() > self.limit {
            return Err(too_long(self.limit));
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    fn finish(&mut self, each: impl FnOnce(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let last = std::mem::take(&mut self.carry);
        if last.is_empty() {
            Ok(())
        } else {
            each(without_return(&last))
        }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn too_long(limit: usize) -> Failure {
    broken(format!(
        "an event of the stream is longer than {limit} bytes"
    ))
}

/// Splits server-sent events. Only the `data` field is read, because every provider repeats the
/// contents of the `event` field in `data`.
///
/// Some servers send one JSON document although a stream was requested. The first byte that is not
/// white space shows whether the body is a document. A document is reported at its end, as one
/// event. If the document is an array, each of its items is reported as an event.
#[derive(Debug)]
pub struct Sse {
    beginning: BodyStart,
    body: BodyFormat,
    lines: LineSplitter,
    data: Data,
}

#[derive(Debug, PartialEq, Eq)]
enum BodyFormat {
    /// Nothing but white space has arrived, so the format is not known yet.
    Unknown,
    Events,
    Document(Vec<u8>),
}

impl Default for Sse {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT)
    }
}

impl Sse {
    pub fn with_limit(limit: usize) -> Self {
        let lines = LineSplitter {
            carry: Vec::new(),
            limit,
        };
        let data = Data {
            bytes: Vec::new(),
            any: false,
            limit,
        };
        Self {
            beginning: BodyStart::default(),
            body: BodyFormat::Unknown,
            lines,
            data,
        }
    }

    fn recognise(&mut self, bytes: &[u8]) {
        if self.body == BodyFormat::Unknown {
            self.body = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
                None => return,
                Some(b'{' | b'[') => BodyFormat::Document(Vec::new()),
                Some(_) => BodyFormat::Events,
            };
        }
    }
}

impl FrameSplitter for Sse {
    fn feed(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(bytes) = self.beginning.pass(bytes) else {
            return Ok(());
        };
        self.recognise(&bytes);
        let Self {
            body, lines, data, ..
        } = self;
        match body {
            BodyFormat::Unknown => Ok(()),
            BodyFormat::Events => lines.feed(&bytes, |line| data.line(line, &mut each)),
            BodyFormat::Document(document) if document.len() + bytes.len() > lines.limit => {
                Err(too_long(lines.limit))
            }
            BodyFormat::Document(document) => {
                document.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn finish(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Self {
            body, lines, data, ..
        } = self;
        match body {
            BodyFormat::Unknown => Ok(()),
            BodyFormat::Events => {
                lines.finish(|line| data.line(line, &mut each))?;
                data.line(b"", &mut each)
            }
            BodyFormat::Document(document) => match document.trim_ascii() {
                array @ [b'[', ..] => parse::<Vec<&RawValue>>(array)?
                    .iter()
                    .try_for_each(|item| each(item.get().as_bytes())),
                document => each(document),
            },
        }
    }

    fn is_document(&self) -> bool {
        matches!(self.body, BodyFormat::Document(_))
    }
}

/// The `data` lines of the event that is being read.
#[derive(Debug)]
struct Data {
    bytes: Vec<u8>,
    any: bool,
    limit: usize,
}

impl Data {
    fn line(
        &mut self,
        line: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if line.is_empty() {
            return self.dispatch(each);
        }
        match line.strip_prefix(b"data:") {
            Some(value) => self.push(value.strip_prefix(b" ").unwrap_or(value)),
            None => Ok(()),
        }
    }

    fn push(&mut self, value: &[u8]) -> Result<(), Failure> {
        if self.any {
            self.bytes.push(b'\n');
        }
        if self.bytes.len() + value.len() > self.limit {
            return Err(too_long(self.limit));
        }
        self.bytes.extend_from_slice(value);
        self.any = true;
        Ok(())
    }

    fn dispatch(
        &mut self,
        each: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.any {
            return Ok(());
        }
        // Some servers send events without data as keep-alives.
        let result = if self.bytes.trim_ascii().is_empty() {
            Ok(())
        } else {
            each(&self.bytes)
        };
        self.bytes.clear();
        self.any = false;
        result
    }
}

/// Splits lines of JSON, each of which is one value. Blank lines are ignored.
#[derive(Debug)]
pub struct Ndjson {
    beginning: BodyStart,
    lines: LineSplitter,
}

impl Default for Ndjson {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT)
    }
}

impl Ndjson {
    pub fn with_limit(limit: usize) -> Self {
        Self {
            beginning: BodyStart::default(),
            lines: LineSplitter {
                carry: Vec::new(),
                limit,
            },
        }
    }
}

impl FrameSplitter for Ndjson {
    fn feed(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(bytes) = self.beginning.pass(bytes) else {
            return Ok(());
        };
        self.lines
            .feed(&bytes, |line| unless_blank(line, &mut each))
    }

    fn finish(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.lines.finish(|line| unless_blank(line, &mut each))
    }
}

fn unless_blank(
    line: &[u8],
    each: &mut impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if line.trim_ascii().is_empty() {
        Ok(())
    } else {
        each(line)
    }
}

#[cfg(test)]
mod tests;
