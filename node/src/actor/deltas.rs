//! Holds the deltas of a reply back briefly, so that many small deltas become one event.

use std::time::Duration;

use planck_common::{
    envelope::EventPlace,
    event::{Delta, EventKind, json},
};
use tokio::time::Instant;

/// How long a delta may be held back.
const WINDOW: Duration = Duration::from_millis(40);
/// The number of bytes of text at which a delta is no longer held back.
const FULL: usize = 512;

/// The deltas of one agent that were not yet published.
#[derive(Debug, Default)]
pub struct Deltas {
    held: Option<PendingDelta>,
}

#[derive(Debug)]
struct PendingDelta {
    kind: EventKind,
    place: EventPlace,
    delta: Delta,
    /// The number of Unicode scalar values in `delta`.
    length: usize,
    due: Instant,
}

/// A live event that is ready to be published.
#[derive(Debug, PartialEq)]
pub struct ReadyEvent {
    pub kind: EventKind,
    pub place: EventPlace,
    pub data: String,
}

impl Deltas {
    /// Adds a delta. Returns the events that are to be published now, in order.
    pub fn push(
        &mut self,
        kind: EventKind,
        place: EventPlace,
        delta: Delta,
        now: Instant,
    ) -> Vec<ReadyEvent> {
        let mut ready = Vec::new();
        if !self
            .held
            .as_ref()
            .is_some_and(|held| held.continues_with(kind, place, &delta))
        {
            ready.extend(self.take());
        }
        let length = delta.text.chars().count();
        match &mut self.held {
            Some(held) => {
                held.delta.text.push_str(&delta.text);
                held.length += length;
            }
            None => {
                self.held = Some(PendingDelta {
                    kind,
                    place,
                    delta,
                    length,
                    due: now + WINDOW,
                })
            }
        }
        if self
            .held
            .as_ref()
            .is_some_and(|held| held.delta.text.len() >= FULL)
        {
            ready.extend(self.take());
        }
        ready
    }

    /// Takes the event that is held back, or returns `None` if there is none. The caller must
    /// publish the event before any other event of this agent.
    pub fn take(&mut self) -> Option<ReadyEvent> {
        self.held.take().map(
            |PendingDelta {
                 kind, place, delta, ..
             }| ReadyEvent {
                kind,
                place,
                data: json(&delta),
            },
        )
    }

    /// Returns when the event that is held back must be published, or `None` if there is none.
    pub fn due(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.due)
    }
}

impl PendingDelta {
    fn continues_with(&self, kind: EventKind, place: EventPlace, delta: &Delta) -> bool {
        self.kind == kind
            && (self.place.turn, self.place.request) == (place.turn, place.request)
            && self.delta.part == delta.part
            && self.delta.offset + self.length == delta.offset
    }
}

#[cfg(test)]
mod tests {
    use planck_common::Timestamp;

    use super::*;

    const PLACE: EventPlace = EventPlace {
        turn: 1,
        request: 1,
        at: Timestamp::from_millis(0),
    };

    fn delta(text: &str, part: usize, offset: usize) -> Delta {
        Delta {
            text: text.into(),
            part,
            offset,
        }
    }

    #[test]
    fn neighbouring_deltas_become_one_event() {
        let (mut deltas, now) = (Deltas::default(), Instant::now());
        assert!(
            deltas
                .push(EventKind::TextDelta, PLACE, delta("hé", 0, 0), now)
                .is_empty()
        );
        assert!(
            deltas
                .push(EventKind::TextDelta, PLACE, delta("y", 0, 2), now)
                .is_empty()
        );
        assert_eq!(deltas.due(), Some(now + WINDOW));
        assert_eq!(
            deltas.take().unwrap().data,
            r#"{"text":"héy","part":0,"offset":0}"#
        );
        assert_eq!(deltas.take(), None);
    }

    #[test]
    fn another_part_kind_or_request_begins_a_new_event() {
        let other = EventPlace {
            request: 2,
            ..PLACE
        };
        for (kind, place, next) in [
            (EventKind::TextDelta, PLACE, delta("b", 1, 0)),
            (EventKind::ThinkingDelta, PLACE, delta("b", 0, 1)),
            (EventKind::TextDelta, other, delta("b", 0, 1)),
            (EventKind::TextDelta, PLACE, delta("b", 0, 5)),
        ] {
            let (mut deltas, now) = (Deltas::default(), Instant::now());
            deltas.push(EventKind::TextDelta, PLACE, delta("a", 0, 0), now);
            assert_eq!(deltas.push(kind, place, next, now).len(), 1);
            assert!(deltas.take().is_some());
        }
    }

    #[test]
    fn a_full_event_is_sent_immediately() {
        let (mut deltas, now) = (Deltas::default(), Instant::now());
        assert_eq!(
            deltas
                .push(
                    EventKind::TextDelta,
                    PLACE,
                    delta(&"x".repeat(FULL), 0, 0),
                    now
                )
                .len(),
            1
        );
        assert_eq!(deltas.due(), None);
    }
}
