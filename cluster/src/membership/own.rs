//! What a node knows about itself: its own record, its link to NATS, its proofs of life, and whether it
//! is suspended.

use std::{collections::VecDeque, time::Duration};

use planck_common::{
    NodeId,
    registry::{NodeStanding, Nonce},
};

use super::{MembershipEffect, Revision, SeenNode, SuspensionCause};
use crate::moment::Moment;

/// How long to wait for an answer about this node's own record.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
enum OwnRecordPhase {
    /// There is no record. The leases were checked, or the node is new and holds none.
    Absent,
    Writing {
        since: Moment,
        until: Moment,
    },
    Reading {
        since: Moment,
        until: Moment,
        /// The revision that was known before the read.
        before: Option<Revision>,
    },
    /// The record is missing. Before the node writes it again, SQL must say which leases the node
    /// still holds.
    CheckingLeases {
        since: Moment,
        until: Moment,
    },
    Held {
        revision: Revision,
        standing: NodeStanding,
    },
}

#[derive(Debug)]
pub struct OwnRecord {
    nonce: Nonce,
    wanted: NodeStanding,
    phase: OwnRecordPhase,
    /// When the latest write that the registry confirmed was requested.
    written: Option<Moment>,
    /// When the latest read that found the record was requested.
    read: Option<Moment>,
}

/// How far a node can trust its own view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SelfTrust {
    None,
    /// The node's heartbeats come back, but it has no recent proof.
    Unproven,
    /// The node's heartbeats come back and it has a recent proof. Its last doubt was at this
    /// moment.
    Since(Moment),
}

/// What a node found when it read its own record.
#[derive(Debug, PartialEq, Eq)]
pub enum OwnRecordState {
    /// The record is at the same revision as before.
    Unmoved,
    /// The record is at another revision.
    Moved,
    Missing,
    /// The record says that the node was declared dead or left.
    Lost(NodeStanding),
}

impl OwnRecord {
    pub fn new(nonce: Nonce) -> Self {
        Self {
            nonce,
            wanted: NodeStanding::Alive,
            phase: OwnRecordPhase::Absent,
            written: None,
            read: None,
        }
    }

    pub fn held(&self) -> Option<Revision> {
        match self.phase {
            OwnRecordPhase::Held { revision, .. } => Some(revision),
            OwnRecordPhase::Absent
            | OwnRecordPhase::Writing { .. }
            | OwnRecordPhase::Reading { .. }
            | OwnRecordPhase::CheckingLeases { .. } => None,
        }
    }

    pub fn is_reading(&self) -> bool {
        matches!(self.phase, OwnRecordPhase::Reading { .. })
    }

    pub fn want(&mut self, standing: NodeStanding) {
        if !self.wanted.is_final() {
            self.wanted = standing;
        }
    }

    pub fn deadline(&self) -> Option<Moment> {
        match self.phase {
            OwnRecordPhase::Writing { until, .. }
            | OwnRecordPhase::Reading { until, .. }
            | OwnRecordPhase::CheckingLeases { until, .. } => Some(until),
            OwnRecordPhase::Absent | OwnRecordPhase::Held { .. } => None,
        }
    }

    /// Returns whether the latest confirmed write of the record was requested at `moment` or later.
    pub fn is_written_since(&self, moment: Moment) -> bool {
        self.written.is_some_and(|written| written >= moment)
    }

    fn is_read_since(&self, trust: SelfTrust) -> bool {
        matches!((trust, self.read), (SelfTrust::Since(doubt), Some(read)) if read >= doubt)
    }

