//! The settings with which an editor starts this command.

use std::env;

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::{Value, json};

/// An editor for which the settings can be printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EditorChoice {
    /// `agent_servers` in Zed's settings.json
    Zed,
    /// ~/.jetbrains/acp.json
    Jetbrains,
    /// An adapter of CodeCompanion
    Neovim,
    /// The settings of the extension ACP Client
    Vscode,
}

impl EditorChoice {
    /// Returns the settings that start this program with the arguments of this command, but for the
    /// option that asks for them. The program has its whole path, because an editor that was not
    /// started from a shell often has another `PATH`.
    pub fn of_this_command(self) -> anyhow::Result<String> {
        let program = env::current_exe().context("cannot find this program")?;
        let program = program
            .to_str()
            .context("the path of this program is not plain text")?;
        let mut arguments = Vec::new();
        let mut given = env::args().skip(1);
        while let Some(argument) = given.next() {
            if argument == "--print-config" {
                given.next();
            } else if !argument.starts_with("--print-config=") {
                arguments.push(argument);
            }
        }
        Ok(self.settings(program, &arguments))
    }

    fn settings(self, program: &str, arguments: &[String]) -> String {
        let start = json!({"command": program, "args": arguments, "env": {}});
        let settings = match self {
            Self::Zed => {
                let mut start = start;
                if let Value::Object(fields) = &mut start {
                    fields.insert("type".into(), "custom".into());
                }
                json!({"agent_servers": {"Planck": start}})
            }
            Self::Jetbrains => json!({"agent_servers": {"Planck": start}}),
            Self::Vscode => json!({"acp.agents": {"Planck": start}}),
            Self::Neovim => return neovim(program, arguments),
        };
        // A value that was made here is always valid JSON.
        format!("{settings:#}\n")
    }
}

fn neovim(program: &str, arguments: &[String]) -> String {
    // A string of JSON is one of Lua, because neither has control characters here.
    let words = std::iter::once(program).chain(arguments.iter().map(String::as_str));
    let words: Vec<String> = words.map(|word| Value::from(word).to_string()).collect();
    let words = words.join(", ");
    format!(
        r#"require("codecompanion").setup({{
  adapters = {{
    acp = {{
      planck = function()
        return require("codecompanion.adapters").extend("goose", {{
          name = "planck",
          formatted_name = "Planck",
          commands = {{ default = {{ {words} }} }},
        }})
      end,
    }},
  }},
  interactions = {{ chat = {{ adapter = "planck" }} }},
}})
"#
    )
}
