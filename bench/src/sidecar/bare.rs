//! The bare measurement: the same requests, sent with the NATS client's own request function and
//! nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use async_nats::Client;
use async_trait::async_trait;
use futures_util::StreamExt as _;
use planck_common::subject;
use serde::Deserialize;
use tokio::time::timeout;

use super::CalledTool;
use crate::calls::ToolCaller;

/// How long to wait for the statistics of each instance.
const QUIET: Duration = Duration::from_secs(1);

pub struct Bare {
    client: Client,
    called: CalledTool,
    subject: String,
    /// The counter that makes the ids of callers and calls unique.
    numbers: Arc<AtomicU64>,
}

#[derive(Deserialize)]
struct SidecarStats {
    endpoints: Vec<EndpointStats>,
}

#[derive(Deserialize)]
struct EndpointStats {
    num_requests: u64,
}

impl Bare {
    pub async fn start(url: &str, called: &CalledTool) -> Result<Self> {
        let client = async_nats::connect(url).await?;
        let subject = subject::tool(&called.sidecar, &called.tool);
        Ok(Self {
            client,
            called: called.clone(),
            subject,
            numbers: Arc::default(),
        })
    }

    pub fn caller(&self) -> BareCaller {
        let CalledTool { tool, args, .. } = &self.called;
        let agent = self.numbers.fetch_add(1, Ordering::Relaxed);
        BareCaller {
            client: self.client.clone(),
            subject: self.subject.clone(),
            numbers: self.numbers.clone(),
            rest: format!(
                r#"","tool":"{tool}","args":{args},"agent_id":"bare-{agent}","session_id":"bench","team_id":"bench","epoch":1,"deadline_ms":60000}}"#
            ),
        }
    }

    /// Returns how many calls each instance has answered, according to its own statistics.
    pub async fn shares(&self, instances: usize) -> Result<Vec<u64>> {
        let inbox = self.client.new_inbox();
        let mut told = self.client.subscribe(inbox.clone()).await?;
        self.client
            .publish_with_reply(subject::stats(&self.called.sidecar), inbox, "".into())
            .await?;
        let mut shares = Vec::new();
        while shares.len() < instances {
            let message = timeout(QUIET, told.next())
                .await
                .ok()
                .flatten()
                .context("an instance does not tell its counts")?;
            let stats: SidecarStats = serde_json::from_slice(&message.payload)?;
            shares.push(
                stats
                    .endpoints
                    .iter()
                    .map(|endpoint| endpoint.num_requests)
                    .sum(),
            );
        }
        Ok(shares)
    }
}

pub struct BareCaller {
    client: Client,
    subject: String,
    numbers: Arc<AtomicU64>,
    /// The rest of the request, which follows the number of the call.
    rest: String,
}

#[async_trait]
impl ToolCaller for BareCaller {
    async fn call(&mut self) -> Result<()> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let request = format!(r#"{{"v":1,"call_id":"bare-{number}{}"#, self.rest);
        let answer = self
            .client
            .request(self.subject.clone(), request.into())
            .await?
            .payload;
        ensure!(
            answer.windows(5).any(|part| part == br#""ok":"#),
            "it answered {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }
}
