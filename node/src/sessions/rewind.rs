//! Rewinds a session: hides a message and everything after it, and loads every agent of the session
//! again with the remaining history.
//!
//! The store rewinds in one statement. The statement also gives an outcome to the inputs of hidden
//! and of open turns, and to unread messages between agents. Unread prompts, and inputs that are
//! accepted later, run normally. The agents on this node pause during the statement, so that
//! everything they wrote earlier is also published earlier.

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
use crate::{actor::AT_ONCE, bus::Published, takeover::Purpose};
use planck_store::{AgentRecord, RewindOutcome, SessionRecord, StoreError};

/// How many times a rewind is sent if its outcome is unknown, and the pause between the attempts.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// The maximum number of events in a page that is read from the log.
const PAGE: u32 = 500;

impl Sessions {
    /// Hides the message with the number `to` and everything after it. Returns the number of the
    /// `rewound` event, which is the new head of the log.
    pub async fn rewind(&self, session: &SessionRecord, to: Seq, by: &str) -> Result<Seq, Refusal> {
        self.check_message(session, to).await?;
        let guard = self.takeover.lock(&session.id).await?;
        let purpose = Purpose::Work {
            reason: "to be rewound",
            may_open: true,
        };
        let lead = self
            .takeover
            .take_over_here(session, purpose, &guard)
            .await?;
        let mut elsewhere = self.handles.lookup.members(&session.id).await?;
        elsewhere.retain(|agent| self.placement.other_host(agent).is_some());
        let held = self
            .handles
            .host
            .hold(&self.handles.host.agents(Some(&session.id)))
            .await;
        let before = self.handles.store.head(&session.id).await?;
        let rewound = self.rewind_stored(session, lead.epoch, to, by).await?;
        self.publish_rewound(session, before, &rewound).await;
        self.reload_here(&rewound);
        drop(held);
        self.reload_elsewhere(&elsewhere).await;
        Ok(rewound.head)
    }

    /// Loads the agents on this node again, with the remaining history. Drops the agents that the
    /// rewind stopped.
    fn reload_here(&self, rewound: &RewindOutcome) {
        for (agent, epoch) in &rewound.agents {
            if rewound.stopped.contains(agent) {
                self.handles.host.drop_agent(agent);
            } else if let Some(hosting) = self.handles.host.hosting(agent) {
                self.reload(hosting, *epoch);
            }
        }
    }

    /// Sends the rewind to the store, up to [`TRIES`] times while its outcome is unknown. The store
    /// performs the rewind only once.
    async fn rewind_stored(
        &self,
        session: &SessionRecord,
        epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<RewindOutcome, StoreError> {
        for _ in 1..TRIES {
            match self.handles.store.rewind(&session.id, epoch, to, by).await {
                Err(StoreError::Away(reason)) => {
                    tracing::debug!(session = %session.id, reason, "the outcome of the rewind is unknown; sending it again")
                }
                settled => return settled,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.handles.store.rewind(&session.id, epoch, to, by).await
    }

    /// Notifies other nodes to load their agents again. The store already refuses the writes of
    /// these agents, so the notification only makes their nodes notice earlier.
    async fn reload_elsewhere(&self, agents: &[AgentRecord]) {
        for some in agents.chunks(AT_ONCE) {
            let wakes = some.iter().filter_map(|agent| {
                let node = agent.node.as_ref()?;
                Some(async move {
                    let wake = Wake::look(&agent.session, &agent.id);
                    self.handles.peers.wake(node, &wake).await
                })
            });
            for refusal in future::join_all(wakes)
                .await
                .into_iter()
                .filter_map(Result::err)
            {
                tracing::debug!(%refusal, "cannot inform a node of the rewind; it finds its agents fenced");
            }
        }
    }

    /// Refuses a rewind to a row that is not a visible message, before any running turn is aborted.
    async fn check_message(&self, session: &SessionRecord, id: Seq) -> Result<(), Refusal> {
        let page = self
            .handles
            .store
            .events(&session.id, id.max(1), 1, None)
            .await?;
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

    /// Publishes the events that the rewind wrote, in the order of the log: the ends of open calls
    /// and turns, and `rewound`. A subscriber that misses one can read it from the log.
    async fn publish_rewound(&self, session: &SessionRecord, before: Seq, rewound: &RewindOutcome) {
        let epochs: HashMap<&AgentId, i64> = rewound
            .agents
            .iter()
            .map(|(agent, epoch)| (agent, *epoch))
            .collect();
        let mut from = before + 1;
        while from <= rewound.head {
            let page = match self
                .handles
                .store
                .events(&session.id, from, PAGE, None)
                .await
            {
                Ok(page) => page,
                Err(error) => {
                    return tracing::warn!(session = %session.id, %error, "cannot publish the rewind; readers find it in the log");
                }
            };
            for event in page
                .events
                .iter()
                .filter_map(|event| serde_json::from_str::<Envelope>(event.get()).ok())
            {
                // Between the read of `before` and the rewind, agents on other nodes may have
                // written events under their old epochs.
                if event.seq <= Some(rewound.head)
                    && epochs.get(&event.agent_id) == Some(&event.epoch)
                {
                    self.publish_as_written(event);
                }
            }
            from = page.next;
        }
    }

    /// Publishes an event without marking it as hidden. Only the log shows that a rewind hides it.
    fn publish_as_written(&self, event: Envelope) {
        self.handles.bus.publish_event(Published {
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
