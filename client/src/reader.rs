//! The reader's rule, decided purely: whatever of a session's published events is lost, doubled or
//! late, what is told is the log, in order and once, and of a running reply only what joins on to
//! what was told of it. Whoever may publish can forge events, so what was told of publications is
//! compared with the log when a turn ends and when the session's head is told.

mod claims;
mod live;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use planck_common::{Seq, command::Snapshot, envelope::Envelope, event::EventKind, message::Role};

use claims::Claims;
use live::Live;

pub use claims::Retracted;

/// How long an early event waits for those before it, and how many wait.
const PATIENCE_MS: u64 = 200;
const EARLY: usize = 256;

/// Head messages make it look at the log at most this often; others than nodes can publish them.
const LOOK_MS: u64 = 1_000;

/// Reads one session. Times are milliseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Reader {
    next: Seq,
    /// Durable events whose forerunners are missing.
    early: BTreeMap<Seq, Early>,
    /// The log is known to go so far.
    head: Seq,
    /// Since when something is known to be missing.
    missing_since: Option<u64>,
    /// What is missing is not on its way.
    lost: bool,
    reading: Option<Reading>,
    claims: Claims,
    /// When a head last made it look at the log.
    looked: Option<u64>,
    live: Live,
}

/// A durable event that waits, and whether it comes from the log.
#[derive(Debug)]
struct Early {
    event: Envelope,
    is_log: bool,
    round: u64,
}

/// A page of the log on its way.
#[derive(Debug, Clone, Copy)]
struct Reading {
    from: Seq,
    /// The highest head heard since it was asked for.
    heard: Seq,
}

impl Reader {
    /// A reader of the log from `next` on.
    pub fn from(next: Seq) -> Self {
        let next = next.max(1);
        Self {
            next,
            early: BTreeMap::new(),
            head: 0,
            missing_since: None,
            lost: true,
            reading: None,
            claims: Claims::default(),
            looked: None,
            live: Live::default(),
        }
    }

    /// Believes what is published: only this process can publish.
    pub fn trusting(self) -> Self {
        Self {
            claims: Claims::believed(),
            ..self
        }
    }

    /// The seq that is told next.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// A published event; gives what can be told now. The end of a turn is told from the log alone,
    /// together with a look at everything that was told before it.
    pub fn published(&mut self, event: Envelope, now: u64) -> Vec<Envelope> {
        let Some(seq) = event.seq else {
            return self.live.take(event).into_iter().collect();
        };
        if seq < self.next {
            // Of two different events with one number at least one is forged.
            self.lost |= self.claims.contradicts(seq, &event);
            return Vec::new();
        }
        self.hear_of(seq);
        // A truncated event stands whole in the log.
        let is_left_to_log = event.truncated || self.claims.are_checked() && is_end(&event);
        if is_left_to_log || self.early.len() >= EARLY && seq != self.next {
            self.lost = true;
        } else {
            self.early.insert(
                seq,
                Early {
                    event,
                    is_log: false,
                    round: self.claims.round(),
                },
            );
        }
        self.settle(now)
    }

    /// The session's head was told: what is missing up to there is lost.
    pub fn head(&mut self, seq: Seq, now: u64) {
        self.hear_of(seq);
        self.lost |= self.head >= self.next;
        let may_look = self
            .looked
            .is_none_or(|looked| now.saturating_sub(looked) >= LOOK_MS);
        if may_look && self.claims.first().is_some() {
            self.looked = Some(now);
            self.lost = true;
        }
        self.note_missing(now);
    }

    fn hear_of(&mut self, seq: Seq) {
        self.head = self.head.max(seq);
        if let Some(reading) = &mut self.reading {
            reading.heard = reading.heard.max(seq);
        }
    }

    /// Where the log is to be read from now; `None` where nothing is missing or unchecked, or may
    /// still come. The reader then waits for [`Self::page`] or [`Self::page_failed`].
    pub fn wanted(&mut self, now: u64) -> Option<Seq> {
        let overdue = self
            .missing_since
            .is_some_and(|since| now >= since.saturating_add(PATIENCE_MS));
        if self.reading.is_some() || !(self.lost || overdue) {
            return None;
        }
        let from = self
            .claims
            .first()
            .map_or(self.next, |first| first.min(self.next));
        self.reading = Some(Reading { from, heard: 0 });
        self.claims.begin_round();
        Some(from)
    }

