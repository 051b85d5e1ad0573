//! Fits a page of the log into a reply of limited size.

use planck_common::{Seq, command::Events};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::bus::truncate;

/// The maximum size in bytes of a reply without its events.
const FRAME: usize = 256;

/// Keeps as many events as fit into `room` bytes. If the first event alone is too large, its
/// content is cut, so that a reader can continue after it.
pub fn fit(page: Events, room: usize) -> Events {
    let Events {
        events,
        mut next,
        head,
    } = page;
    let mut left = room.saturating_sub(FRAME);
    let mut kept: Vec<Box<RawValue>> = Vec::with_capacity(events.len());
    for event in events {
        let size = event.get().len() + 1;
        if size <= left {
            left -= size;
            kept.push(event);
        } else if kept.is_empty() {
            kept.push(cut(event, left));
            left = 0;
        } else {
            next = seq(&event).unwrap_or(next);
            break;
        }
    }
    Events {
        events: kept,
        next,
        head,
    }
}

fn cut(event: Box<RawValue>, room: usize) -> Box<RawValue> {
    let cut = truncate::fit(event.get(), room).into_owned();
    RawValue::from_string(cut).unwrap_or(event)
}

fn seq(event: &RawValue) -> Option<Seq> {
    #[derive(Deserialize)]
    struct Place {
        seq: Seq,
    }
    serde_json::from_str::<Place>(event.get())
        .ok()
        .map(|place| place.seq)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(seq: i64, text: usize) -> Box<RawValue> {
        let event = json!({ "seq": seq, "type": "message", "data": { "role": "user", "content": "x".repeat(text) } });
        RawValue::from_string(event.to_string()).unwrap()
    }

    fn page(sizes: &[usize]) -> Events {
        let events = sizes
            .iter()
            .zip(1..)
            .map(|(size, seq)| event(seq, *size))
            .collect();
        Events {
            events,
            next: sizes.len() as i64 + 1,
            head: 100,
        }
    }

    fn kept(sizes: &[usize], room: usize) -> (usize, i64) {
        let fitted = fit(page(sizes), room);
        let whole = serde_json::to_string(&fitted).unwrap();
        assert!(whole.len() <= room, "{} over {room}", whole.len());
        (fitted.events.len(), fitted.next)
    }

    #[test]
    fn events_that_fit_are_kept_and_the_rest_follows() {
        assert_eq!(kept(&[10, 10, 10], 10_000), (3, 4));
        assert_eq!(kept(&[1_000, 1_000, 9_000], 10_000), (2, 3));
        assert_eq!(kept(&[9_000, 9_000], 10_000), (1, 2));
        assert_eq!(kept(&[], 10_000), (0, 1));
    }

    #[test]
    fn a_single_event_that_does_not_fit_is_cut() {
        assert_eq!(kept(&[50_000, 10], 10_000), (1, 2));
        assert_eq!(kept(&[50_000], 10_000), (1, 2));
        let fitted = fit(page(&[50_000]), 10_000);
        let cut: Value = serde_json::from_str(fitted.events[0].get()).unwrap();
        assert_eq!((&cut["truncated"], &cut["seq"]), (&json!(true), &json!(1)));
    }
}
