//! The tool `read`, which returns the text of a file or a range of its lines.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use async_trait::async_trait;
use planck_common::event::ToolEffect;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    Invocation, Tool, ToolOutcome,
    files::{FileError, Files, spec},
    output::{Caps, Capture, TRUNCATED, cut},
    workspace::ParentFolder,
};
use planck_agent::model::ToolSpec;

/// The maximum number of bytes that one call reads to skip lines. Without this limit a call could
/// run for hours, because a sparse file can have any length without using disk space.
const SCANNED: u64 = 256 << 20;

pub struct ReadFile {
    spec: ToolSpec,
    files: Files,
}

#[derive(Deserialize)]
struct ReadArgs {
    path: String,
    #[serde(default)]
    offset: u64,
    limit: Option<u64>,
}

impl ReadFile {
    pub fn new(files: Files) -> Self {
        let Caps { lines, bytes } = files.caps();
        let description = format!(
            "Read a text file. At most {lines} lines or {bytes} bytes are returned; of a longer file, which ends with \
             `{TRUNCATED}`, read on with `offset` and `limit`."
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Relative to the working directory."},
                "offset": {"type": "integer", "minimum": 0, "description": "How many lines to skip."},
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines to return at most."},
            },
            "required": ["path"],
            "additionalProperties": false,
        });
        Self {
            spec: spec("read", &description, ToolEffect::Pure, &parameters),
            files,
        }
    }
}

#[async_trait]
impl Tool for ReadFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        self.files.blocking(call, read).await
    }
}

fn read(files: &Files, call: &Invocation, args: ReadArgs) -> Result<String, FileError> {
    let failed = |why| FileError::Io {
        what: "read",
        path: args.path.clone(),
        why,
    };
    let file = match ParentFolder::read_without_links(&call.dir, &args.path) {
        Some(file) => file,
        None => {
            let place = files.place(call, &args.path)?;
            let folder = ParentFolder::open(&place);
            folder.and_then(|folder| folder.read()).map_err(failed)?
        }
    };
    let size = file.metadata().map_err(failed)?.len();
    match lines(file, size, files.caps(), &args, &call.cancel).map_err(failed)? {
        FoundLines::Text(text) => Ok(text),
        FoundLines::Cancelled => Err(FileError::Stopped),
        FoundLines::TooFar => Err(FileError::Refused(format!(
            "line {} of {} is not within the first {} MiB, and `read` looks no further; use `bash` with `tail -c` or `grep`",
            args.offset.saturating_add(1),
            args.path,
            SCANNED >> 20
        ))),
    }
}

/// The result of reading the lines that a call asked for.
enum FoundLines {
    Text(String),
    Cancelled,
    TooFar,
}

/// Returns the requested lines, within the limits on output and on skipped bytes.
fn lines(
    file: File,
    size: u64,
    caps: Caps,
    args: &ReadArgs,
    cancel: &CancellationToken,
) -> io::Result<FoundLines> {
    let last = args.offset.saturating_add(args.limit.unwrap_or(u64::MAX));
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    let mut capture = Capture::new(caps.bytes);
    let (mut line, mut scanned) = (0, 0);
    while line < last && !capture.is_cut() {
        if cancel.is_cancelled() {
            return Ok(FoundLines::Cancelled);
        }
        if scanned >= SCANNED && line < args.offset {
            return Ok(FoundLines::TooFar);
        }
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        let piece = memchr::memchr(b'\n', chunk)
            .and_then(|at| chunk.get(..=at))
            .unwrap_or(chunk);
        if line >= args.offset {
            capture.push(piece);
        }
        line += u64::from(piece.ends_with(b"\n"));
        let length = piece.len();
        scanned += length as u64;
        reader.consume(length);
    }
    let Some(read) = capture.into_text() else {
        return Ok(FoundLines::Text(format!("[binary, {size} bytes]")));
    };
    let end = caps.end(&read.text);
    Ok(FoundLines::Text(
        if read.truncated || end < read.text.len() {
            cut(read.text, end)
        } else {
            read.text
        },
    ))
}

#[cfg(test)]
mod tests;
