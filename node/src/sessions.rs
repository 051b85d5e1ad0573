//! The operations that clients and agents request on sessions: starting and resuming a session,
//! accepting a prompt, notifying an agent of an input, rewinding, aborting, stopping and deleting.
//! Clients can request each operation from any node. That node asks another node for what only the
//! other node can do.

mod outcome;
mod prompt;
mod reach;
mod rewind;
mod start;
mod waits;
mod work;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::future;
use outcome::unknown_work;
use planck_common::{
    AgentId, InputId, NodeId, SessionId,
    command::{AbortSession, Aborted, AgentState, MOST_ABORT_MS, RemovedCounts, SessionVerb},
    event::json,
    reply::Refusal,
    spec::SessionLimits,
    subject::Address,
};
use planck_store::{AgentRecord, SessionRecord, WorkRows};
use reach::{MemberPlaces, RELAY, without_host};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use work::AbortedWork;

use crate::{
    actor::{AT_ONCE, Waiters},
    agent::Command,
    handles::ServiceHandles,
    placement::Placement,
    takeover::Takeover,
    team::TeamLibrary,
    team_registry::TeamRegistry,
};

pub use outcome::read_outcome;
pub use prompt::{PromptTarget, checked_author};
pub use reach::{AgentHost, CommandOrigin};
pub use waits::store_answer;

/// The operations on sessions and their agents.
pub struct Sessions {
    handles: ServiceHandles,
    teams: Arc<TeamRegistry>,
    placement: Arc<Placement>,
    takeover: Arc<Takeover>,
    library: Arc<TeamLibrary>,
    limits: SessionsLimits,
    waiting: Waiting,
}

/// The callers on this node that wait.
struct Waiting {
    /// Those that wait for the outcome of an input.
    inputs: Waiters<InputId>,
    /// Those that wait for the end of work in a session.
    works: Waiters<SessionId>,
    /// The places for callers that wait for the end of work.
    places: Semaphore,
    /// Cancelled when the node leaves. From then on no caller waits for the end of work.
    leaving: CancellationToken,
}

/// The limits that the configuration sets for sessions.
#[derive(Debug, Clone)]
pub struct SessionsLimits {
    /// The default limits of a session.
    pub session: SessionLimits,
    /// The maximum size of a prompt, in bytes of JSON.
    pub max_prompt: u64,
}

impl Sessions {
    pub fn new(
        handles: ServiceHandles,
        teams: Arc<TeamRegistry>,
        placement: Arc<Placement>,
        takeover: Arc<Takeover>,
        library: Arc<TeamLibrary>,
        limits: SessionsLimits,
    ) -> Self {
        Self {
            handles,
            teams,
            placement,
            takeover,
            library,
            limits,
            waiting: Waiting {
                inputs: Waiters::default(),
                works: Waiters::default(),
                places: Semaphore::new(outcome::MOST_WAITING),
                leaving: CancellationToken::new(),
            },
        }
    }

    /// Returns the callers on this node that wait for the outcome of an input.
    pub fn waiters(&self) -> &Waiters<InputId> {
        &self.waiting.inputs
    }

    /// Tells the callers that wait for the end of work in a session that some of it has ended.
    pub fn some_work_ended(&self, session: &SessionId) {
        self.waiting.works.settle(session);
    }

    /// Closes a session, and removes it with its log.
    pub async fn delete(
        &self,
        session: &SessionRecord,
        reason: &str,
    ) -> Result<RemovedCounts, Refusal> {
        self.takeover.close(session, reason).await?;
        Ok(self.handles.store.delete(&session.id).await?)
    }
}

/// For how long turns are aborted that begin because others were aborted.
const WITHIN: Duration = Duration::from_millis(MOST_ABORT_MS);
/// The time after which the work is looked at again. A turn may begin meanwhile.
const AGAIN: Duration = Duration::from_millis(50);

