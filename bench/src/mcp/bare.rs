//! The bare client, which is `rmcp` and nothing else. It speaks the version of the protocol that a
//! node would speak with the server.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use async_trait::async_trait;
use rmcp::{
    model::{CallToolRequestParams, JsonObject, ProtocolVersion},
    service::{ClientLifecycleMode, ClientServiceExt as _, Peer, RoleClient, RunningService},
};
use tokio::process::{Child, Command};

use super::{ARGUMENT, TOOL};
use crate::calls::ToolCaller;

pub struct BareClient {
    service: RunningService<RoleClient, ()>,
    _server: Child,
}

impl BareClient {
    pub async fn start(server: &[String]) -> Result<Self> {
        let (program, arguments) = server.split_first().context("the command is empty")?;
        let mut server = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        let streams = server.stdout.take().zip(server.stdin.take());
        let newest = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        };
        let service = ().serve_with_lifecycle(streams.context("no streams")?, newest).await?;
        Ok(Self {
            service,
            _server: server,
        })
    }

    pub fn caller(&self) -> BareCaller {
        BareCaller(self.service.peer().clone())
    }
}

pub struct BareCaller(Peer<RoleClient>);

#[async_trait]
impl ToolCaller for BareCaller {
    async fn call(&mut self) -> Result<()> {
        let (name, value) = ARGUMENT;
        let args = JsonObject::from_iter([(name.into(), value.into())]);
        let call = CallToolRequestParams::new(TOOL).with_arguments(args);
        let result = self.0.call_tool(call).await?;
        ensure!(result.is_error != Some(true), "{result:?}");
        Ok(())
    }
}
