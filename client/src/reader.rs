//! Merges a session's log with its published events. The reader does no I/O and reads no clock.
//! Durable events are returned in the order of the log and exactly once, even if publications are
//! lost, duplicated or late. Deltas of a running reply are returned only if they continue what was
//! returned before. Any user who may publish can forge events, so the returned publications are
//! compared with the log when a turn ends and when a head is published.

mod unconfirmed;

use std::collections::{BTreeMap, HashMap};

use serde_json::value::RawValue;

use planck_common::{
    AgentId, PROTOCOL_VERSION, Seq, Timestamp,
    command::{AgentInfo, AgentState, Running, RunningPart, Snapshot},
    envelope::Envelope,
    event::{Compacting, Delta, EventKind, json},
};

use self::unconfirmed::UnconfirmedEvents;

pub use self::unconfirmed::Retracted;

/// How long an early event waits for the events before it, in milliseconds.
const PATIENCE_MS: u64 = 200;
/// The maximum number of early events that wait.
const EARLY: usize = 256;

/// The minimum time, in milliseconds, between two reads of the log that heads cause. Such reads are
/// limited because not only nodes can publish heads.
const LOOK_MS: u64 = 1_000;

/// The reader of one session. Times are in milliseconds of a clock that never goes back.
#[derive(Debug)]
pub struct Reader {
    next: Seq,
    /// Durable events that arrived before their predecessors.
    early: BTreeMap<Seq, Early>,
    /// The highest row number known so far.
    head: Seq,
    /// When events were first found to be missing, or `None` if no event is missing.
    missing_since: Option<u64>,
    /// Whether missing or unconfirmed events must be read from the log at once, because
    /// publications will not supply them.
    lost: bool,
    reading: Option<PageRead>,
    unconfirmed: UnconfirmedEvents,
    /// The time of the last read that a head caused.
    last_head_read: Option<u64>,
    live: LiveEvents,
}

/// A durable event that waits for the events before it. `is_log` says whether the event was read
/// from the log.
#[derive(Debug)]
struct Early {
    event: Envelope,
    is_log: bool,
    round: u64,
}

/// A page of the log that was requested.
#[derive(Debug, Clone, Copy)]
struct PageRead {
    from: Seq,
    /// The highest row number published since the request.
    published: Seq,
}

impl Reader {
    /// Creates a reader of the log from `next` on.
    pub fn from(next: Seq) -> Self {
        let next = next.max(1);
        Self {
            next,
            early: BTreeMap::new(),
            head: 0,
            missing_since: None,
            lost: true,
            reading: None,
            unconfirmed: UnconfirmedEvents::default(),
            last_head_read: None,
            live: LiveEvents::default(),
        }
    }

    /// Makes the reader trust publications, for a bus on which only this process can publish.
    pub fn trusted(self) -> Self {
        Self {
            unconfirmed: UnconfirmedEvents::trusted(),
            ..self
        }
    }

    /// Returns the number of the next durable event to return.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Takes a published event, and returns the events that are due. A truncated event is returned
    /// from the log only. Unless publications are trusted, so is the end of a turn, an agent or a
    /// session, after all earlier events were compared with the log.
    pub fn published(&mut self, event: Envelope, now: u64) -> Vec<Envelope> {
        let Some(seq) = event.seq else {
            return self.live.take(event).into_iter().collect();
        };
        if seq < self.next {
            // If two different events have the same number, at least one of them is forged.
            self.lost |= self.unconfirmed.contradicts(seq, &event);
            return Vec::new();
        }
        self.hear_of(seq);
        // The log has the complete text of a truncated event.
        let is_left_to_log = event.truncated || self.unconfirmed.are_checked() && is_end(&event);
        if is_left_to_log || self.early.len() >= EARLY && seq != self.next {
            self.lost = true;
        } else {
            self.early.insert(
                seq,
                Early {
                    event,
                    is_log: false,
                    round: self.unconfirmed.round(),
                },
            );
        }
        self.settle(now)
    }

    /// Takes a published head. Events up to that number that have not arrived are considered lost.
    /// At most once a second a head also makes the reader compare unconfirmed events with the log.
    pub fn head(&mut self, seq: Seq, now: u64) {
        self.hear_of(seq);
        self.lost |= self.head >= self.next;
        let may_look = self
            .last_head_read
            .is_none_or(|last_head_read| now.saturating_sub(last_head_read) >= LOOK_MS);
        if may_look && self.unconfirmed.first().is_some() {
            self.last_head_read = Some(now);
            self.lost = true;
        }
        self.note_missing(now);
    }

    fn hear_of(&mut self, seq: Seq) {
        self.head = self.head.max(seq);
        if let Some(reading) = &mut self.reading {
            reading.published = reading.published.max(seq);
        }
    }