    /// Advances the phase of the record, and returns the effect that the record needs now, if any.
    /// After a doubt, the node writes its record again. A death that an observer decided meanwhile
    /// depends on the old revision and is therefore refused.
    pub fn drive(
        &mut self,
        now: Moment,
        me: &NodeId,
        trust: SelfTrust,
    ) -> Option<MembershipEffect> {
        let is_old = matches!(trust, SelfTrust::Since(doubt) if !self.is_written_since(doubt));
        match self.phase {
            OwnRecordPhase::Absent => (trust != SelfTrust::None).then(|| self.write(now, None)),
            // A registry that lost everything reuses revisions, so `revision` may now be that of
            // this node's death record.
            OwnRecordPhase::Held { revision, .. } if is_old && !self.is_read_since(trust) => {
                Some(self.read(now, me, Some(revision)))
            }
            OwnRecordPhase::Held { revision, standing } if standing != self.wanted || is_old => {
                Some(self.write(now, Some(revision)))
            }
            OwnRecordPhase::Writing { until, .. } if now >= until => Some(self.read(now, me, None)),
            OwnRecordPhase::Reading { until, before, .. } if now >= until => {
                Some(self.read(now, me, before))
            }
            OwnRecordPhase::CheckingLeases { since, until } if now >= until => {
                Some(self.check_leases(now, since))
            }
            OwnRecordPhase::Held { .. }
            | OwnRecordPhase::Writing { .. }
            | OwnRecordPhase::Reading { .. }
            | OwnRecordPhase::CheckingLeases { .. } => None,
        }
    }

    /// Makes a read of the record due, because a write that depends on the record's revision was
    /// refused or has an unknown outcome.
    pub fn question(&mut self, now: Moment) {
        if matches!(
            self.phase,
            OwnRecordPhase::Held { .. } | OwnRecordPhase::Writing { .. }
        ) {
            self.phase = OwnRecordPhase::Reading {
                since: now,
                until: now,
                before: self.held(),
            };
        }
    }

    pub fn written(&mut self, revision: Revision, standing: NodeStanding) {
        if let OwnRecordPhase::Writing { since, .. } = self.phase {
            self.phase = OwnRecordPhase::Held { revision, standing };
            self.written = Some(since);
        }
    }

    pub fn found(&mut self, seen: Option<&SeenNode>, now: Moment) -> OwnRecordState {
        match seen {
            Some(seen) if seen.standing.is_final() => OwnRecordState::Lost(seen.standing),
            Some(seen) if seen.nonce == self.nonce => {
                if let OwnRecordPhase::Reading { since, .. } = self.phase {
                    self.read = Some(since);
                }
                let moved = !matches!(self.phase, OwnRecordPhase::Reading { before, .. } if before == Some(seen.revision));
                self.phase = OwnRecordPhase::Held {
                    revision: seen.revision,
                    standing: seen.standing,
                };
                if moved {
                    OwnRecordState::Moved
                } else {
                    OwnRecordState::Unmoved
                }
            }
            // No other process has this node's id, so a record of another process counts as
            // missing. A node that never wrote its record never worked, so it holds no leases. While
            // it joins, nothing would check them either.
            Some(_) | None => {
                self.phase = match self.written {
                    None => OwnRecordPhase::Absent,
                    Some(_) => OwnRecordPhase::CheckingLeases {
                        since: now,
                        until: now,
                    },
                };
                OwnRecordState::Missing
            }
        }
    }

    pub fn leases_checked(&mut self, asked_at: Moment) {
        if matches!(self.phase, OwnRecordPhase::CheckingLeases { since, .. } if asked_at >= since) {
            self.phase = OwnRecordPhase::Absent;
        }
    }

    fn write(&mut self, now: Moment, expects: Option<Revision>) -> MembershipEffect {
        self.phase = OwnRecordPhase::Writing {
            since: now,
            until: now + PATIENCE,
        };
        MembershipEffect::Write {
            standing: self.wanted,
            expects,
        }
    }

    fn read(&mut self, now: Moment, me: &NodeId, before: Option<Revision>) -> MembershipEffect {
        self.phase = OwnRecordPhase::Reading {
            since: now,
            until: now + PATIENCE,
            before,
        };
        MembershipEffect::Read { node: me.clone() }
    }

    fn check_leases(&mut self, now: Moment, since: Moment) -> MembershipEffect {
        self.phase = OwnRecordPhase::CheckingLeases {
            since,
            until: now + PATIENCE,
        };
        MembershipEffect::CheckLeases { asked_at: now }
    }
}

// This node's link to NATS: the heartbeats that it sent, and which of them came back.

/// The maximum number of sent heartbeats whose return the node awaits. It forgets older ones.
const AWAITED: usize = 64;

