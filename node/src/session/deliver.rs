//! Brings news of an input to whoever holds its agent. The row is in SQL already: a lost wake-up is
//! healed by a sweep.

use std::time::Duration;

use planck_common::{
    AgentId, InputId, NodeId, SessionId,
    command::{Because, SessionState, SessionVerb, Wake},
    event::json,
    reply::{Code, Refusal},
    subject::Address,
};

use super::claim::IfClosed;
use serde::de::IgnoredAny;

use crate::{
    actor::{Hosting, Opening, Verdict, host::NotHere},
    agent::OpenTurn,
    node::Node,
    store::{AgentRecord, NewInput, StoredInput},
};

/// How long the node of a lead has to take up an agent nobody holds.
const ROUSE: Duration = Duration::from_secs(5);

impl Node {
    /// Tells the agent's host of an input that was just put; sees to it that an agent nobody holds
    /// is taken up.
    pub(crate) async fn deliver(
        &self,
        session: &SessionId,
        node: Option<NodeId>,
        input: &NewInput,
    ) -> Result<Verdict, Refusal> {
        if let Ok(verdict) = self.reach(&input.agent, Some(input.clone())).await {
            return Ok(verdict);
        }
        match node {
            Some(node) if node != *self.id() => {
                self.wake_there(&node, session, &input.agent, &input.id)
                    .await
            }
            // Held here by the record, yet not in the host: it is being stopped or started; the
            // sweep finds what waits. So does whoever can take it up when this node cannot now: it
            // leaves, or the database is away.
            Some(_) | None => match self
                .rouse(session, &input.agent, input.sender.is_none(), "prompted")
                .await
            {
                Err(refusal) if refusal.retryable => {
                    tracing::debug!(agent = %input.agent, %refusal, "cannot take the agent up; a sweep will");
                    Ok(Verdict::Taken)
                }
                roused => roused.map(|()| Verdict::Taken),
            },
        }
    }

    /// Wakes agents that got an input from one of this node's.
    pub(crate) async fn wake(&self, session: &SessionId, agent: &AgentId) {
        if self.reach(agent, None).await.is_ok() {
            return;
        }
        let woken = async {
            let record = self.find_agent(agent).await?;
            match self.elsewhere(&record) {
                Some(node) => self.peers().wake(node, &wake(session, agent)).await,
                None => self.rouse(session, agent, false, "woken").await,
            }
        };
        let woken: Result<(), Refusal> = woken.await;
        if let Err(refusal) = woken {
            tracing::debug!(%agent, %refusal, "cannot wake the agent; the sweep will");
        }
    }

    /// Tells an asker on another node that its question has its outcome. A word that is lost is
    /// healed: the asker looks.
    pub(crate) async fn tell_answered(
        &self,
        session: &SessionId,
        asker: &AgentId,
        question: InputId,
    ) {
        let told = async {
            let record = self.find_agent(asker).await?;
            match self.elsewhere(&record) {
                Some(node) => {
                    self.peers()
                        .wake(
                            node,
                            &Wake {
                                answered: Some(question),
                                ..wake(session, asker)
                            },
                        )
                        .await
                }
                None => Ok(()),
            }
        };
        let told: Result<(), Refusal> = told.await;
        if let Err(refusal) = told {
            tracing::debug!(%asker, %refusal, "the asker did not hear of its answer; it looks by itself");
        }
    }

    /// Tells a target on another node that a question was taken back, so that it no longer counts
    /// it.
    pub(crate) async fn tell_withdrawn(&self, target: &AgentRecord, question: &InputId) {
        let _ = match self.elsewhere(target) {
            Some(node) => {
                let word = Wake {
                    input_id: Some(question.clone()),
                    ..wake(&target.session, &target.id)
                };
                self.peers().wake(node, &word).await.is_ok()
            }
            None => self
                .host()
                .withdrawn(&target.id, question.clone())
                .await
                .is_ok(),
        };
    }

    /// What a peer said: something of an agent changed in SQL.
    pub(crate) async fn woken(&self, word: Wake) -> Result<(), Refusal> {
        let Wake {
            session_id,
            agent_id,
            input_id,
            answered,
            exits,
        } = word;
        if let Some(answered) = &answered {
            self.waiters().settle(answered);
            return Ok(());
        }
        if exits {
            return self.tell_exits(&session_id).await;
        }
        let input = match &input_id {
            Some(input) => self.store().input(&session_id, input).await?,
            None => None,
        };
        match self.hear(&agent_id, input).await {
            Ok(Verdict::Taken) => Ok(()),
            Ok(Verdict::Busy) => Err(Refusal::new(Code::Busy, "the agent is busy")),
            Err(gone) => Err(Refusal::not_found(gone.to_string())),
        }
    }