    /// Returns the number from which the log must be read now. Returns `None` if nothing is missing
    /// or unchecked, or if missing events may still arrive as publications. After a number was
    /// returned, the reader waits for [`Self::page`] or [`Self::page_failed`].
    pub fn wanted(&mut self, now: u64) -> Option<Seq> {
        let overdue = self
            .missing_since
            .is_some_and(|since| now >= since.saturating_add(PATIENCE_MS));
        if self.reading.is_some() || !(self.lost || overdue) {
            return None;
        }
        let from = self
            .unconfirmed
            .first()
            .map_or(self.next, |first| first.min(self.next));
        self.reading = Some(PageRead { from, published: 0 });
        self.unconfirmed.begin_round();
        Some(from)
    }

    /// Returns the time at which [`Self::wanted`] must be called again, or `None` if no event is
    /// missing or a page was requested already.
    pub fn patience(&self) -> Option<u64> {
        self.missing_since
            .filter(|_| self.reading.is_none())
            .map(|since| since.saturating_add(PATIENCE_MS))
    }

    /// Takes the requested page of the log, and returns the events that are due. The page is
    /// complete before row `upto`, where the next page begins.
    pub fn page(&mut self, events: Vec<Envelope>, upto: Seq, head: Seq, now: u64) -> Vec<Envelope> {
        let PageRead { from, published } = self.reading.take().unwrap_or(PageRead {
            from: self.next,
            published: 0,
        });
        let mut returned = self.check(&events, upto, head);
        for event in events {
            if let Some(seq) = event.seq.filter(|seq| *seq >= self.next) {
                self.early.insert(
                    seq,
                    Early {
                        event,
                        is_log: true,
                        round: self.unconfirmed.round(),
                    },
                );
            }
        }
        // Rows are committed before they are published. An event that was published before this
        // read began and lies beyond the log's head is therefore forged.
        let round = self.unconfirmed.round();
        self.early
            .retain(|seq, early| *seq <= head || early.round >= round);
        self.head = self
            .early
            .keys()
            .next_back()
            .copied()
            .unwrap_or(0)
            .max(head)
            .max(published);
        returned.extend(self.settle(now));
        // Rows that this version cannot read are missing from the page, and are skipped.
        while self.next < upto {
            self.next += 1;
            returned.extend(self.settle(now));
        }
        self.missing_since = (self.next <= self.head).then_some(now);
        self.lost = upto > from && (self.next <= head || self.unconfirmed.are_open_before(head));
        returned
    }

    /// Compares the returned events with the log. Returns the log's events that replace retracted
    /// ones.
    fn check(&mut self, events: &[Envelope], upto: Seq, head: Seq) -> Vec<Envelope> {
        let (next, mut right) = (self.next, Vec::new());
        for event in events
            .iter()
            .filter(|event| event.seq.is_some_and(|seq| seq < next))
        {
            if self.unconfirmed.check(event) {
                right.push(event.clone());
            }
        }
        self.unconfirmed.reject_before(upto);
        if upto > head && self.unconfirmed.reject_beyond(head) {
            self.next = self.next.min(head + 1);
        }
        for retracted in self.unconfirmed.retracted() {
            self.live.forget(&retracted.agent_id);
        }
        right
    }

    /// Returns the events that the last pages retracted, and clears the list. The caller must pass
    /// them on before the events that [`Self::page`] returned.
    pub fn take_retracted(&mut self) -> Vec<Retracted> {
        self.unconfirmed.take_retracted()
    }

    /// Records that the log could not be read.
    pub fn page_failed(&mut self) {
        self.reading = None;
    }

    /// Takes a snapshot of an agent's running reply. Returns, as deltas, the part of the reply that this
    /// reader has not returned before.
    pub fn snapshot(&mut self, snapshot: &Snapshot) -> Vec<Envelope> {
        self.live.join(snapshot)
    }

    fn settle(&mut self, now: u64) -> Vec<Envelope> {
        let mut returned = Vec::new();
        while let Some(Early { event, is_log, .. }) = self.early.remove(&self.next) {
            self.next += 1;
            self.live.settle(&event, settles(&event));
            self.lost |= !is_log && self.unconfirmed.note(&event);
            returned.push(event);
        }
        self.note_missing(now);
        returned
    }

    fn note_missing(&mut self, now: u64) {
        let missing = self.head >= self.next;
        self.missing_since = missing.then(|| self.missing_since.unwrap_or(now));
    }
}

/// Returns whether the event ends a turn, an agent or a session, so that readers may act on it.
fn is_end(event: &Envelope) -> bool {
    use EventKind::{AgentStopped, Error, SessionClosed, TurnEnd};
    EventKind::find(&event.kind)
        .is_some_and(|kind| matches!(kind, TurnEnd | Error | AgentStopped | SessionClosed))
}

/// The live events that a durable event makes obsolete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settles {
    Nothing,
    Request,
    Turn,
}

fn settles(event: &Envelope) -> Settles {
    match EventKind::find(&event.kind) {
        Some(EventKind::TurnEnd | EventKind::Error) => Settles::Turn,
        Some(_) if event.is_reply() => Settles::Request,
        Some(_) | None => Settles::Nothing,
    }
}

// Tracks the replies that are being streamed. A delta is returned only if it continues the text
// that was returned before.

/// The epoch, turn and number of a request. Later requests compare greater, and supersede earlier
/// ones.
type DeltaPlace = (i64, u32, u32);

