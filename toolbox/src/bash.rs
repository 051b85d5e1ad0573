//! The tool `bash`, which runs a shell command.

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use planck_common::event::ToolEffect;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Invocation, Tool, ToolOutcome,
    files::{Files, args, spec},
    process::Launch,
    shell::Shell,
    workspace::Workspace,
};
use planck_agent::model::ToolSpec;

const LONGEST_TIMEOUT: u64 = 3_600_000;

/// Whether a call can ask a person to let it run outside of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unsandboxed {
    #[default]
    Off,
    /// It could, but this process has no person to ask.
    Unattended,
    Ask,
}

pub struct Bash {
    spec: ToolSpec,
    files: Files,
    shell: Shell,
    /// The shell for calls that a person has let out of the sandbox.
    outside: Option<Shell>,
    /// The time limit of a call whose arguments state none.
    timeout: Duration,
}

#[derive(Deserialize)]
struct BashArgs {
    command: String,
    cwd: Option<String>,
    timeout: Option<u64>,
    /// The agent's loop has asked a person about a call with this argument.
    #[serde(default)]
    unsandboxed: bool,
}

impl Bash {
    pub fn new(files: Files, shell: Shell, timeout: Duration, unsandboxed: Unsandboxed) -> Self {
        let description = "Run a command with bash. Returns its stdout, then its stderr under `STDERR:`. Nothing is read from \
                           stdin. When the command ends, whatever it left running in the background is killed.";
        let mut parameters = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "minLength": 1},
                "cwd": {"type": "string", "minLength": 1, "description": "Where to run it; by default the working directory."},
                "timeout": {
                    "type": "integer", "minimum": 1, "maximum": LONGEST_TIMEOUT,
                    "description": format!(
                        "Time limit in milliseconds; by default {}. After it the command is killed, and the output so far is returned.",
                        timeout.as_millis()
                    ),
                },
            },
            "required": ["command"],
            "additionalProperties": false,
        });
        let argument = match unsandboxed {
            Unsandboxed::Off => None,
            Unsandboxed::Unattended => Some(json!({
                "type": "boolean",
                "const": false,
                "description": "Every command runs in the sandbox, because no person can be asked here to let one out of it.",
            })),
            Unsandboxed::Ask => Some(json!({
                "type": "boolean",
                "description": "Ask a person to let this one command run outside of the sandbox, with the person's own rights and network. \
                                Use it only for a command that has failed because of the sandbox, and say first why it is needed.",
            })),
        };
        let properties = parameters.pointer_mut("/properties");
        if let (Some(argument), Some(Value::Object(properties))) = (argument, properties) {
            properties.insert("unsandboxed".into(), argument);
        }
        Self {
            spec: spec("bash", description, ToolEffect::Mutating, &parameters),
            files,
            outside: (unsandboxed == Unsandboxed::Ask).then(|| shell.unconfined()),
            shell,
            timeout,
        }
    }

    fn prepare(&self, call: &Invocation, args: &BashArgs) -> Result<(Workspace, PathBuf), String> {
        let workspace = self
            .files
            .workspace(&call.dir)
            .map_err(|why| why.to_string())?;
        let dir = match &args.cwd {
            Some(cwd) => workspace.place(cwd).map_err(|why| why.to_string())?.path(),
            None => workspace.dir().to_owned(),
        };
        Ok((workspace, dir))
    }
}

#[async_trait]
impl Tool for Bash {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// Returns `None`, because each call has a limit of its own, which the tool enforces.
    fn timeout(&self, _usual: Duration) -> Option<Duration> {
        None
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let args: BashArgs = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let shell = match (args.unsandboxed, &self.outside) {
            (false, _) => &self.shell,
            (true, Some(outside)) => outside,
            (true, None) => {
                return ToolOutcome::error("not run: no command leaves the sandbox here");
            }
        };
        let (workspace, dir) = match self.prepare(&call, &args) {
            Ok(ready) => ready,
            Err(why) => return ToolOutcome::error(why),
        };
        let launch = Launch {
            program: "bash".into(),
            args: vec!["-c".into(), args.command.into()],
            dir,
            env: shell.env(),
            sandbox: None,
            input: Vec::new(),
            keep: shell.caps().bytes,
        };
        let limit = args.timeout.map_or(self.timeout, Duration::from_millis);
        shell.run(launch, &workspace, &[], limit, &call).await
    }
}
