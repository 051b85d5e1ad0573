//! Edits the arguments of a call in the person's editor.

use std::{
    ffi::OsString,
    io::{self, Write as _},
};

use anyhow::Context as _;
use serde_json::Value;
use tokio::process::Command;

use planck_host::environment;

/// Returns the command of the person's editor, from `VISUAL` or `EDITOR`, or `vi` as for Git.
fn command() -> OsString {
    let named = ["VISUAL", "EDITOR"].into_iter();
    let mut named = named.filter_map(environment::variable);
    let named = named.find(|command| !command.is_empty());
    named.unwrap_or_else(|| "vi".into())
}

/// Opens the person's editor with a text, and returns the text when the editor has ended.
pub async fn edit(text: &str) -> anyhow::Result<String> {
    edit_with(command(), text).await
}

/// Opens an editor. Arguments in the text become one line each. Fails if the editor reports a failure.
async fn edit_with(editor: OsString, text: &str) -> anyhow::Result<String> {
    let mut file = tempfile::Builder::new()
        .prefix("planck-arguments-")
        .suffix(".json")
        .tempfile()
        .context("cannot create a file for the arguments")?;
    file.write_all(pretty(text).as_bytes())?;
    // As for Git, the command may have arguments of its own, such as `code --wait`.
    let mut script = editor;
    script.push(" \"$1\"");
    let status = Command::new("sh")
        .arg("-c")
        .arg(script)
        .arg("planck")
        .arg(file.path())
        .kill_on_drop(true)
        .status()
        .await
        .context("cannot start the editor")?;
    anyhow::ensure!(status.success(), "the editor ended with {status}");
    // An editor may replace the file, so it is opened again by its name.
    let read: io::Result<String> = std::fs::read_to_string(file.path());
    read.context("cannot read the edited arguments")
}

fn pretty(text: &str) -> String {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
    pretty.unwrap_or_else(|| text.to_owned()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn edited_text_is_returned_and_a_failure_is_not() {
        let sed = "sed -i s/ls/pwd/".into();
        let text = edit_with(sed, r#"{"command":"ls"}"#).await.unwrap();
        assert_eq!(text, "{\n  \"command\": \"pwd\"\n}\n");
        let text = edit_with("true".into(), "no JSON").await.unwrap();
        assert_eq!(text, "no JSON\n");
        let error = edit_with("false".into(), "{}").await.unwrap_err();
        assert!(
            error.to_string().contains("the editor ended with"),
            "{error}"
        );
    }
}
