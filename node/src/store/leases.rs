//! The leases: which node may write for an agent, by an epoch that rises with each change of
//! hands.

use async_trait::async_trait;
use planck_common::{AgentId, NodeId, Seq, SessionId};

use super::{LeadIncarnation, StoreError};

/// Claims, releases and the search for agents that no living node looks after.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Takes the lease of an agent if its epoch is still `seen`. From then on every write of the
    /// former holder is refused, so claiming *is* fencing.
    ///
    /// Returns `None` if another node took the lease first. A claim of this node whose answer was
    /// lost is found again by a second one with the same `seen`.
    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: LeaseClaim,
        node: &NodeId,
    ) -> Result<Option<HeldLease>, StoreError>;

    /// Gives a lease up, which raises the epoch by one and leaves the agent without a holder.
    /// `stopped` ends the agent for good: its inputs without an outcome get the outcome `stopped`.
    /// Releasing twice is harmless.
    async fn release(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        stopped: bool,
    ) -> Result<(), StoreError>;

    /// Returns the agents that are leased to nodes which are not among `alive`, and the agents with
    /// unread inputs that no node holds, or one of `alive`: the message that wakes the holder may
    /// have been lost.
    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError>;

    /// Returns the agents that a node holds.
    async fn held_by(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError>;

    /// Tells whether the process of a node lives, where the store itself knows: SQLite's lock files
    /// do.
    async fn node_lives(&self, _node: &NodeId) -> Result<Option<bool>, StoreError> {
        Ok(None)
    }

    /// Ends what is left of the process of a node that was declared dead, where that process could
    /// hold locks of the store. On SQLite it is killed.
    async fn end_node(&self, _node: &NodeId) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The lease that is claimed.
#[derive(Debug, Clone)]
pub enum LeaseClaim {
    /// The orchestrator's. `after_death` begins a new incarnation of the team.
    Lead { after_death: bool },
    /// A member's, on condition that the orchestrator still has this incarnation.
    Member(LeadIncarnation),
}

/// The lease that a claim got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLease {
    pub epoch: i64,
    pub last_seq: Seq,
    /// The incarnation of the team where the agent is its orchestrator, else 0.
    pub incarnation: i64,
}

impl HeldLease {
    /// The lease with which a member is created.
    pub const FIRST: Self = Self {
        epoch: 1,
        last_seq: 0,
        incarnation: 0,
    };

    /// Returns this lease, which is the current one, if `node` got it by a claim that named the
    /// epoch `seen` and whose answer was lost.
    pub fn of_lost_claim(self, holder: Option<&NodeId>, seen: i64, node: &NodeId) -> Option<Self> {
        (holder == Some(node) && self.epoch == seen + 1).then_some(self)
    }
}

/// An agent with the holder of its lease, as a sweep finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    pub session: SessionId,
    pub agent: AgentId,
    pub node: Option<NodeId>,
    pub epoch: i64,
}
