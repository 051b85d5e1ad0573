//! The reader's rule, decided purely: whatever of a session's published events is lost, doubled or late, what is told is the
//! log, in order and once, and of a running reply only what joins on to what was told of it.

mod live;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use planck_common::{Seq, command::Snapshot, envelope::Envelope, event::EventKind, message::Role};

use live::Live;

/// How long an early event waits for those before it, and how many wait.
const PATIENCE_MS: u64 = 200;
const EARLY: usize = 256;

/// Reads one session. Times are milliseconds of any clock that does not go back.
#[derive(Debug)]
pub struct Reader {
    next: Seq,
    /// Durable events whose forerunners are missing.
    early: BTreeMap<Seq, Envelope>,
    /// The log is known to go so far.
    head: Seq,
    /// Since when something is known to be missing.
    missing_since: Option<u64>,
    /// What is missing is not on its way.
    lost: bool,
    reading: bool,
    live: Live,
}

impl Reader {
    /// A reader of the log from `next` on.
    pub fn from(next: Seq) -> Self {
        let next = next.max(1);
        Self { next, early: BTreeMap::new(), head: 0, missing_since: None, lost: true, reading: false, live: Live::default() }
    }

    /// The seq that is told next.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// A published event; gives what can be told now.
    pub fn published(&mut self, event: Envelope, now: u64) -> Vec<Envelope> {
        let Some(seq) = event.seq else { return self.live.take(event).into_iter().collect() };
        if seq < self.next {
            return Vec::new();
        }
        self.head = self.head.max(seq);
        // A truncated event stands whole in the log.
        if event.truncated || self.early.len() >= EARLY && seq != self.next {
            self.lost = true;
        } else {
            self.early.insert(seq, event);
        }
        self.settle(now)
    }

    /// The session's head was told: what is missing up to there is lost.
    pub fn head(&mut self, seq: Seq, now: u64) {
        self.head = self.head.max(seq);
        self.lost |= self.head >= self.next;
        self.note_missing(now);
    }

    /// Where the log is to be read from now; `None` where nothing is missing, or may still come. The reader then waits for
    /// [`Self::page`] or [`Self::page_failed`].
    pub fn wanted(&mut self, now: u64) -> Option<Seq> {
        let overdue = self.missing_since.is_some_and(|since| now >= since.saturating_add(PATIENCE_MS));
        if self.reading || !(self.lost || overdue) {
            return None;
        }
        self.reading = true;
        Some(self.next)
    }

    /// When to ask [`Self::wanted`] again.
    pub fn patience(&self) -> Option<u64> {
        self.missing_since.filter(|_| !self.reading).map(|since| since.saturating_add(PATIENCE_MS))
    }

    /// A page of the log, as it was wanted: all of it up to `upto`, where the next one begins.
    pub fn page(&mut self, events: Vec<Envelope>, upto: Seq, head: Seq, now: u64) -> Vec<Envelope> {
        self.reading = false;
        self.head = self.head.max(head);
        let began = self.next;
        for event in events {
            if let Some(seq) = event.seq.filter(|seq| *seq >= self.next) {
                self.early.insert(seq, event);
            }
        }
        let mut told = self.settle(now);
        // What this version cannot read is not in the page's events, and is passed over.
        while self.next < upto {
            self.next += 1;
            told.extend(self.settle(now));
        }
        self.missing_since = (self.next <= self.head).then_some(now);
        self.lost = self.next <= head && self.next > began;
        told
    }

    /// The log could not be read.
    pub fn page_failed(&mut self) {
        self.reading = false;
    }

    /// What an agent is in the middle of; gives what of it was not told.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> Vec<Envelope> {
        self.live.join(snapshot)
    }

    fn settle(&mut self, now: u64) -> Vec<Envelope> {
        let mut told = Vec::new();
        while let Some(event) = self.early.remove(&self.next) {
            self.next += 1;
            self.live.settle(&event, settles(&event));
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
    serde_json::from_str::<Data>(event.data.get()).is_ok_and(|data| data.message.role == Role::Assistant)
}
