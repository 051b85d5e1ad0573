//! The measurement through the runtime, which checks the arguments, looks the sidecar up, receives
//! progress, and parses the answer.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use planck_common::{AgentId, CallId, SessionId, TeamId};
use serde_json::value::RawValue;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::CalledTool;
use crate::calls::ToolCaller;
use planck_bus::{Bus, NatsBus, NatsOptions};
use planck_node::sidecar::{SidecarSettings, Sidecars};
use planck_toolbox::{CallProgress, Invocation, Runner, ToolCatalogue, Toolbox};

/// How long the sidecar may take to appear. It may have to start an interpreter first.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct RuntimeCalls {
    toolbox: Toolbox,
    called: CalledTool,
    _looking: JoinSet<()>,
}

impl RuntimeCalls {
    /// Connects to NATS, and waits until this number of instances has been discovered.
    pub async fn start(url: &str, called: &CalledTool, instances: usize) -> Result<Self> {
        let bus: Arc<dyn Bus> = Arc::new(NatsBus::connect(NatsOptions::new(url)).await?);
        let catalogue = ToolCatalogue::default();
        let sidecars = Sidecars::new(bus, catalogue.clone(), SidecarSettings::default());
        let (mut looking, keeper) = (JoinSet::new(), sidecars.clone());
        looking.spawn(async move { keeper.keep_looking(|| ()).await });
        let until = Instant::now() + PATIENCE;
        while !sidecars
            .rows()
            .iter()
            .any(|row| *row.name == *called.sidecar && row.instances as usize == instances)
        {
            ensure!(
                Instant::now() < until,
                "the sidecar `{}` was not found {instances} times in time",
                called.sidecar
            );
            sleep(Duration::from_millis(50)).await;
        }
        let (toolbox, unknown) = catalogue.toolbox([called.tool.as_str()], 40);
        ensure!(
            unknown.is_empty(),
            "the sidecar `{}` has no tool `{}`",
            called.sidecar,
            called.tool
        );
        Ok(Self {
            toolbox,
            called: called.clone(),
            _looking: looking,
        })
    }

    pub fn caller(&self) -> BenchAgent {
        let CalledTool { tool, args, .. } = self.called.clone();
        let (session, agent) = (SessionId::mint(), AgentId::mint());
        BenchAgent {
            toolbox: self.toolbox.clone(),
            tool,
            args: args.into(),
            session,
            agent,
            runner: Runner::default(),
        }
    }
}

pub struct BenchAgent {
    toolbox: Toolbox,
    tool: String,
    args: Arc<RawValue>,
    session: SessionId,
    agent: AgentId,
    runner: Runner,
}

#[async_trait]
impl ToolCaller for BenchAgent {
    async fn call(&mut self) -> Result<()> {
        let call = Invocation {
            session_id: self.session.clone(),
            team_id: TeamId::parse("bench").context("a malformed id")?,
            agent_id: self.agent.clone(),
            epoch: 1,
            call_id: CallId::mint(),
            is_repeat: false,
            answer: None,
            args: self.args.clone(),
            dir: PathBuf::new(),
            second_judgement: None,
            cancel: CancellationToken::new(),
            progress: Arc::new(|_: CallProgress| ()),
        };
        let outcome = self.runner.run(&self.toolbox, &self.tool, call).await;
        ensure!(!outcome.is_error(), "{}", outcome.text);
        Ok(())
    }
}
