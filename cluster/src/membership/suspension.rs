//! The suspension of this node. A suspended node begins no new work, and its running work
//! continues.

use std::time::Duration;

use super::effect::{MembershipEffect, SuspensionCause};
use crate::moment::Moment;

/// How often a suspended node reads in SQL which leases are still its own.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a suspended node waits for SQL before it kills its tools.
pub(crate) const SQL_SILENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Suspended {
    next_check: Moment,
    sql_heard: Moment,
    tools_killed: bool,
}

#[derive(Debug)]
pub struct Suspension {
    suspended: Option<Suspended>,
    /// When the node last suspended itself, or last missed its own heartbeats. A write or proof
    /// from before this moment does not show that the node may work.
    doubted: Moment,
}

impl Suspension {
    /// Returns the state of a new node, which is suspended because it has no proof yet.
    pub fn new(now: Moment) -> Self {
        Self {
            suspended: Some(Suspended::since(now)),
            doubted: now,
        }
    }

    pub fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    pub fn doubted(&self) -> Moment {
        self.doubted
    }

    pub fn doubt(&mut self, now: Moment) {
        self.doubted = now;
    }

    pub fn suspend(&mut self, now: Moment, why: SuspensionCause) -> Option<MembershipEffect> {
        if self.is_suspended() {
            return None;
        }
        (self.suspended, self.doubted) = (Some(Suspended::since(now)), now);
        Some(MembershipEffect::Suspend { why })
    }

    pub fn resume(&mut self) -> Option<MembershipEffect> {
        self.suspended.take().map(|_| MembershipEffect::Resume)
    }

    pub fn leases_checked(&mut self, asked_at: Moment) {
        if let Some(suspended) = &mut self.suspended {
            suspended.sql_heard = suspended.sql_heard.max(asked_at);
        }
    }

    /// Requests regular checks of the leases while the node is suspended. If SQL does not answer
    /// for `SQL_SILENCE` and the node has peers, requests once that the node kills its tools.
    pub fn watch_over_leases(&mut self, now: Moment, alone: bool, out: &mut Vec<MembershipEffect>) {
        let Some(suspended) = &mut self.suspended else {
            return;
        };
        if now >= suspended.next_check {
            suspended.next_check = now + CHECK_EVERY;
            out.push(MembershipEffect::CheckLeases { asked_at: now });
        }
        if !alone && !suspended.tools_killed && now.since(suspended.sql_heard) >= SQL_SILENCE {
            suspended.tools_killed = true;
            out.push(MembershipEffect::KillTools);
        }
    }

    pub fn deadline(&self) -> Option<Moment> {
        self.suspended
            .as_ref()
            .map(|suspended| suspended.next_check)
    }
}

impl Suspended {
    fn since(now: Moment) -> Self {
        Self {
            next_check: now,
            sql_heard: now,
            tools_killed: false,
        }
    }
}
