//! Rewind: hides a message and all after it, and starts every agent of the session from what is left.

use bytes::Bytes;
use futures_util::future;
use planck_common::{Seq, envelope::Envelope, event::EventKind, reply::Refusal};

use super::{claim::Purpose, close::AT_ONCE, deliver::wake, elsewhere::Hop};
use crate::{
    actor::{Hosting, Opening},
    agent::OpenTurn,
    bus::Published,
    node::Node,
    store::{AgentRecord, SessionRecord},
};

impl Node {
    /// The log's head after the rewind, which is the `rewound` event.
    pub(crate) async fn rewind(&self, session: &SessionRecord, to: Seq, by: &str) -> Result<Seq, Refusal> {
        self.check_message(session, to).await?;
        let alone = self.host().alone(&session.id).await?;
        let lead = self.take_up_here(session, Purpose::Work("to be rewound"), &alone).await?;
        self.abort_session(session, Hop::First).await?;
        let rewound = self.store().rewind(&session.id, lead.epoch, to, by).await?;
        let there: Vec<AgentRecord> =
            self.members(&session.id).await?.into_iter().filter(|agent| self.elsewhere(agent).is_some()).collect();
        for (agent, epoch) in &rewound.agents {
            if rewound.unborn.contains(agent) {
                self.host().drop_agent(agent);
                self.store().release(&session.id, agent, *epoch, true).await?;
            } else if let Some(hosting) = self.host().hosting(agent) {
                let opening = Opening { open_turn: OpenTurn::Close, ..Opening::default() };
                self.host().start(Hosting { epoch: *epoch, opening, ..hosting });
            }
        }
        self.reload_there(&there).await;
        self.tell_rewound(session, rewound.head).await?;
        Ok(rewound.head)
    }

    /// Agents on other nodes are fenced by now; a word lets their nodes load them anew at once.
    async fn reload_there(&self, agents: &[AgentRecord]) {
        for some in agents.chunks(AT_ONCE) {
            let words = some.iter().filter_map(|agent| {
                let node = agent.node.as_ref()?;
                Some(self.send_wake(node, wake(&agent.session, &agent.id)))
            });
            for refusal in future::join_all(words).await.into_iter().filter_map(Result::err) {
                tracing::debug!(%refusal, "a node was not told of the rewind; it finds its agents fenced");
            }
        }
    }

    /// Nothing is aborted for a rewind that cannot be.
    async fn check_message(&self, session: &SessionRecord, id: Seq) -> Result<(), Refusal> {
        let page = self.store().events(&session.id, id.max(1), 1, None).await?;
        let row = page.events.first().and_then(|event| serde_json::from_str::<Envelope>(event.get()).ok());
        let is_message = |row: &Envelope| row.seq == Some(id) && row.kind == EventKind::Message.name() && row.hidden_by.is_none();
        match row.is_some_and(|row| is_message(&row)) {
            true => Ok(()),
            false => Err(Refusal::bad_request(format!("{id} is no message of session {}", session.name))),
        }
    }

    async fn tell_rewound(&self, session: &SessionRecord, seq: Seq) -> Result<(), Refusal> {
        let page = self.store().events(&session.id, seq, 1, None).await?;
        for event in page.events {
            self.bus().publish_event(Published {
                session_id: session.id.clone(),
                agent_id: session.spec.lead.clone(),
                seq: Some(seq),
                payload: Bytes::from(event.get().to_owned()),
            });
        }
        Ok(())
    }
}