impl Sessions {
    /// Aborts the running turns of a session. If another node asks, does so on this node only. If a
    /// client asks, does so on all nodes, and ends the [work](AbortedWork) to which the turns belong.
    /// Returns the agents that had a running turn at first.
    pub async fn abort(
        &self,
        session: &SessionRecord,
        AbortSession { reason, prompt_id }: AbortSession,
        origin: CommandOrigin,
    ) -> Result<Vec<AgentId>, Refusal> {
        let (reason, prompt) = (reason.as_deref(), prompt_id.as_ref());
        if origin == CommandOrigin::Peer {
            return self.abort_turns(session, reason, origin).await;
        }
        let mut work = AbortedWork::of(&self.work_of(session, prompt).await?);
        let began = Instant::now();
        let aborted = self.abort_turns(session, reason, origin).await?;
        while began.elapsed() < WITHIN {
            let rows = self.work_of(session, prompt).await?;
            let Some(agents) = work.running(&rows) else {
                break;
            };
            for agent in agents {
                let agent = self.handles.lookup.agent(&agent).await?;
                self.abort_agent(&agent, reason.map(str::to_owned)).await?;
            }
            sleep(AGAIN).await;
        }
        Ok(aborted)
    }

    async fn work_of(
        &self,
        session: &SessionRecord,
        prompt: Option<&InputId>,
    ) -> Result<WorkRows, Refusal> {
        let rows = self.handles.store.work(&session.id, prompt).await?;
        rows.ok_or_else(|| unknown_work(session, prompt))
    }

    /// Aborts the running turns of a session. For a client, agents with an open turn and without a
    /// living host are taken over first. Returns the agents that had a running turn. If some cannot be
    /// reached, the others are still aborted, and the call fails afterwards.
    async fn abort_turns(
        &self,
        session: &SessionRecord,
        reason: Option<&str>,
        origin: CommandOrigin,
    ) -> Result<Vec<AgentId>, Refusal> {
        let places = match origin {
            CommandOrigin::Client => self.reached_members(session).await?,
            CommandOrigin::Peer => {
                let places = self.places(&session.id).await?;
                MemberPlaces {
                    here: places.here,
                    ..MemberPlaces::default()
                }
            }
        };
        let (aborted, also) = tokio::join!(
            self.abort_here(&places.here, reason),
            self.abort_elsewhere(session, reason, &places.nodes),
        );
        let also = also?;
        match places.lost {
            Some(lost) => Err(without_host(&lost)),
            None => Ok(aborted.into_iter().chain(also).collect()),
        }
    }

    async fn abort_here(&self, agents: &[AgentRecord], reason: Option<&str>) -> Vec<AgentId> {
        let mut aborted = Vec::new();
        for some in agents.chunks(AT_ONCE) {
            let aborts = some.iter().map(|agent| self.abort_if_busy(agent, reason));
            aborted.extend(future::join_all(aborts).await.into_iter().flatten());
        }
        aborted
    }

    /// Asks other nodes to abort the session's running turns. If one node fails, the others are
    /// still asked, and the call fails afterwards.
    async fn abort_elsewhere(
        &self,
        session: &SessionRecord,
        reason: Option<&str>,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<Vec<AgentId>, Refusal> {
        let mut aborts = Vec::with_capacity(nodes.len());
        for node in nodes {
            aborts.push(self.abort_on(node, session, reason));
        }
        let answers: Result<Vec<Vec<AgentId>>, Refusal> =
            future::join_all(aborts).await.into_iter().collect();
        Ok(answers?.into_iter().flatten().collect())
    }

    async fn abort_on(
        &self,
        node: &NodeId,
        session: &SessionRecord,
        reason: Option<&str>,
    ) -> Result<Vec<AgentId>, Refusal> {
        self.check_reachable(Some(node)).await?;
        let address = Address::session(&session.id, SessionVerb::Abort.name());
        let because = json(&AbortSession {
            reason: reason.map(str::to_owned),
            prompt_id: None,
        });
        let answer: Aborted = self
            .handles
            .peers
            .relay(node, &address, because.as_bytes(), RELAY)
            .await?;
        Ok(answer.aborted)
    }

    /// Aborts the agent's turn, if it has one. An agent without a task either is idle or waits for
    /// answers from outside, and its record says which. Only the one that waits is loaded.
    async fn abort_if_busy(&self, agent: &AgentRecord, reason: Option<&str>) -> Option<AgentId> {
        let id = &agent.id;
        if agent.state == AgentState::Idle && self.handles.host.is_at_rest(id) {
            return None;
        }
        if self.handles.host.info(id).await.ok()?.state == AgentState::Idle {
            return None;
        }
        let reason = reason.map(str::to_owned);
        let aborted = self
            .handles
            .host
            .command(id, Command::Abort { reason })
            .await;
        aborted.ok().map(|_| id.clone())
    }
}

#[cfg(test)]
mod tests;
