//! The leases: which node may write for an agent. Each lease has an epoch that rises whenever the
//! lease changes hands.

use async_trait::async_trait;
use planck_common::{AgentId, NodeId, Seq, SessionId};

use super::{LeadIncarnation, StoreError};

/// Claims and releases leases, and finds agents that no living node runs.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes the lease of an agent on condition that its epoch is still `seen`. The store then
    /// refuses every write under the former holder's epoch.
    ///
    /// Returns `None` if the epoch is no longer `seen`, if the orchestrator does not have the
    /// incarnation that `claim` names, or if a `Lead` claim names an agent that is not the
    /// orchestrator. If the answer to a claim was lost, the node repeats the claim with the same
    /// `seen` and gets the lease that it already took.
    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: LeaseClaim,
        node: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError>;

    /// Releases leases of one session with one statement, and returns the result of each release.
    /// A release raises the epoch by one, removes the holder, and makes an agent that is neither
    /// stopped nor waiting idle. With `stopped`, the agent is stopped permanently instead, and its
    /// inputs without an outcome get the outcome `stopped`. The result is `StaleEpoch` if the lease
    /// has another epoch, except that a release may be repeated until a node claims the lease.
    async fn release_all(
        &self,
        session: &SessionId,
        releases: &[LeaseRelease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError>;

    /// Releases one lease, as described at [`Self::release_all`].
    async fn release(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        let release = LeaseRelease {
            agent: agent.clone(),
            epoch,
            stopped,
        };
        only_result(self.release_all(session, &[release]).await?)
    }

    /// Returns two kinds of agents: those whose lease is held by a node that is not in `alive`, and
    /// those that have unread inputs or an answered wait, are not stopped, and have a lease that is
    /// free or held by a node in `alive`. The second kind is included because the wake-up for an
    /// input or an answer may have been lost. It may lack agents of other nodes in `alive`, which
    /// their own sweeps return.
    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError>;

    /// Returns the agents whose leases a node holds.
    async fn held_by(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError>;

    /// Returns the agents of these sessions whose leases a node holds.
    async fn held_in(
        &self,
        node: &NodeId,
        sessions: &[SessionId],
    ) -> Result<Vec<Stray>, StoreError>;

    /// Returns whether the process of a node is running, or `None` if the store cannot tell. SQLite
    /// can tell by the node's lock file.
    async fn node_lives(&self, _node: &NodeId) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }

    /// Kills the process of a node that left or was declared dead, but only if a signal such as
    /// SIGSTOP has stopped the process. A stopped process could hold a lock of the store for ever.
    /// Returns whether a process was killed. The Postgres store does nothing, because the Postgres
    /// server ends the transactions of an idle connection.
    async fn end_stopped_node(&self, _node: &NodeId) -> Result<bool, StoreError> {
        Ok(false)
    }
}

/// The release of an agent's lease.
#[derive(Debug, Clone)]
pub struct LeaseRelease {
    pub agent: AgentId,
    /// The epoch of the lease.
    pub epoch: i64,
    /// Whether the agent is stopped permanently.
    pub stopped: bool,
}

/// The kind of agent whose lease is claimed.
#[derive(Debug, Clone)]
pub enum LeaseClaim {
    /// The orchestrator. With `after_death`, the claim begins a new incarnation of the team.
    Lead { after_death: bool },
    /// Another member. The claim fails unless the orchestrator still has this incarnation.
    Member(LeadIncarnation),
}

/// The lease that a node got by a claim or by creating the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    pub epoch: i64,
    pub last_seq: Seq,
    /// The incarnation of the team if the agent is the orchestrator, otherwise 0.
    pub incarnation: i64,
}

impl HeldLease {
    /// The first lease of a new member.
    pub const FIRST: Self = Self {
        epoch: 1,
        last_seq: 0,
        incarnation: 0,
    };

    /// Returns this lease if `node` took it by a claim with the epoch `seen` whose answer was lost.
    /// `self` must be the current lease and `holder` its holder.
    pub fn of_lost_claim(self, holder: Option<&NodeId>, seen: i64, node: &NodeId) -> Option<Self> {
        (holder == Some(node) && self.epoch == seen + 1).then_some(self)
    }
}

/// An agent that [`Leases::sweep`] or [`Leases::held_by`] found, with the holder and the epoch of
/// its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    pub session: SessionId,
    pub agent: AgentId,
    pub node: Option<NodeId>,
    pub epoch: i64,
}

/// Returns the result of a statement's only release. Fails if the store returned no result.
fn only_result(mut results: Vec<Result<(), StoreError>>) -> Result<(), StoreError> {
    results.pop().unwrap_or_else(|| {
        let why = "the store returned no result of a release";
        Err(StoreError::Broken(why.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_without_a_result_is_an_error() {
        let released = only_result(Vec::new());
        assert!(
            matches!(released, Err(StoreError::Broken(_))),
            "{released:?}"
        );
    }
}
