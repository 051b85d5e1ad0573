//! Draining: each agent here goes on at another node, from where nothing is lost or done twice: between two requests, or while
//! it only waits.

use std::time::Duration;

use futures_util::future;
use planck_common::{
    AgentId,
    decision::{Decided, DecisionKind},
    reply::Refusal,
};
use tokio::time::{Instant, sleep};

use super::{close::AT_ONCE, start::claim_of};
use crate::{actor::Hosting, node::Node};

/// Between two looks at who can go.
const LOOK: Duration = Duration::from_millis(50);

/// Whether an agent waits for a place where nothing of it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haste {
    WhenItMay,
    Now,
}

impl Node {
    /// Returns when all have gone that another node takes. The leases of the others stay in this node's name: whoever finds it
    /// gone takes them up.
    pub(crate) async fn drain(&self, patience: Duration) {
        self.draining().cancel();
        let until = Instant::now() + patience;
        let mut haste = Haste::WhenItMay;
        loop {
            let agents = self.host().agents(None);
            let mut left = Vec::new();
            for some in agents.chunks(AT_ONCE) {
                let gone = future::join_all(some.iter().map(|agent| self.send_off(agent, haste))).await;
                left.extend(gone.into_iter().filter(|stays| *stays));
            }
            if left.is_empty() || haste == Haste::Now {
                return;
            }
            if Instant::now() >= until {
                haste = Haste::Now;
            } else {
                sleep(LOOK).await;
            }
        }
    }

    /// Whether the agent is to be tried again.
    async fn send_off(&self, agent: &AgentId, haste: Haste) -> bool {
        if haste == Haste::WhenItMay && !self.host().may_move(agent).await.unwrap_or(true) {
            return true;
        }
        let Some(hosting) = self.host().hosting(agent) else { return false };
        match self.move_away(hosting).await {
            Ok(moved) => !moved,
            Err(refusal) => {
                tracing::debug!(%agent, %refusal, "the agent cannot go yet");
                true
            }
        }
    }

    /// Whether there is a node for it: where there is none, there is nothing to wait for.
    async fn move_away(&self, hosting: Hosting) -> Result<bool, Refusal> {
        let record = self.find_agent(&hosting.agent).await?;
        let Some(home) = self.peer_of(&hosting.session.workspace, &record.spec) else { return Ok(true) };
        self.host().drop_agents(std::slice::from_ref(&hosting.agent)).await;
        let request = claim_of(&hosting.session, &record, None);
        match self.host_at(&home, &request).await {
            Ok(hosted) => {
                let data = Decided {
                    node: Some(hosted.node_id),
                    agent: Some(record.id),
                    session: Some(record.session),
                    ..Decided::because("its node is drained")
                };
                self.decided(DecisionKind::Drain, data);
                Ok(true)
            }
            // Unless it is there in spite of that, which the store knows, it goes on here until another try.
            Err(refusal) => {
                self.host().start(hosting);
                Err(refusal)
            }
        }
    }
}
