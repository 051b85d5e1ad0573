//! Draining: each agent here goes on at another node, from where nothing is lost or done twice:
//! between two requests, or while it only waits.

use std::time::Duration;

use futures_util::future;
use planck_common::{
    AgentId,
    decision::{Decided, DecisionKind},
};
use tokio::time::{Instant, sleep};

use super::{close::AT_ONCE, start::claim_of};
use crate::{node::Node, store::AgentRecord};

/// Between two looks at who can go.
const LOOK: Duration = Duration::from_millis(50);

/// Whether an agent waits for a place where nothing of it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haste {
    WhenItMay,
    Now,
}

/// What became of one try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Gone,
    /// No node fits it.
    Stays,
    NotYet,
}

impl Node {
    /// Returns when all have gone that another node takes. The leases of the others stay in this
    /// node's name: whoever finds it gone takes them up.
    pub(crate) async fn drain(&self, patience: Duration) {
        self.draining().cancel();
        let until = Instant::now() + patience;
        let (mut unread, mut staying) = (self.host().agents(None), Vec::new());
        loop {
            let haste = if Instant::now() < until {
                Haste::WhenItMay
            } else {
                Haste::Now
            };
            unread = self.read_travellers(unread, &mut staying).await;
            let mut left = Vec::new();
            for some in staying.chunks(AT_ONCE) {
                let sent =
                    future::join_all(some.iter().map(|traveller| self.send_off(traveller, haste)))
                        .await;
                left.extend(
                    some.iter()
                        .zip(sent)
                        .filter(|(_, sent)| *sent == Sent::NotYet)
                        .map(|(traveller, _)| traveller.clone()),
                );
            }
            if (left.is_empty() && unread.is_empty()) || haste == Haste::Now {
                return;
            }
            staying = left;
            sleep(LOOK).await;
        }
    }

    /// Returns those that cannot be read now.
    async fn read_travellers(
        &self,
        agents: Vec<AgentId>,
        read: &mut Vec<AgentRecord>,
    ) -> Vec<AgentId> {
        let mut unread = Vec::new();
        for agent in agents {
            match self.find_agent(&agent).await {
                Ok(record) => read.push(record),
                Err(refusal) if refusal.retryable => unread.push(agent),
                Err(refusal) => tracing::debug!(%agent, %refusal, "the agent is gone"),
            }
        }
        unread
    }

    /// Where there is no node for it, there is nothing to wait for.
    async fn send_off(&self, agent: &AgentRecord, haste: Haste) -> Sent {
        let Some(hosting) = self.host().hosting(&agent.id) else {
            return Sent::Gone;
        };
        let Some(home) = self.peer_of(&hosting.session.workspace, &agent.spec) else {
            return Sent::Stays;
        };
        match haste {
            Haste::WhenItMay if !self.host().leave(&agent.id).await.unwrap_or(false) => {
                return Sent::NotYet;
            }
            Haste::WhenItMay => {}
            Haste::Now => {
                self.host()
                    .drop_agents(std::slice::from_ref(&agent.id))
                    .await
            }
        }
        let request = claim_of(
            &hosting.session,
            &AgentRecord {
                epoch: hosting.epoch,
                ..agent.clone()
            },
            None,
        );
        match self.host_at(&home, &request).await {
            Ok(hosted) => {
                let data = Decided {
                    node: Some(hosted.node_id),
                    agent: Some(agent.id.clone()),
                    session: Some(agent.session.clone()),
                    ..Decided::because("its node is drained")
                };
                self.decided(DecisionKind::Drain, data);
                Sent::Gone
            }
            // Unless it is there in spite of that, which the store knows, it goes on here until
            // another try.
            Err(refusal) => {
                tracing::debug!(agent = %agent.id, %home, %refusal, "the agent cannot go yet");
                self.host().start(hosting);
                Sent::NotYet
            }
        }
    }
}
