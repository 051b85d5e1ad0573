//! Cuts the bytes of a stream into events, wherever the network cut them: server-sent events and lines of JSON.

use memchr::memchr;

use super::decode::broken;
use crate::model::Failure;

/// The longest event that is read, unless said otherwise.
pub const MAX_EVENT: usize = 16 << 20;

/// Finds the events in a stream of bytes. `each` is called once for each whole event, in order.
pub trait Frames: Send {
    fn feed(&mut self, bytes: &[u8], each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure>;
    /// The stream ended: an event that lacks only its terminator still counts.
    fn finish(&mut self, each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure>;
}

/// Lines, ended by `\n` or `\r\n`, with what is left of the last read.
#[derive(Debug)]
struct Lines {
    carry: Vec<u8>,
    limit: usize,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut rest = bytes;
        while let Some(end) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            self.line(line, &mut each)?;
        }
        self.keep(rest)
    }

    fn line(&mut self, line: &[u8], each: &mut impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
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
        if last.is_empty() { Ok(()) } else { each(without_return(&last)) }
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn too_long(limit: usize) -> Failure {
    broken(format!("an event of the stream is longer than {limit} bytes"))
}

/// Server-sent events. Only `data` is read: every provider repeats in it what `event` says.
#[derive(Debug)]
pub struct Sse {
    lines: Lines,
    data: Data,
}

impl Default for Sse {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT)
    }
}

impl Sse {
    pub fn with_limit(limit: usize) -> Self {
        Self { lines: Lines { carry: Vec::new(), limit }, data: Data { bytes: Vec::new(), any: false, limit } }
    }
}

impl Frames for Sse {
    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let Self { lines, data } = self;
        lines.feed(bytes, |line| data.line(line, &mut each))
    }

    fn finish(&mut self, mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let Self { lines, data } = self;
        lines.finish(|line| data.line(line, &mut each))?;
        data.line(b"", &mut each)
    }
}

/// The data lines of the event that is being read.
#[derive(Debug)]
struct Data {
    bytes: Vec<u8>,
    any: bool,
    limit: usize,
}

impl Data {
    fn line(&mut self, line: &[u8], each: &mut impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
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

    fn dispatch(&mut self, each: &mut impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        if !self.any {
            return Ok(());
        }
        let result = each(&self.bytes);
        self.bytes.clear();
        self.any = false;
        result
    }
}

/// One JSON value a line; empty lines are passed over.
#[derive(Debug)]
pub struct Ndjson(Lines);

impl Default for Ndjson {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT)
    }
}

impl Ndjson {
    pub fn with_limit(limit: usize) -> Self {
        Self(Lines { carry: Vec::new(), limit })
    }
}

impl Frames for Ndjson {
    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        self.0.feed(bytes, |line| if line.is_empty() { Ok(()) } else { each(line) })
    }

    fn finish(&mut self, each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        self.0.finish(each)
    }
}

#[cfg(test)]
mod tests;
