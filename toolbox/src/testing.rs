//! A temporary workspace, and calls of tools in it, for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use planck_common::{AgentId, CallId, SessionId, TeamId};
use serde_json::{Value, value::to_raw_value};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{Caps, Files, Invocation, Roots, Runner, Tool, Toolbox, catalogue::ToolEntry};

/// A folder that contains the workspace `ws` and, outside of the workspace, the folder `out`.
pub struct World {
    top: TempDir,
}

impl World {
    pub fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("ws")).unwrap();
        fs::create_dir(top.path().join("out")).unwrap();
        fs::write(top.path().join("out/secret"), "secret").unwrap();
        Self { top }
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.top.path().join(path)
    }

    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let file = self.at(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    pub fn link(&self, path: &str, target: impl AsRef<Path>) {
        std::os::unix::fs::symlink(target, self.at(path)).unwrap();
    }

    pub fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    pub fn files(&self) -> Files {
        Files::new(
            Roots::confined(vec![self.at("ws")], Vec::new()),
            Caps::default(),
        )
    }

    /// Builds a call by an agent whose working directory is `ws`.
    pub fn call(&self, args: &Value) -> Invocation {
        Invocation {
            session_id: SessionId::parse("s").unwrap(),
            team_id: TeamId::parse("t").unwrap(),
            agent_id: AgentId::parse("a").unwrap(),
            epoch: 1,
            call_id: CallId::parse("c").unwrap(),
            is_repeat: false,
            answer: None,
            args: to_raw_value(args).unwrap().into(),
            dir: self.at("ws"),
            second_judgement: None,
            cancel: CancellationToken::new(),
            progress: Arc::new(|_| {}),
        }
    }

    /// Runs a tool and returns the text for the model, without the path of the temporary folder. If
    /// the call fails, the text begins with `error: `.
    pub async fn run(&self, tool: impl Tool + 'static, args: Value) -> String {
        let name = tool.spec().name.clone();
        let outcome = Runner::default()
            .run(&toolbox(tool), &name, self.call(&args))
            .await;
        let text = outcome
            .text
            .replace(&self.top.path().display().to_string(), "");
        if outcome.is_error() {
            format!("error: {text}")
        } else {
            text
        }
    }
}

pub fn toolbox(tool: impl Tool + 'static) -> Toolbox {
    Toolbox::of(vec![ToolEntry::new(Arc::new(tool)).unwrap()])
}
