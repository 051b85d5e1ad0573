//! Rewind: hides a message and all after it, and starts every agent of the session from what is
//! left.
//!
//! The store does it in one step: what was accepted before has its outcome then, what is accepted
//! after it runs. The agents here pause for that step, so that what they wrote before it is
//! published before it.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use futures_util::future;
use planck_common::{
    AgentId, Seq,
    envelope::Envelope,
    event::{EventKind, json},
    reply::Refusal,
};

use super::{claim::Purpose, close::AT_ONCE, deliver::wake};
use crate::{
    actor::{Hosting, Opening},
    agent::OpenTurn,
    bus::Published,
    node::Node,
    store::{AgentRecord, Rewound, SessionRecord, StoreError},
};

/// How often a rewind is sent whose outcome is unknown, and how long to wait before it is sent
/// again.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// Events read at once.
const PAGE: u32 = 500;

impl Node {
    /// The log's head after the rewind, which is the `rewound` event.
    pub(crate) async fn rewind(
        &self,
        session: &SessionRecord,
        to: Seq,
        by: &str,
    ) -> Result<Seq, Refusal> {
        self.check_message(session, to).await?;
        let alone = self.host().alone(&session.id).await?;
        let lead = self
            .take_up_here(
                session,
                Purpose::Work {
                    reason: "to be rewound",
                    may_open: true,
                },
                &alone,
            )
            .await?;
        let mut there = self.members(&session.id).await?;
        there.retain(|agent| self.elsewhere(agent).is_some());
        let held = self
            .host()
            .hold(&self.host().agents(Some(&session.id)))
            .await;
        let before = self.store().head(&session.id).await?;
        let rewound = self.rewind_stored(session, lead.epoch, to, by).await?;
        self.publish_rewound(session, before, &rewound).await;
        for (agent, epoch) in &rewound.agents {
            if rewound.unborn.contains(agent) {
                self.host().drop_agent(agent);
            } else if let Some(hosting) = self.host().hosting(agent) {
                let opening = Opening {
                    open_turn: OpenTurn::Close,
                    ..Opening::default()
                };
                self.host().start(Hosting {
                    epoch: *epoch,
                    opening,
                    ..hosting
                });
            }
        }
        drop(held);
        self.reload_there(&there).await;
        Ok(rewound.head)
    }

    /// Of a rewind whose answer is lost nobody knows whether it was carried out; it is sent again,
    /// which does no harm.
    async fn rewind_stored(
        &self,
        session: &SessionRecord,
        epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<Rewound, StoreError> {
        for _ in 1..TRIES {
            match self.store().rewind(&session.id, epoch, to, by).await {
                Err(StoreError::Away(reason)) => {
                    tracing::debug!(session = %session.id, reason, "the rewind is sent again")
                }
                settled => return settled,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.store().rewind(&session.id, epoch, to, by).await
    }

    /// Agents on other nodes are fenced by now; a word lets their nodes load them anew at once.
    async fn reload_there(&self, agents: &[AgentRecord]) {
        for some in agents.chunks(AT_ONCE) {
            let words = some.iter().filter_map(|agent| {
                let node = agent.node.as_ref()?;
                Some(async move {
                    let word = wake(&agent.session, &agent.id);
                    self.peers().wake(node, &word).await
                })
            });
            for refusal in future::join_all(words)
                .await
                .into_iter()
                .filter_map(Result::err)
            {
                tracing::debug!(%refusal, "a node was not told of the rewind; it finds its agents fenced");
            }
        }
    }

    /// Nothing is aborted for a rewind that cannot be.
    async fn check_message(&self, session: &SessionRecord, id: Seq) -> Result<(), Refusal> {
        let page = self.store().events(&session.id, id.max(1), 1, None).await?;
        let row = page
            .events
            .first()
            .and_then(|event| serde_json::from_str::<Envelope>(event.get()).ok());
        let is_message = |row: &Envelope| {
            row.seq == Some(id) && row.kind == EventKind::Message.name() && row.hidden_by.is_none()
        };
        match row.is_some_and(|row| is_message(&row)) {
            true => Ok(()),
            false => Err(Refusal::bad_request(format!(
                "{id} is no message of session {}",
                session.name
            ))),
        }
    }

    /// Publishes what the rewind wrote, in the order of the log: the ends of what was open, and
    /// `rewound`. A reader that misses one reads the log, so nothing else depends on it.
    async fn publish_rewound(&self, session: &SessionRecord, before: Seq, rewound: &Rewound) {
        let epochs: HashMap<&AgentId, i64> = rewound
            .agents
            .iter()
            .map(|(agent, epoch)| (agent, *epoch))
            .collect();
        let mut from = before + 1;
        while from <= rewound.head {
            let page = match self.store().events(&session.id, from, PAGE, None).await {
                Ok(page) => page,
                Err(error) => {
                    return tracing::warn!(session = %session.id, %error, "the rewind is not published; readers find it");
                }
            };
            for event in page
                .events
                .iter()
                .filter_map(|event| serde_json::from_str::<Envelope>(event.get()).ok())
            {
                // Others may have written meanwhile, under the epochs that they had.
                if event.seq <= Some(rewound.head)
                    && epochs.get(&event.agent_id) == Some(&event.epoch)
                {
                    self.publish_as_written(event);
                }
            }
            from = page.next;
        }
    }

    /// Who listens sees an end like that of any other turn: whether it is hidden only the log
    /// tells.
    fn publish_as_written(&self, event: Envelope) {
        self.bus().publish_event(Published {
            session_id: event.session_id.clone(),
            agent_id: event.agent_id.clone(),
            seq: event.seq,
            payload: Bytes::from(json(&Envelope {
                hidden_by: None,
                ..event
            })),
        });
    }
}
