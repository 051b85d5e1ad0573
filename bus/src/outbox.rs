//! The bounded queue of publications. If the queue is full or the link is down for too long, all
//! waiting publications are dropped, and a head is published for each session that lost some. The
//! functions read no clock: times are arguments.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    time::Duration,
};

use bytes::Bytes;
use planck_common::{
    AgentId, Seq, SessionId,
    envelope::SessionHead,
    event::json,
    subject::{Prefix, Topic},
};
use tokio::time::Instant;

use super::Published;

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

/// How long after the last durable event the head is published.
pub const SETTLE: Duration = Duration::from_secs(1);
/// The interval at which the head is published while a turn is open.
pub const TICK: Duration = Duration::from_secs(10);
/// How long a session without an open turn is kept, so that its head can be published after a
/// reconnect.
const RECENT: Duration = Duration::from_secs(300);

/// Decides when to publish the heads of sessions, so that readers notice the loss of the last event:
/// the sessions for which this node has published, each with the time of its next check.
#[derive(Debug, Default)]
pub struct Heads {
    sessions: HashMap<SessionId, SessionHeadState>,
    /// One entry per session. An entry may be too early but never too late, so a burst of events
    /// does not move it.
    agenda: BTreeSet<(Instant, SessionId)>,
}

#[derive(Debug)]
struct SessionHeadState {
    /// The number of the latest durable event, or 0 before the first one.
    seq: Seq,
    open: HashSet<AgentId>,
    settle: Option<Instant>,
    tick: Instant,
    forget: Instant,
    scheduled: Instant,
}

impl SessionHeadState {
    fn next(&self) -> Instant {
        let idle = if self.open.is_empty() {
            self.forget
        } else {
            self.tick
        };
        self.settle.map_or(idle, |settle| settle.min(idle))
    }
}

impl Heads {
    /// Records an event of the session. `seq` is the number of a durable event, or `None` for a
    /// live event.
    pub fn record_event(&mut self, session: &SessionId, seq: Option<Seq>, now: Instant) {
        let entry = self.entry(session, now);
        entry.forget = now + RECENT;
        if let Some(seq) = seq {
            entry.seq = entry.seq.max(seq);
            entry.settle = Some(now + SETTLE);
            self.bring_forward(session);
        }
    }

    /// Records that one of the session's agents opened or closed a turn.
    pub fn turn(&mut self, session: &SessionId, agent: &AgentId, open: bool, now: Instant) {
        let entry = self.entry(session, now);
        if open {
            if entry.open.is_empty() {
                entry.tick = now + TICK;
            }
            entry.open.insert(agent.clone());
        } else {
            entry.open.remove(agent);
        }
        entry.forget = now + RECENT;
        self.bring_forward(session);
    }

    /// Records that events of the session were dropped. Its head is due at once, so that readers
    /// fetch what they missed.
    pub fn lost(&mut self, session: &SessionId, now: Instant) {
        self.entry(session, now).settle = Some(now);
        self.bring_forward(session);
    }

    /// Records that the link is up again. Returns the heads of all sessions with a durable event,
    /// which are due now. The heads are due once more after [`SETTLE`], because readers may
    /// reconnect after this node.
    pub fn reconnected(&mut self, now: Instant) -> Vec<(SessionId, Seq)> {
        let ids: Vec<SessionId> = self.sessions.keys().cloned().collect();
        for id in &ids {
            self.entry(id, now).settle = Some(now + SETTLE);
            self.bring_forward(id);
        }
        ids.into_iter()
            .filter_map(|id| Some((id.clone(), self.sessions.get(&id)?.seq)))
            .filter(|(_, seq)| *seq > 0)
            .collect()
    }

    /// Returns when [`Self::due`] must be called next, or `None` if there are no sessions.
    pub fn next(&self) -> Option<Instant> {
        self.agenda.first().map(|(at, _)| *at)
    }