#[derive(Debug, Default)]
struct LiveEvents {
    agents: HashMap<AgentId, AgentProgress>,
}

#[derive(Debug, Default)]
struct AgentProgress {
    /// The highest epoch seen. A live event with a lower epoch comes from a node that has lost the
    /// lease.
    epoch: i64,
    /// Saved messages have replaced the live events of all requests up to this one.
    settled: DeltaPlace,
    /// The running request.
    current: DeltaPlace,
    /// For each part of the running request, the number of Unicode scalar values that were
    /// returned.
    returned: BTreeMap<usize, usize>,
}

impl LiveEvents {
    /// Takes a live event. Returns the part of a delta's text that was not returned yet, or `None`
    /// if there is none or the delta does not continue the returned text. Other live events are
    /// returned unchanged. An event with an old epoch is dropped.
    fn take(&mut self, event: Envelope) -> Option<Envelope> {
        let agent = self.agents.entry(event.agent_id.clone()).or_default();
        if event.epoch < agent.epoch {
            return None;
        }
        agent.epoch = event.epoch;
        match EventKind::find(&event.kind) {
            Some(EventKind::TextDelta | EventKind::ThinkingDelta) => agent.take(event),
            Some(_) | None => Some(event),
        }
    }

    fn settle(&mut self, event: &Envelope, settles: Settles) {
        let agent = self.agents.entry(event.agent_id.clone()).or_default();
        agent.epoch = agent.epoch.max(event.epoch);
        let upto = match settles {
            Settles::Nothing => return,
            Settles::Request => (event.epoch, event.turn, event.request),
            Settles::Turn => (event.epoch, event.turn, u32::MAX),
        };
        agent.settled = agent.settled.max(upto);
        if settles == Settles::Turn {
            // Live events that claimed a later lease or turn may have moved the position beyond the
            // one in the log. Because such events may be forged, the log's position replaces it.
            (agent.epoch, agent.current) = (event.epoch, upto);
        }
    }

    /// Drops the state of an agent in whose name another program published.
    fn forget(&mut self, agent: &AgentId) {
        self.agents.remove(agent);
    }

    /// Returns the text of a snapshot that was not returned yet, as deltas. Also returns that the agent
    /// compacts its context, because the event that says so may have been published before.
    fn join(&mut self, snapshot: &Snapshot) -> Vec<Envelope> {
        let info = &snapshot.info;
        if info.state == AgentState::Compacting {
            let tokens_before = info.context_tokens;
            let data = RawValue::from_string(json(&Compacting { tokens_before })).ok();
            let event =
                data.and_then(|data| live(info, EventKind::Compacting, (info.turn, 0), data));
            return event.into_iter().collect();
        }
        let Some(running) = &snapshot.running else {
            return Vec::new();
        };
        let deltas = running
            .parts
            .iter()
            .filter_map(|part| delta_of(snapshot, running, part));
        let agent = self.agents.entry(info.id.clone()).or_default();
        deltas.filter_map(|event| agent.take(event)).collect()
    }
}

impl AgentProgress {
    fn take(&mut self, event: Envelope) -> Option<Envelope> {
        let request = (event.epoch, event.turn, event.request);
        if request <= self.settled || request < self.current {
            return None;
        }
        let delta: Delta = serde_json::from_str(event.data.get()).ok()?;
        if request > self.current {
            self.current = request;
            self.returned.clear();
        }
        let returned = self.returned.entry(delta.part).or_default();
        let known = returned.checked_sub(delta.offset)?;
        let fresh: String = delta.text.chars().skip(known).collect();
        if fresh.is_empty() {
            return None;
        }
        let offset = *returned;
        *returned += fresh.chars().count();
        let data = raw(&Delta {
            text: fresh,
            part: delta.part,
            offset,
        })?;
        Some(Envelope { data, ..event })
    }
}

fn raw(delta: &Delta) -> Option<Box<RawValue>> {
    RawValue::from_string(json(delta)).ok()
}

fn delta_of(snapshot: &Snapshot, running: &Running, part: &RunningPart) -> Option<Envelope> {
    let kind = match part.r#type.as_str() {
        "text" => EventKind::TextDelta,
        "thinking" => EventKind::ThinkingDelta,
        _ => return None,
    };
    let data = raw(&Delta {
        text: part.text.clone(),
        part: part.part,
        offset: 0,
    })?;
    live(&snapshot.info, kind, (running.turn, running.request), data)
}

/// Returns an event that an agent has published before, without a number in the log.
fn live(
    info: &AgentInfo,
    kind: EventKind,
    (turn, request): (u32, u32),
    data: Box<RawValue>,
) -> Option<Envelope> {
    Some(Envelope {
        v: PROTOCOL_VERSION,
        kind: kind.name().into(),
        truncated: false,
        agent_id: info.id.clone(),
        session_id: info.session_id.clone(),
        team_id: info.team_id.clone(),
        node_id: info.node_id.clone()?,
        epoch: info.epoch,
        seq: None,
        prev: None,
        turn,
        request,
        at: Timestamp::now(),
        hidden_by: None,
        data,
    })
}

#[cfg(test)]
mod tests;