#[derive(Debug)]
pub struct OwnLink {
    every: Duration,
    seq: u64,
    next: Moment,
    sent: VecDeque<(u64, Moment)>,
    echo: Option<Moment>,
    steady_since: Option<Moment>,
}

impl OwnLink {
    pub fn new(every: Duration, now: Moment) -> Self {
        Self {
            every,
            seq: 0,
            next: now,
            sent: VecDeque::new(),
            echo: None,
            steady_since: None,
        }
    }

    /// Begins the next heartbeat if one is due, and returns its sequence number.
    pub fn beat(&mut self, now: Moment) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.seq += 1;
        self.next = now + self.every;
        self.sent.push_back((self.seq, now));
        if self.sent.len() > AWAITED {
            self.sent.pop_front();
        }
        Some(self.seq)
    }

    pub fn next_beat(&self) -> Moment {
        self.next
    }

    /// Returns when the newest heartbeat that came back was *sent*, so that its age includes the
    /// travel time.
    pub fn echo(&self) -> Option<Moment> {
        self.echo
    }

    pub fn echo_age(&self, now: Moment) -> Option<Duration> {
        self.echo.map(|echo| now.since(echo))
    }

    pub fn came_back(&mut self, seq: u64, now: Moment) {
        let Some(sent_at) = self
            .sent
            .iter()
            .find(|(sent, _)| *sent == seq)
            .map(|(_, at)| *at)
        else {
            return;
        };
        self.sent.retain(|(sent, _)| *sent > seq);
        self.echo = self.echo.max(Some(sent_at));
        self.steady_since.get_or_insert(now);
    }

    /// Ends the period of steady heartbeats if the newest one that came back is older than `gap`. A
    /// pause of the process also counts as a gap.
    pub fn notice_gap(&mut self, now: Moment, gap: Duration) {
        if self.echo_age(now).is_none_or(|age| age > gap) {
            self.steady_since = None;
        }
    }

    /// Returns since when own heartbeats have come back without a gap.
    pub fn steady_since(&self) -> Option<Moment> {
        self.steady_since
    }
}

// Proofs of life: writes that the registry accepts only while this node's record is unchanged.

/// The proofs that this node writes.
#[derive(Debug)]
pub struct Proofs {
    every: Duration,
    last_sent: Option<Moment>,
    in_flight: Option<Moment>,
    newest: Option<Moment>,
}

impl Proofs {
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            last_sent: None,
            in_flight: None,
            newest: None,
        }
    }

    /// Returns whether a proof must be sent now. A proof from before `doubt` does not end that
    /// doubt, so the next one is due as soon as none is in flight.
    pub fn is_due(&self, now: Moment, doubt: Option<Moment>) -> bool {
        let Some(last) = self.last_sent else {
            return true;
        };
        let in_turn = now >= last + self.every;
        let wanted = self.in_flight.is_none() && doubt.is_some_and(|doubt| last < doubt);
        in_turn || wanted
    }

    pub fn next(&self) -> Option<Moment> {
        self.last_sent.map(|last| last + self.every)
    }

    pub fn sent(&mut self, now: Moment) {
        (self.last_sent, self.in_flight) = (Some(now), Some(now));
    }

    pub fn committed(&mut self, sent_at: Moment) {
        self.newest = self.newest.max(Some(sent_at));
        self.answered(sent_at);
    }

    /// Handles the answer to a proof. Returns whether that proof was the one in flight.
    pub fn answered(&mut self, sent_at: Moment) -> bool {
        let awaited = self.in_flight == Some(sent_at);
        if awaited {
            self.in_flight = None;
        }
        awaited
    }

    /// Returns when the newest accepted proof was sent.
    pub fn newest(&self) -> Option<Moment> {
        self.newest
    }

    pub fn is_younger(&self, than: Duration, now: Moment) -> bool {
        self.newest.is_some_and(|newest| now.since(newest) <= than)
    }

    /// Makes the next proof due at once, because this node's record has a new revision.
    pub fn restart(&mut self) {
        (self.last_sent, self.in_flight) = (None, None);
    }
}

// The suspension of this node. A suspended node begins no new work, and its running work
// continues.

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
