//! The bounded queue of publications. If the queue is full or the link is down for too long, all
//! waiting publications are dropped, and a head is published for each session that lost some.

use std::{collections::HashSet, mem, time::Duration};

use bytes::Bytes;
use planck_common::{
    AgentId, Seq, SessionId,
    envelope::SessionHead,
    event::json,
    subject::{Prefix, Topic},
};
use tokio::time::Instant;

use super::{Published, heads::Heads};

/// How many publications may wait, and how long.
#[derive(Debug, Clone, Copy)]
pub struct OutboxLimits {
    /// The maximum number of waiting publications.
    pub count: usize,
    /// The maximum total size of the waiting publications in bytes.
    pub bytes: usize,
    /// How long publications are held so that they are written together.
    pub window: Duration,
    /// How long publications are kept while the link is down.
    pub patience: Duration,
}

impl Default for OutboxLimits {
    fn default() -> Self {
        Self {
            count: 65_536,
            bytes: 32 * 1024 * 1024,
            window: Duration::from_millis(5),
            patience: Duration::from_secs(2),
        }
    }
}

/// One publication.
#[derive(Debug, Clone)]
pub enum Publication {
    Plain { subject: String, payload: Bytes },
    Event(Published),
    Head(SessionId, Seq),
}

impl Publication {
    fn bytes(&self) -> usize {
        match self {
            Self::Plain { payload, .. } => payload.len(),
            Self::Event(event) => event.payload.len(),
            Self::Head(..) => 0,
        }
    }

    /// Returns the NATS messages that make up the publication.
    pub fn messages(self, prefix: &Prefix) -> impl Iterator<Item = (String, Bytes)> + use<> {
        let (first, second) = match self {
            Self::Plain { subject, payload } => ((prefix.on(subject), payload), None),
            Self::Event(Published {
                session_id,
                agent_id,
                payload,
                ..
            }) => (
                (prefix.on(Topic::Agent(&agent_id)), payload.clone()),
                Some((prefix.on(Topic::Session(&session_id)), payload)),
            ),
            Self::Head(session, seq) => {
                let subject = prefix.on(Topic::Session(&session));
                (
                    (subject, json(&SessionHead::new(session, seq)).into()),
                    None,
                )
            }
        };
        [Some(first), second].into_iter().flatten()
    }
}

/// The queue and the heads, without a clock or a connection.
#[derive(Debug)]
pub struct Outbox {
    limits: OutboxLimits,
    waiting: Vec<Publication>,
    bytes: usize,
    /// When the oldest waiting publication was queued, or `None` if none waits.
    since: Option<Instant>,
    /// The time when the link went down, or `None` if it is up.
    away: Option<Instant>,
    hurry: bool,
    heads: Heads,
    dropped: u64,
}

impl Outbox {
    pub fn new(limits: OutboxLimits) -> Self {
        Self {
            limits,
            waiting: Vec::new(),
            bytes: 0,
            since: None,
            away: None,
            hurry: false,
            heads: Heads::default(),
            dropped: 0,
        }
    }

    /// Adds a publication. Drops all waiting publications, this one included, if they are too many
    /// or too large, or if the link has been down for `patience`. Returns `true` if the publisher
    /// must be woken.
    pub fn push(&mut self, item: Publication, now: Instant) -> bool {
        if let Publication::Event(event) = &item {
            self.heads.record_event(&event.session_id, event.seq, now);
        }
        self.bytes += item.bytes();
        self.waiting.push(item);
        if self.waiting.len() > self.limits.count
            || self.bytes > self.limits.bytes
            || self.has_lost_patience(now)
        {
            self.forget(now);
        }
        let first = self.since.is_none();
        self.since.get_or_insert(now);
        first
    }

    /// Records that a turn was opened or closed.
    pub fn turn(&mut self, session: &SessionId, agent: &AgentId, open: bool, now: Instant) {
        self.heads.turn(session, agent, open, now);
    }

    /// Makes the waiting publications due now, without waiting for the rest of the window.
    pub fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Records that the link is down. Drops all waiting publications if the link has been down for
    /// [`OutboxLimits::patience`].
    pub fn link_down(&mut self, now: Instant) {
        self.away.get_or_insert(now);
        self.hurry = false;
        if self.has_lost_patience(now) {
            self.forget(now);
        }
    }

    /// Records that the link is up again after an outage or a reconnect. The heads of all sessions
    /// follow the waiting publications.
    pub fn link_renewed(&mut self, now: Instant) {
        self.away = None;
        self.hurry = true;
        let heads = self.heads.reconnected(now);
        self.waiting.extend(
            heads
                .into_iter()
                .map(|(session, seq)| Publication::Head(session, seq)),
        );
    }

    /// Removes and returns the publications that are due now, in order, followed by the heads that
    /// are due.
    pub fn take(&mut self, now: Instant) -> Vec<Publication> {
        let ripe = self.hurry
            || self
                .since
                .is_some_and(|since| since + self.limits.window <= now);
        let mut batch = if ripe { self.empty() } else { Vec::new() };
        self.hurry &= !ripe;
        batch.extend(
            self.heads
                .due(now)
                .into_iter()
                .map(|(session, seq)| Publication::Head(session, seq)),
        );
        batch
    }

    /// Counts the unwritten rest of a batch as dropped, and makes the heads of its sessions due.
    pub fn drop_unwritten(&mut self, items: impl Iterator<Item = Publication>, now: Instant) {
        self.note_lost(items, now);
    }

