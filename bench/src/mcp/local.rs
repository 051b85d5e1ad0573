//! The way of a node that runs the server itself.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use planck_common::{AgentId, CallId, SessionId, TeamId};
use planck_mcp::{McpServer, ServerCommand, ServerOptions, ServerTransport, ToolRules};
use planck_sidecar::local::{LocalCall, LocalTool};
use planck_toolbox::{Launcher, Sandbox, minimal_environment};
use serde_json::value::{RawValue, to_raw_value};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{ARGUMENT, PATIENCE, TOOL};
use crate::{calls::ToolCaller, warn};

pub struct LocalServer {
    tool: Arc<LocalTool>,
    args: Arc<RawValue>,
    _running: DropGuard,
}

impl LocalServer {
    pub async fn start(server: &[String]) -> Result<Self> {
        let (program, arguments) = server.split_first().context("the command is empty")?;
        let command = ServerCommand {
            program: program.into(),
            args: arguments.iter().map(Into::into).collect(),
            dir: std::env::current_dir()?,
            env: minimal_environment(&[]),
            sandbox: Sandbox::off(),
        };
        let options = ServerOptions {
            transport: ServerTransport::Stdio(command),
            start_within: PATIENCE,
            timeout: None,
            rules: ToolRules::default(),
            pins: None,
        };
        let (stop, launcher) = (CancellationToken::new(), Launcher::of_this_binary(None));
        let (mut server, _) = McpServer::start(options, launcher, Arc::new(warn), stop.clone());
        let offer = loop {
            match server.offer() {
                Some(offer) if server.is_up() => break offer,
                Some(_) | None if server.changed().await => (),
                Some(_) | None => bail!("the server is not kept in use"),
            }
        };
        let mut tools = server.tools(&offer).into_iter().map(LocalTool::new);
        let tool = tools.find(|tool| tool.name() == TOOL);
        Ok(Self {
            tool: Arc::new(tool.context("the server has no such tool")?),
            args: to_raw_value(&serde_json::json!({ARGUMENT.0: ARGUMENT.1}))?.into(),
            _running: stop.drop_guard(),
        })
    }

    pub fn caller(&self) -> LocalCaller {
        LocalCaller {
            tool: self.tool.clone(),
            args: self.args.clone(),
            session: SessionId::mint(),
            agent: AgentId::mint(),
        }
    }
}

pub struct LocalCaller {
    tool: Arc<LocalTool>,
    args: Arc<RawValue>,
    session: SessionId,
    agent: AgentId,
}

#[async_trait]
impl ToolCaller for LocalCaller {
    async fn call(&mut self) -> Result<()> {
        let call = LocalCall {
            call_id: CallId::mint(),
            agent_id: self.agent.clone(),
            session_id: self.session.clone(),
            team_id: TeamId::parse("bench").context("a malformed id")?,
            epoch: 1,
            args: self.args.clone(),
            answer: None,
            cancel: CancellationToken::new(),
        };
        let said = self.tool.run(call, |_, _| ()).await;
        said.map(drop).map_err(anyhow::Error::msg)
    }
}
