//! Whether a node may cause anything new. It suspends itself rather than be wrong; nobody dies of
//! it.

use std::time::Duration;

use super::effect::{Doubt, Effect};
use crate::cluster::moment::Moment;

/// How often a suspended node asks SQL which leases are still its own.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long SQL may be silent to a suspended node before its tools are killed.
const SQL_SILENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Suspended {
    next_check: Moment,
    sql_heard: Moment,
    tools_killed: bool,
}

#[derive(Debug)]
pub struct Fence {
    suspended: Option<Suspended>,
    /// What was written or proved before this says nothing: its own heartbeats did not come back
    /// then, or it was suspended.
    doubted: Moment,
}

impl Fence {
    /// A node begins suspended: it has proved nothing yet.
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

    pub fn suspend(&mut self, now: Moment, why: Doubt) -> Option<Effect> {
        if self.is_suspended() {
            return None;
        }
        (self.suspended, self.doubted) = (Some(Suspended::since(now)), now);
        Some(Effect::Suspend { why })
    }

    pub fn resume(&mut self) -> Option<Effect> {
        self.suspended.take().map(|_| Effect::Resume)
    }

    pub fn leases_checked(&mut self, asked_at: Moment) {
        if let Some(suspended) = &mut self.suspended {
            suspended.sql_heard = suspended.sql_heard.max(asked_at);
        }
    }

    /// What a suspended node does about what still runs on it.
    pub fn watch_over_leases(&mut self, now: Moment, alone: bool, out: &mut Vec<Effect>) {
        let Some(suspended) = &mut self.suspended else {
            return;
        };
        if now >= suspended.next_check {
            suspended.next_check = now + CHECK_EVERY;
            out.push(Effect::CheckLeases { asked_at: now });
        }
        if !alone && !suspended.tools_killed && now.since(suspended.sql_heard) >= SQL_SILENCE {
            suspended.tools_killed = true;
            out.push(Effect::KillTools);
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
