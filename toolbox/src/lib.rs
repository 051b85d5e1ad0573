//! The tools of agents: the [`Tool`] trait, the catalogue and the toolboxes, the runner of calls,
//! the built-in tools and the tools from files, and the processes in which commands run.

pub mod catalogue;
pub mod toolbox;

pub mod runner;
pub mod schema;
mod tool_search;

pub mod output;
pub mod workspace;

pub mod edit;
pub mod read;
pub mod write;

pub mod bash;
pub mod external;
pub mod outside;
mod shell;

pub mod cgroup;
pub mod process;
pub mod sandbox;
pub mod toolchain;

pub mod reap;

pub mod protect;

pub mod project;
pub mod skill;

mod files;
#[cfg(test)]
pub(crate) mod testing;

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use planck_agent::model::ToolSpec;
use planck_common::{AgentId, CallId, SessionId, TeamId, sidecar::ToolAnswer};

pub use self::files::SecondJudgement;
pub use bash::Unsandboxed;
pub use catalogue::{BadTool, ToolCatalogue, Unknown};
pub(crate) use files::args;
pub use files::{Files, spec};
pub use output::Caps;
pub use planck_agent::outcome::{ABORTED, CallEnd, ToolOutcome};
pub use process::{Launcher, ReaperHeartbeat};
pub use protect::{CallBaselines, Wall};
pub use runner::{CallBounds, Runner};
pub use sandbox::Sandbox;
pub use shell::{Shell, describe_end, is_of_loader, minimal_environment};
pub use toolbox::Toolbox;
pub use toolchain::Toolchain;
pub use workspace::Roots;

/// A tool that a model can call.
#[async_trait]
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    /// Returns the time limit of a call, or `None` if the tool limits its calls itself. `usual` is
    /// the node's default limit.
    fn timeout(&self, usual: Duration) -> Option<Duration> {
        Some(usual)
    }

    /// Returns whether a call mostly waits for other agents or nodes. Such calls have a limit of
    /// their own for each agent, which is higher by default than the limit for calls that do work
    /// on this node.
    fn waits(&self) -> bool {
        false
    }

    /// Runs a call. The runner has checked that the arguments fit the schema.
    async fn run(&self, call: Invocation) -> ToolOutcome;
}

/// One call of a tool. Once `cancel` is cancelled, the tool must return its partial result within
/// the grace period of the runner.
#[derive(Clone)]
pub struct Invocation {
    pub session_id: SessionId,
    pub team_id: TeamId,
    pub agent_id: AgentId,
    pub epoch: i64,
    pub call_id: CallId,
    /// Whether an earlier try of the call may have taken effect.
    pub is_repeat: bool,
    pub args: Arc<RawValue>,
    /// The answer to the question with which the call ended before.
    pub answer: Option<ToolAnswer>,
    /// The working directory of the agent.
    pub dir: PathBuf,
    /// Absent if the permissions of the agent let every call run.
    pub second_judgement: Option<Arc<SecondJudgement>>,
    pub cancel: CancellationToken,
    pub progress: Arc<dyn Fn(CallProgress) + Send + Sync>,
}

/// A progress report of a running call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallProgress {
    pub message: String,
    pub percent: Option<f64>,
}

/// Returns the names of the built-in tools.
pub const fn built_in_names() -> [&'static str; 4] {
    ["bash", "edit", "read", "write"]
}

/// Returns the built-in tools, which every node of the `planck` binary has. `bash` is the default
/// time limit of a command.
pub fn built_in(
    files: &Files,
    shell: &Shell,
    bash: Duration,
    unsandboxed: Unsandboxed,
) -> Vec<Arc<dyn Tool>> {
    let bash = bash::Bash::new(files.clone(), shell.clone(), bash, unsandboxed);
    let bash: Arc<dyn Tool> = Arc::new(bash);
    let mut tools = file_tools(files);
    tools.push(bash);
    tools.push(Arc::new(outside::OutsideTool::ask_user()));
    tools
}

/// Returns the built-in tools that start no process.
pub fn file_tools(files: &Files) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(edit::EditFile::new(files.clone())),
        Arc::new(read::ReadFile::new(files.clone())),
        Arc::new(write::WriteFile::new(files.clone())),
    ]
}

/// Runs `act` on a thread that may block. The error says that `act` panicked.
pub(crate) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(|panic| format!("failed: {panic}"))
}
