//! The tool `write`, which creates a file or replaces its content.

use async_trait::async_trait;
use planck_common::event::ToolEffect;
use serde::Deserialize;
use serde_json::json;

use super::{
    Invocation, Tool, ToolOutcome,
    files::{FileError, Files, spec},
    workspace::ParentFolder,
};
use planck_agent::model::ToolSpec;

pub struct WriteFile {
    spec: ToolSpec,
    files: Files,
}

#[derive(Deserialize)]
struct WriteArgs {
    path: String,
    content: String,
}

impl WriteFile {
    pub fn new(files: Files) -> Self {
        let description = "Write a file, replacing what it held; missing folders are made.";
        let parameters = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Relative to the working directory."},
                "content": {"type": "string", "description": "All that the file is to hold."},
            },
            "required": ["path", "content"],
            "additionalProperties": false,
        });
        Self {
            spec: spec("write", description, ToolEffect::Mutating, &parameters),
            files,
        }
    }
}

#[async_trait]
impl Tool for WriteFile {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        self.files.blocking(call, write).await
    }
}

fn write(files: &Files, call: &Invocation, args: WriteArgs) -> Result<String, FileError> {
    let place = files.place_to_change(call, &args.path)?;
    let written = files.locked(&place, || {
        ParentFolder::create(&place)?.write(args.content.as_bytes())
    });
    written.map_err(|why| FileError::Io {
        what: "write",
        path: args.path.clone(),
        why,
    })?;
    Ok(format!(
        "wrote {} bytes to {}",
        args.content.len(),
        args.path
    ))
}

#[cfg(test)]
mod tests;