    /// When to ask [`Self::wanted`] again.
    pub fn patience(&self) -> Option<u64> {
        self.missing_since
            .filter(|_| self.reading.is_none())
            .map(|since| since.saturating_add(PATIENCE_MS))
    }

    /// A page of the log, as it was wanted: all of it up to `upto`, where the next one begins.
    pub fn page(&mut self, events: Vec<Envelope>, upto: Seq, head: Seq, now: u64) -> Vec<Envelope> {
        let Reading { from, heard } = self.reading.take().unwrap_or(Reading {
            from: self.next,
            heard: 0,
        });
        let mut told = self.check(&events, upto, head);
        for event in events {
            if let Some(seq) = event.seq.filter(|seq| *seq >= self.next) {
                self.early.insert(
                    seq,
                    Early {
                        event,
                        is_log: true,
                        round: self.claims.round(),
                    },
                );
            }
        }
        // The log is committed before it is published: what was heard before it was read and is
        // beyond its head is forged.
        let round = self.claims.round();
        self.early
            .retain(|seq, early| *seq <= head || early.round >= round);
        self.head = self
            .early
            .keys()
            .next_back()
            .copied()
            .unwrap_or(0)
            .max(head)
            .max(heard);
        told.extend(self.settle(now));
        // What this version cannot read is not in the page's events, and is passed over.
        while self.next < upto {
            self.next += 1;
            told.extend(self.settle(now));
        }
        self.missing_since = (self.next <= self.head).then_some(now);
        self.lost = upto > from && (self.next <= head || self.claims.are_open_before(head));
        told
    }

    /// Compares what was told with the log; gives the log's events for those that were others.
    fn check(&mut self, events: &[Envelope], upto: Seq, head: Seq) -> Vec<Envelope> {
        let (next, mut right) = (self.next, Vec::new());
        for event in events
            .iter()
            .filter(|event| event.seq.is_some_and(|seq| seq < next))
        {
            if self.claims.check(event) {
                right.push(event.clone());
            }
        }
        self.claims.reject_before(upto);
        if upto > head && self.claims.reject_beyond(head) {
            self.next = self.next.min(head + 1);
        }
        for retracted in self.claims.retracted() {
            self.live.forget(&retracted.agent_id);
        }
        right
    }

    /// What was told and is not in the log, since this was last asked. The log's events in its
    /// place are told after it.
    pub fn take_retracted(&mut self) -> Vec<Retracted> {
        self.claims.take_retracted()
    }

    /// The log could not be read.
    pub fn page_failed(&mut self) {
        self.reading = None;
    }

    /// What an agent is in the middle of; gives what of it was not told.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> Vec<Envelope> {
        self.live.join(snapshot)
    }

    fn settle(&mut self, now: u64) -> Vec<Envelope> {
        let mut told = Vec::new();
        while let Some(Early { event, is_log, .. }) = self.early.remove(&self.next) {
            self.next += 1;
            self.live.settle(&event, settles(&event));
            self.lost |= !is_log && self.claims.note(&event);
            told.push(event);
        }
        self.note_missing(now);
        told
    }

    fn note_missing(&mut self, now: u64) {
        let missing = self.head >= self.next;
        self.missing_since = missing.then(|| self.missing_since.unwrap_or(now));
    }
}

/// Whether readers take an event for the end of what they wait for.
fn is_end(event: &Envelope) -> bool {
    use EventKind::{AgentStopped, Error, SessionClosed, TurnEnd};
    EventKind::find(&event.kind)
        .is_some_and(|kind| matches!(kind, TurnEnd | Error | AgentStopped | SessionClosed))
}

/// How much of a running reply a durable event makes an end of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settles {
    Nothing,
    Request,
    Turn,
}

fn settles(event: &Envelope) -> Settles {
    match EventKind::find(&event.kind) {
        Some(EventKind::TurnEnd | EventKind::Error) => Settles::Turn,
        Some(EventKind::Message) if is_reply(event) => Settles::Request,
        Some(_) | None => Settles::Nothing,
    }
}

fn is_reply(event: &Envelope) -> bool {
    #[derive(serde::Deserialize)]
    struct Data {
        message: Saved,
    }
    #[derive(serde::Deserialize)]
    struct Saved {
        role: Role,
    }
    serde_json::from_str::<Data>(event.data.get())
        .is_ok_and(|data| data.message.role == Role::Assistant)
}
