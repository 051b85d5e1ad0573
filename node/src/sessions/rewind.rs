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
    command::Wake,
    envelope::Envelope,
    event::{EventKind, json},
    reply::Refusal,
};

use super::Sessions;
use crate::{
    actor::{AT_ONCE, Hosting, Opening},
    agent::OpenTurn,
    bus::Published,
    store::{AgentRecord, Rewound, SessionRecord, StoreError},
    takeover::Purpose,
};

/// How often a rewind is sent whose outcome is unknown, and how long to wait before it is sent
/// again.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// Events read at once.
const PAGE: u32 = 500;

impl Sessions {
    /// Hides the message at `to` and all after it. Returns the log's head after that, which is the
    /// `rewound` event.
    pub async fn rewind(&self, session: &SessionRecord, to: Seq, by: &str) -> Result<Seq, Refusal> {
        self.check_message(session, to).await?;
        let guard = self.takeover.lock(&session.id).await?;
        let purpose = Purpose::Work {
            reason: "to be rewound",
            may_open: true,
        };
        let lead = self.takeover.take_up_here(session, purpose, &guard).await?;
        let mut elsewhere = self.lookup.members(&session.id).await?;
        elsewhere.retain(|agent| self.placement.other_host(agent).is_some());
        let held = self.host.hold(&self.host.agents(Some(&session.id))).await;
        let before = self.store.head(&session.id).await?;
        let rewound = self.rewind_stored(session, lead.epoch, to, by).await?;
        self.publish_rewound(session, before, &rewound).await;
        self.reload_here(&rewound);
        drop(held);
        self.reload_elsewhere(&elsewhere).await;
        Ok(rewound.head)
    }

    /// Starts the agents here from what is left of their history.
    fn reload_here(&self, rewound: &Rewound) {
        for (agent, epoch) in &rewound.agents {
            if rewound.unborn.contains(agent) {
                self.host.drop_agent(agent);
            } else if let Some(hosting) = self.host.hosting(agent) {
                let opening = Opening {
                    open_turn: OpenTurn::Close,
                    ..Opening::default()
                };
                self.host.start(Hosting {
                    epoch: *epoch,
                    opening,
                    ..hosting
                });
            }
        }
    }

    /// Sends the rewind again where its outcome is unknown. A rewind that was carried out is not
    /// carried out a second time.
    async fn rewind_stored(
        &self,
        session: &SessionRecord,
        epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<Rewound, StoreError> {
        for _ in 1..TRIES {
            match self.store.rewind(&session.id, epoch, to, by).await {
                Err(StoreError::Away(reason)) => {
                    tracing::debug!(session = %session.id, reason, "the rewind is sent again")
                }
                settled => return settled,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.store.rewind(&session.id, epoch, to, by).await
    }

    /// Agents on other nodes are fenced by now. A wake-up has their nodes load them again at once.
    async fn reload_elsewhere(&self, agents: &[AgentRecord]) {
        for some in agents.chunks(AT_ONCE) {
            let wakes = some.iter().filter_map(|agent| {
                let node = agent.node.as_ref()?;
                Some(async move {
                    let wake = Wake::look(&agent.session, &agent.id);
                    self.peers.wake(node, &wake).await
                })
            });
            for refusal in future::join_all(wakes)
                .await
                .into_iter()
                .filter_map(Result::err)
            {
                tracing::debug!(%refusal, "a node was not told of the rewind; it finds its agents fenced");
            }
        }
    }

    /// Refuses a rewind that cannot be carried out before anything is aborted for it.
    async fn check_message(&self, session: &SessionRecord, id: Seq) -> Result<(), Refusal> {
        let page = self.store.events(&session.id, id.max(1), 1, None).await?;
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
            let page = match self.store.events(&session.id, from, PAGE, None).await {
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

    /// Subscribers get an end like that of any other turn. Whether it is hidden, only the log
    /// tells.
    fn publish_as_written(&self, event: Envelope) {
        self.bus.publish_event(Published {
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