    async fn hear(&self, agent: &AgentId, input: Option<StoredInput>) -> Result<Verdict, NotHere> {
        match input {
            Some(StoredInput {
                input,
                outcome: Some(_),
                ..
            }) => self
                .host()
                .withdrawn(agent, input.id)
                .await
                .map(|()| Verdict::Taken),
            Some(row) => self.reach(agent, Some(row.input)).await,
            None => {
                self.catch_up(agent).await;
                self.reach(agent, None).await
            }
        }
    }

    /// Tells an agent that is here, or on its way in, of an input, or to look for itself.
    async fn reach(&self, agent: &AgentId, input: Option<NewInput>) -> Result<Verdict, NotHere> {
        match self.tell_here(agent, input.clone()).await {
            Err(_) if self.door().ask_for(agent) => Ok(Verdict::Taken),
            // It may have come in just then.
            Err(_) => self.tell_here(agent, input).await,
            told => told,
        }
    }

    async fn tell_here(
        &self,
        agent: &AgentId,
        input: Option<NewInput>,
    ) -> Result<Verdict, NotHere> {
        match input {
            Some(input) => self.host().arrive(agent, input).await,
            None => self.host().look(agent).await.map(|()| Verdict::Taken),
        }
    }

    /// The history of an agent here may have been rewound, or its life ended, by the node of its
    /// lead.
    async fn catch_up(&self, agent: &AgentId) {
        let Some(hosting) = self.host().hosting(agent) else {
            return;
        };
        let Ok(Some(record)) = self.store().find_agent(agent).await else {
            return;
        };
        if record.epoch <= hosting.epoch {
            return;
        }
        if record.is_there() && record.node.as_ref() == Some(self.id()) {
            let opening = Opening {
                open_turn: OpenTurn::Close,
                ..Opening::default()
            };
            self.host().start(Hosting {
                epoch: record.epoch,
                opening,
                ..hosting
            });
        } else {
            self.host().drop_agent(agent);
        }
    }

    /// Sees to it that an agent nobody holds is held: by this node, else by that of its lead. A
    /// closed session is opened only for who prompts it.
    async fn rouse(
        &self,
        session: &SessionId,
        agent: &AgentId,
        may_open: bool,
        reason: &str,
    ) -> Result<(), Refusal> {
        let record = self.find_session(session).await?;
        if record.state == SessionState::Closed && !may_open {
            return Ok(());
        }
        let Some(host) = self.host_of(&record).await? else {
            let if_closed = if may_open {
                IfClosed::Open
            } else {
                IfClosed::Leave
            };
            return self.take_up(&record.id, reason, if_closed).await;
        };
        let (resume, why) = (
            SessionVerb::Resume.name(),
            json(&Because {
                reason: Some(reason.to_owned()),
            }),
        );
        let relayed: Result<IgnoredAny, Refusal> = self
            .peers()
            .relay(
                &host,
                &Address::session(session, resume),
                why.as_bytes(),
                ROUSE,
            )
            .await;
        if let Err(refusal) = relayed {
            tracing::debug!(%agent, %host, %refusal, "the session's host did not take the agent up; its sweep will");
        }
        Ok(())
    }

    async fn wake_there(
        &self,
        node: &NodeId,
        session: &SessionId,
        agent: &AgentId,
        input: &InputId,
    ) -> Result<Verdict, Refusal> {
        match self
            .peers()
            .wake(
                node,
                &Wake {
                    input_id: Some(input.clone()),
                    ..wake(session, agent)
                },
            )
            .await
        {
            Ok(()) => Ok(Verdict::Taken),
            Err(refusal) if refusal.code == Code::Busy => Ok(Verdict::Busy),
            Err(refusal) => {
                tracing::debug!(%agent, %node, %refusal, "the host did not hear the wake-up; the sweep heals it");
                Ok(Verdict::Taken)
            }
        }
    }
}

pub(super) fn wake(session: &SessionId, agent: &AgentId) -> Wake {
    Wake {
        session_id: session.clone(),
        agent_id: agent.clone(),
        input_id: None,
        answered: None,
        exits: false,
    }
}
