//! This node's link to NATS: the heartbeats that it sent, and which of them came back.

use std::{collections::VecDeque, time::Duration};

use crate::moment::Moment;

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
