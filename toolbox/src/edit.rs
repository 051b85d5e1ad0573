//! The tool `edit`, which replaces a text that occurs exactly once in a file.

use std::io::{self, Read};

use async_trait::async_trait;
use memchr::memmem;
use planck_common::event::ToolEffect;
use serde::Deserialize;
use serde_json::json;

use super::{
    Invocation, Tool, ToolOutcome,
    files::{FileError, Files, spec},
    workspace::ParentFolder,
};
use planck_agent::model::ToolSpec;

/// The maximum size in bytes of a file that can be edited. The whole file is read into memory.
const LARGEST: u64 = 32 * 1024 * 1024;

pub struct EditFile {
    spec: ToolSpec,
    files: Files,
}

#[derive(Deserialize)]
struct EditArgs {
    path: String,
    old_string: String,
    new_string: String,
}

impl EditFile {
    pub fn new(files: Files) -> Self {
        let description = "Replace a piece of a file. `old_string` must stand in the file exactly once, white space included; \
                           give enough of what is around it.";
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Relative to the working directory."},
                "old_string": {"type": "string", "minLength": 1, "description": "What to replace."},
                "new_string": {"type": "string", "description": "What to put in its place."},
            },
            "required": ["path", "old_string", "new_string"],
            "additionalProperties": false,
        });
        Self {
            spec: spec("edit", description, ToolEffect::Mutating, &parameters),
            files,
        }
    }
}

#[async_trait]
impl Tool for EditFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        self.files.blocking(call, edit).await
    }
}

fn edit(files: &Files, call: &Invocation, args: EditArgs) -> Result<String, FileError> {
    let place = files.place_to_change(call, &args.path)?;
    let failed = |why| FileError::Io {
        what: "edit",
        path: args.path.clone(),
        why,
    };
    files.locked(&place, || {
        let folder = ParentFolder::open(&place).map_err(failed)?;
        let old = content(&folder).map_err(failed)?;
        let new = replace(&old, &args)
            .map_err(|why| FileError::Refused(format!("cannot edit {}: {why}", args.path)))?;
        folder.write(&new).map_err(failed)
    })?;
    Ok(format!("edited {}", args.path))
}

fn content(folder: &ParentFolder) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    folder.read()?.take(LARGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LARGEST {
        return Err(io::Error::other(format!(
            "it is larger than {LARGEST} bytes"
        )));
    }
    Ok(content)
}

fn replace(content: &[u8], args: &EditArgs) -> Result<Vec<u8>, String> {
    if args.old_string == args.new_string {
        return Err("old_string and new_string are the same".into());
    }
    let at = match places(content, args.old_string.as_bytes()).as_slice() {
        [at] => *at,
        [] => {
            return Err(format!(
                "old_string was not found{}",
                near_miss(content, &args.old_string)
            ));
        }
        many => {
            return Err(format!(
                "old_string was found {} times; give more of what is around it",
                many.len()
            ));
        }
    };
    let (before, rest) = content.split_at(at);
    let after = rest.get(args.old_string.len()..).unwrap_or_default();
    Ok([before, args.new_string.as_bytes(), after].concat())
}

/// Returns the positions of all occurrences of `wanted`, including overlapping ones.
fn places(content: &[u8], wanted: &[u8]) -> Vec<usize> {
    let finder = memmem::Finder::new(wanted);
    let mut places = Vec::new();
    let mut from = 0;
    while let Some(at) = content.get(from..).and_then(|rest| finder.find(rest)) {
        places.push(from + at);
        from += at + 1;
    }
    places
}

fn near_miss(content: &[u8], wanted: &str) -> &'static str {
    let with_returns = wanted.replace('\n', "\r\n");
    match memmem::find(content, with_returns.as_bytes()) {
        Some(_) => "; the file's lines end with \\r\\n",
        None => "",
    }
}

#[cfg(test)]
mod tests;
