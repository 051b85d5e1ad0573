//! Counts the agents of a host by state, and checks that their threads make progress.

use std::{collections::HashSet, time::Duration};

use super::{Host, slot::SlotStage};

/// The numbers of agents, sessions and inputs on this node.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentCounts {
    pub sessions: usize,
    /// Sessions with an open turn.
    pub active: usize,
    /// Agents with an open turn.
    pub running: usize,
    /// Agents with a task.
    pub live: usize,
    pub resting: usize,
    pub parked: usize,
    /// Inputs that wait for agents in memory.
    pub queued: usize,
}

impl Host {
    /// Counts the agents on this node by state, their sessions, and their queued inputs.
    pub fn counts(&self) -> AgentCounts {
        let activity = &self.0.parts.activity;
        let mut counts = AgentCounts {
            running: activity.running(),
            queued: activity.queued(),
            active: activity.sessions(),
            ..AgentCounts::default()
        };
        let slots = self.slots();
        let mut sessions = HashSet::new();
        for slot in slots.values() {
            sessions.insert(&slot.hosting.session.id);
            match slot.stage {
                SlotStage::Live(_) => counts.live += 1,
                SlotStage::Resting { .. } => counts.resting += 1,
                SlotStage::Parked => counts.parked += 1,
            }
        }
        counts.sessions = sessions.len();
        counts
    }

    /// Returns whether every thread that runs agents completes an empty task within this time.
    pub async fn turns(&self, within: Duration) -> bool {
        self.0.runtimes.turn(within).await
    }
}