    /// Returns the heads to publish now, schedules the next ones, and forgets idle sessions.
    pub fn due(&mut self, now: Instant) -> Vec<(SessionId, Seq)> {
        let mut told = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some((_, id)) = self.agenda.pop_first() else {
                break;
            };
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            if session.open.is_empty() && session.forget <= now && session.settle.is_none() {
                self.sessions.remove(&id);
                continue;
            }
            if session.next() <= now {
                session.settle = None;
                session.tick = now + TICK;
                if session.seq > 0 {
                    told.push((id.clone(), session.seq));
                }
            }
            session.scheduled = session.next().max(now + Duration::from_millis(1));
            self.agenda.insert((session.scheduled, id));
        }
        told
    }

    fn entry(&mut self, session: &SessionId, now: Instant) -> &mut SessionHeadState {
        self.sessions.entry(session.clone()).or_insert_with(|| {
            let forget = now + RECENT;
            self.agenda.insert((forget, session.clone()));
            SessionHeadState {
                seq: 0,
                open: HashSet::new(),
                settle: None,
                tick: now + TICK,
                forget,
                scheduled: forget,
            }
        })
    }

    fn bring_forward(&mut self, session: &SessionId) {
        let Some(entry) = self.sessions.get_mut(session) else {
            return;
        };
        let next = entry.next();
        if next < entry.scheduled {
            self.agenda.remove(&(entry.scheduled, session.clone()));
            self.agenda.insert((next, session.clone()));
            entry.scheduled = next;
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

#[cfg(test)]
mod head_tests {
    use super::*;

    struct World {
        heads: Heads,
        start: Instant,
        session: SessionId,
    }

    impl World {
        fn new() -> Self {
            Self {
                heads: Heads::default(),
                start: Instant::now(),
                session: SessionId::parse("s").unwrap(),
            }
        }

        fn at(&self, millis: u64) -> Instant {
            self.start + Duration::from_millis(millis)
        }

        fn durable(&mut self, seq: Seq, millis: u64) {
            let now = self.at(millis);
            self.heads.record_event(&self.session, Some(seq), now);
        }

        fn turn(&mut self, agent: &str, open: bool, millis: u64) {
            let now = self.at(millis);
            self.heads
                .turn(&self.session, &AgentId::parse(agent).unwrap(), open, now);
        }

        /// Returns every head published up to `until`, with its time in milliseconds. Calls
        /// [`Heads::due`] only at the times that [`Heads::next`] returns.
        fn run(&mut self, until: u64) -> Vec<(u64, Seq)> {
            let mut told = Vec::new();
            while let Some(at) = self.heads.next().filter(|at| *at <= self.at(until)) {
                let millis = u64::try_from((at - self.start).as_millis()).unwrap();
                told.extend(self.heads.due(at).into_iter().map(|(_, seq)| (millis, seq)));
            }
            told
        }
    }

    #[test]
    fn head_follows_the_last_durable_event() {
        let mut world = World::new();
        for (seq, at) in [(1, 0), (2, 400), (3, 900)] {
            world.durable(seq, at);
        }
        assert_eq!(world.run(60_000), [(1900, 3)]);
    }

    #[test]
    fn head_is_published_every_ten_seconds_while_a_turn_is_open() {
        let mut world = World::new();
        world.turn("a", true, 0);
        world.turn("b", true, 0);
        world.durable(5, 0);
        assert_eq!(world.run(25_000), [(1000, 5), (11_000, 5), (21_000, 5)]);
        world.turn("a", false, 25_000);
        assert_eq!(
            world.run(35_000),
            [(31_000, 5)],
            "the turn of b is still open"
        );
        world.turn("b", false, 35_000);
        assert_eq!(world.run(60_000), []);
    }

    #[test]
    fn session_without_a_durable_event_has_no_head() {
        let mut world = World::new();
        world.turn("a", true, 0);
        assert_eq!(world.run(60_000), []);
    }

    #[test]
    fn head_is_published_at_once_after_a_loss() {
        let mut world = World::new();
        world.durable(5, 0);
        assert_eq!(world.run(2000), [(1000, 5)]);
        world.heads.lost(&world.session, world.at(3000));
        assert_eq!(world.run(10_000), [(3000, 5)]);
    }

    #[test]
    fn every_head_is_published_twice_after_a_reconnect() {
        let mut world = World::new();
        world.durable(5, 0);
        assert_eq!(world.run(2000), [(1000, 5)]);
        let now = world.at(60_000);
        assert_eq!(world.heads.reconnected(now), [(world.session.clone(), 5)]);
        assert_eq!(world.run(100_000), [(61_000, 5)]);
    }

    #[test]
    fn idle_session_is_forgotten() {
        let mut world = World::new();
        world.durable(5, 0);
        assert_eq!(world.run(301_000), [(1000, 5)]);
        assert!(world.heads.sessions.is_empty() && world.heads.agenda.is_empty());
    }
}
