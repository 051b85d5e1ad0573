//! Decides when to publish a session's head, so that readers notice the loss of the last event. The
//! functions read no clock: times are arguments.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use planck_common::{AgentId, Seq, SessionId};
use tokio::time::Instant;

/// How long after the last durable event the head is published.
pub const SETTLE: Duration = Duration::from_secs(1);
/// The interval at which the head is published while a turn is open.
pub const TICK: Duration = Duration::from_secs(10);
/// How long a session without an open turn is kept, so that its head can be published after a
/// reconnect.
const RECENT: Duration = Duration::from_secs(300);

/// The sessions for which this node has published, each with the time of its next check.
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