    /// Returns when the publisher must act next, or `None` if nothing waits. If the link is down,
    /// the waiting publications must be dropped at that time.
    pub fn next(&self) -> Option<Instant> {
        if let Some(away) = self.away {
            return self.since.map(|_| away + self.limits.patience);
        }
        let ripe = self.since.map(|since| since + self.limits.window);
        ripe.into_iter().chain(self.heads.next()).min()
    }

    /// Returns the number of publications dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns when the oldest waiting publication was queued, or `None` if none waits.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    fn has_lost_patience(&self, now: Instant) -> bool {
        self.away
            .is_some_and(|away| away + self.limits.patience <= now)
    }

    fn empty(&mut self) -> Vec<Publication> {
        self.bytes = 0;
        self.since = None;
        let next = Vec::with_capacity(self.waiting.len().min(1024));
        mem::replace(&mut self.waiting, next)
    }

    fn forget(&mut self, now: Instant) {
        let items = self.empty();
        self.note_lost(items.into_iter(), now);
    }

    fn note_lost(&mut self, items: impl Iterator<Item = Publication>, now: Instant) {
        let mut sessions = HashSet::new();
        for item in items {
            self.dropped += 1;
            match item {
                Publication::Event(Published { session_id, .. })
                | Publication::Head(session_id, _) => sessions.insert(session_id),
                Publication::Plain { .. } => false,
            };
        }
        for session in sessions {
            self.heads.lost(&session, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(session: &str, seq: Option<Seq>) -> Publication {
        Publication::Event(Published {
            session_id: SessionId::parse(session).unwrap(),
            agent_id: AgentId::parse("a").unwrap(),
            seq,
            payload: Bytes::from_static(b"{}"),
        })
    }

    fn wire(items: Vec<Publication>) -> Vec<(String, String)> {
        let prefix = Prefix::default();
        items
            .into_iter()
            .flat_map(|item| item.messages(&prefix))
            .map(|(subject, payload)| (subject, String::from_utf8(payload.to_vec()).unwrap()))
            .collect()
    }

    fn head(session: &str, seq: Seq) -> (String, String) {
        (
            format!("session.{session}"),
            format!(r#"{{"v":1,"type":"head","session_id":"{session}","seq":{seq}}}"#),
        )
    }

    fn small() -> Outbox {
        Outbox::new(OutboxLimits {
            count: 3,
            bytes: 1000,
            ..OutboxLimits::default()
        })
    }

    #[test]
    fn publications_are_held_for_a_window() {
        let (mut outbox, now) = (small(), Instant::now());
        assert!(
            outbox.push(event("s", None), now),
            "the first publication wakes the publisher"
        );
        assert!(!outbox.push(event("s", None), now));
        assert_eq!(outbox.next(), Some(now + Duration::from_millis(5)));
        assert!(outbox.take(now).is_empty());
        let batch = wire(outbox.take(now + Duration::from_millis(5)));
        let subjects: Vec<_> = batch.iter().map(|(subject, _)| subject.as_str()).collect();
        assert_eq!(subjects, ["agent.a", "session.s", "agent.a", "session.s"]);
    }

    #[test]
    fn publications_over_the_limit_are_dropped_and_their_sessions_get_a_head() {
        let (mut outbox, now) = (small(), Instant::now());
        for seq in 1..=4 {
            outbox.push(event("s", Some(seq)), now);
        }
        assert_eq!(outbox.dropped(), 4);
        assert_eq!(wire(outbox.take(now)), [head("s", 4)]);
    }

    #[test]
    fn waiting_bytes_are_bounded() {
        let (mut outbox, now) = (small(), Instant::now());
        let large = Publication::Plain {
            subject: "node.n".into(),
            payload: Bytes::from(vec![0; 1001]),
        };
        outbox.push(large, now);
        assert_eq!((outbox.dropped(), outbox.bytes), (1, 0));
    }

    #[test]
    fn short_outage_drops_nothing() {
        let (mut outbox, now) = (small(), Instant::now());
        outbox.link_down(now);
        outbox.push(event("s", Some(1)), now);
        let back = now + Duration::from_millis(1999);
        outbox.link_renewed(back);
        let batch = wire(outbox.take(back));
        assert_eq!(batch.len(), 3);
        assert_eq!(batch[2], head("s", 1));
    }

    #[test]
    fn long_outage_drops_everything_that_waits() {
        let (mut outbox, now) = (small(), Instant::now());
        outbox.link_down(now);
        outbox.push(event("s", Some(1)), now);
        let late = now + Duration::from_secs(2);
        assert_eq!(outbox.next(), Some(late));
        outbox.link_down(late);
        outbox.push(event("s", Some(2)), late);
        assert_eq!((outbox.dropped(), outbox.waiting.len()), (2, 0));
        outbox.link_renewed(late);
        assert_eq!(wire(outbox.take(late)), [head("s", 2)]);
        let batch = wire(outbox.take(late + Duration::from_secs(1)));
        assert_eq!(
            batch,
            [head("s", 2)],
            "heads are published again for readers that reconnected later"
        );
    }

    #[test]
    fn heads_follow_a_batch_that_was_not_written_completely() {
        let (mut outbox, now) = (small(), Instant::now());
        outbox.push(event("s", Some(1)), now);
        outbox.hurry();
        let batch = outbox.take(now);
        outbox.drop_unwritten(batch.into_iter(), now);
        assert_eq!(wire(outbox.take(now)), [head("s", 1)]);
    }
}
