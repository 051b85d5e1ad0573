use planck_common::{
    AgentId, NodeId, Seq, SessionId, TeamId, Timestamp,
    command::Snapshot,
    envelope::{Envelope, EventPlace, RowPosition, Writer},
    event::{Delta, EventKind, json},
};
use proptest::prelude::*;
use serde_json::json;

use super::Reader;

const PLACE: EventPlace = EventPlace {
    turn: 1,
    request: 1,
    at: Timestamp::from_millis(0),
};

fn writer(epoch: i64) -> Writer {
    Writer {
        agent_id: AgentId::parse("a").unwrap(),
        session_id: SessionId::parse("s").unwrap(),
        team_id: TeamId::parse("t").unwrap(),
        node_id: NodeId::parse("n").unwrap(),
        epoch,
    }
}

fn durable(seq: Seq) -> Envelope {
    let row = RowPosition {
        seq,
        prev: seq - 1,
        hidden_by: None,
    };
    let text = writer(1).durable(
        EventKind::Warning,
        PLACE,
        row,
        r#"{"code":"c","message":"m"}"#,
    );
    serde_json::from_str(&text).unwrap()
}

fn reply(seq: Seq, place: EventPlace, text: &str) -> Envelope {
    let body =
        json!({"role": "assistant", "content": [{"type": "text", "text": text}]}).to_string();
    serde_json::from_str(&writer(1).durable(
        EventKind::Message,
        place,
        RowPosition {
            seq,
            prev: 0,
            hidden_by: None,
        },
        &body,
    ))
    .unwrap()
}

fn delta(epoch: i64, place: EventPlace, offset: usize, text: &str) -> Envelope {
    let data = json(&Delta {
        text: text.into(),
        part: 0,
        offset,
    });
    serde_json::from_str(&writer(epoch).live(EventKind::TextDelta, place, &data)).unwrap()
}

fn seqs(events: &[Envelope]) -> Vec<Seq> {
    events.iter().filter_map(|event| event.seq).collect()
}

fn text_of(events: &[Envelope]) -> String {
    events
        .iter()
        .map(|event| {
            serde_json::from_str::<Delta>(event.data.get())
                .unwrap()
                .text
        })
        .collect()
}

/// Returns a reader that has read an empty log.
fn caught_up() -> Reader {
    let mut reader = Reader::from(1);
    assert_eq!(reader.wanted(0), Some(1));
    assert!(reader.page(Vec::new(), 1, 0, 0).is_empty());
    assert_eq!(reader.wanted(0), None);
    reader
}

/// Gives the reader the pages that it asks for, from a log of `length` rows with `page` rows a
/// page. Returns the events that the reader returned.
fn read_log(reader: &mut Reader, length: Seq, page: Seq, now: u64) -> Vec<Envelope> {
    let mut returned = Vec::new();
    while let Some(from) = reader.wanted(now) {
        let upto = (from + page).min(length + 1);
        returned.extend(reader.page((from..upto).map(durable).collect(), upto, length, now));
    }
    returned
}

#[test]
fn early_event_waits_for_the_one_before_it() {
    let mut reader = caught_up();
    assert!(reader.published(durable(2), 10).is_empty());
    assert_eq!((reader.wanted(209), reader.patience()), (None, Some(210)));
    assert_eq!(seqs(&reader.published(durable(1), 100)), [1, 2]);
    assert_eq!((reader.wanted(10_000), reader.patience()), (None, None));
}

#[test]
fn missing_event_is_read_from_the_log_in_time() {
    let mut reader = caught_up();
    reader.published(durable(3), 10);
    assert_eq!(reader.wanted(210), Some(1));
    assert_eq!(reader.wanted(211), None, "one read at a time");
    reader.page_failed();
    assert_eq!(reader.wanted(212), Some(1));
    assert_eq!(
        seqs(&reader.page(vec![durable(1), durable(2)], 3, 3, 220)),
        [1, 2, 3]
    );
    assert_eq!(reader.wanted(10_000), None);
}

#[test]
fn head_reveals_the_loss_of_the_last_event() {
    let mut reader = caught_up();
    reader.head(0, 5);
    assert_eq!(reader.wanted(5), None);
    reader.head(2, 6);
    assert_eq!(reader.wanted(6), Some(1));
}

#[test]
fn truncated_event_is_read_from_the_log() {
    let mut reader = caught_up();
    assert!(
        reader
            .published(
                Envelope {
                    truncated: true,
                    ..durable(1)
                },
                0
            )
            .is_empty()
    );
    assert_eq!(reader.wanted(0), Some(1));
    assert_eq!(seqs(&reader.page(vec![durable(1)], 2, 1, 0)), [1]);
}

#[test]
fn excess_early_events_are_read_from_the_log() {
    let mut reader = caught_up();
    for seq in 2..=400 {
        assert!(reader.published(durable(seq), 0).is_empty());
    }
    assert!(reader.early.len() <= super::EARLY);
    assert_eq!(read_log(&mut reader, 400, 50, 0).len(), 400);
}

#[test]
fn unreadable_row_is_skipped() {
    let mut reader = Reader::from(1);
    assert_eq!(reader.wanted(0), Some(1));
    assert_eq!(
        seqs(&reader.page(vec![durable(1), durable(3)], 4, 3, 0)),
        [1, 3]
    );
    assert_eq!(reader.wanted(10_000), None);
}

#[test]
fn delta_that_does_not_continue_the_text_is_dropped() {
    let mut reader = caught_up();
    let mut tell = |offset, text| text_of(&reader.published(delta(1, PLACE, offset, text), 0));
    assert_eq!(tell(0, "Grü"), "Grü");
    assert_eq!(tell(0, "Grü"), "", "doubled");
    assert_eq!(tell(5, "dich"), "", "the delta before it is lost");
    assert_eq!(tell(2, "üße"), "ße", "overlapping");
    assert_eq!(tell(5, " dich"), " dich");
}

#[test]
fn late_delta_of_a_saved_reply_is_dropped() {
    let mut reader = caught_up();
    reader.published(delta(1, PLACE, 0, "He"), 0);
    assert_eq!(seqs(&reader.published(reply(1, PLACE, "Hello"), 0)), [1]);
    assert!(reader.published(delta(1, PLACE, 2, "llo"), 0).is_empty());
    let next = EventPlace {
        request: 2,
        ..PLACE
    };
    assert_eq!(
        text_of(&reader.published(delta(1, next, 0, "again"), 0)),
        "again"
    );
    assert!(
        reader.published(delta(1, PLACE, 0, "Hello"), 0).is_empty(),
        "a delta of an earlier request"
    );
}

#[test]
fn live_event_of_a_fenced_writer_is_dropped() {
    let mut reader = caught_up();
    assert_eq!(
        text_of(&reader.published(delta(2, PLACE, 0, "new"), 0)),
        "new"
    );
    assert!(
        reader
            .published(
                delta(
                    1,
                    EventPlace {
                        request: 9,
                        ..PLACE
                    },
                    0,
                    "old"
                ),
                0
            )
            .is_empty()
    );
}

#[test]
fn snapshot_is_joined_to_the_published_deltas() {
    let mut reader = caught_up();
    assert!(reader.published(delta(1, PLACE, 3, "lo"), 0).is_empty());
    let snapshot: Snapshot = serde_json::from_value(json!({
        "head": 0,
        "info": {"id": "a", "name": "a", "type": "a", "role": "worker", "session_id": "s", "team_id": "t", "node_id": "n", "epoch": 1,
            "state": "streaming", "turn": 1, "model": {"provider": "p", "id": "m"}, "tools": [], "skills": [], "usage": {},
            "context_tokens": 0, "context_window": 1, "queued": 0},
        "running": {"turn": 1, "request": 1, "parts": [{"part": 0, "type": "text", "text": "Hello"}], "tools": []}
    }))
    .unwrap();
    assert_eq!(text_of(&reader.snapshot(&snapshot)), "Hello");
    assert_eq!(
        text_of(&reader.published(delta(1, PLACE, 5, " you"), 0)),
        " you"
    );
    assert!(reader.snapshot(&snapshot).is_empty());

    let mut compacts = snapshot;
    compacts.info.state = planck_common::command::AgentState::Compacting;
    let events = reader.snapshot(&compacts);
    let kinds: Vec<_> = events.iter().map(|event| &*event.kind).collect();
    assert_eq!(kinds, ["compacting"]);
}

proptest! {
    /// Published events may be lost, duplicated and reordered. The log is returned in order, each
    /// row once.
    #[test]
    fn returned_events_are_the_log(
        length in 1..120_i64,
        from in 1..10_i64,
        arrivals in prop::collection::vec((1..120_i64, 0..60_u64, any::<bool>()), 0..400),
        page in 1..40_i64,
    ) {
        let mut reader = Reader::from(from);
        let (mut returned, mut now) = (Vec::new(), 0);
        for (seq, pause, is_head) in arrivals {
            let seq = seq.min(length);
            now += pause;
            if is_head && seq % 7 == 0 {
                reader.head(seq, now);
            } else {
                returned.extend(reader.published(durable(seq), now));
            }
            returned.extend(read_log(&mut reader, length, page, now));
        }
        reader.head(length, now);
        returned.extend(read_log(&mut reader, length, page, now));
        prop_assert_eq!(seqs(&returned), (from..=length).collect::<Vec<_>>());
        prop_assert_eq!(reader.wanted(now + 10_000), None);
    }

    /// Deltas may be lost, duplicated and reordered. The returned text is always a prefix of the
    /// reply.
    #[test]
    fn returned_text_is_a_prefix_of_the_reply(order in prop::collection::vec(0..20_usize, 0..60)) {
        let whole: String = ('a'..='t').collect();
        let mut reader = caught_up();
        let mut returned = String::new();
        for at in order {
            let piece: String = whole.chars().skip(at).take(1 + at % 3).collect();
            returned += &text_of(&reader.published(delta(1, PLACE, at, &piece), 0));
        }
        prop_assert!(whole.starts_with(&returned), "{}", returned);
    }
}

fn ends(seq: Seq) -> Envelope {
    let row = RowPosition {
        seq,
        prev: seq - 1,
        hidden_by: None,
    };
    serde_json::from_str(&writer(1).durable(
        EventKind::TurnEnd,
        PLACE,
        row,
        r#"{"outcome":"completed","usage":{},"inputs":[]}"#,
    ))
    .unwrap()
}

fn retracted(reader: &mut Reader) -> Vec<Seq> {
    reader
        .take_retracted()
        .into_iter()
        .map(|retracted| retracted.seq)
        .collect()
}

#[test]
fn end_of_a_turn_is_returned_from_the_log_only() {
    let mut reader = caught_up();
    assert_eq!(seqs(&reader.published(durable(1), 0)), [1]);
    assert!(reader.published(ends(2), 0).is_empty());
    assert_eq!(
        reader.wanted(0),
        Some(1),
        "events returned before are compared as well"
    );
    assert_eq!(seqs(&reader.page(vec![durable(1), ends(2)], 3, 2, 0)), [2]);
    assert!(retracted(&mut reader).is_empty());
    assert_eq!(reader.wanted(10_000), None);
}

#[test]
fn forged_events_are_retracted_at_the_end_of_the_turn() {
    let mut reader = caught_up();
    assert_eq!(seqs(&reader.published(reply(1, PLACE, "FORGED"), 0)), [1]);
    assert_eq!(seqs(&reader.published(durable(2), 0)), [2]);
    assert!(reader.published(ends(3), 0).is_empty());
    assert_eq!(reader.wanted(0), Some(1));
    let returned = reader.page(vec![reply(1, PLACE, "true"), durable(2), ends(3)], 4, 3, 0);
    assert_eq!(retracted(&mut reader), [1]);
    assert_eq!(seqs(&returned), [1, 3]);
    assert!(returned[0].data.get().contains("true"));
}

#[test]
fn two_events_with_one_number_make_it_read_the_log() {
    let mut reader = caught_up();
    reader.published(reply(1, PLACE, "FORGED"), 0);
    assert_eq!(reader.wanted(0), None);
    assert!(reader.published(reply(1, PLACE, "true"), 0).is_empty());
    assert_eq!(reader.wanted(0), Some(1));
}

#[test]
fn forged_events_beyond_the_head_are_retracted_and_their_numbers_are_free_again() {
    let mut reader = caught_up();
    for seq in 1..=3 {
        assert_eq!(
            seqs(&reader.published(reply(seq, PLACE, "FORGED"), 0)),
            [seq]
        );
    }
    reader.published(durable(1_000_000), 0);
    reader.head(0, 10);
    assert_eq!(reader.wanted(10), Some(1));
    assert!(reader.page(Vec::new(), 1, 0, 10).is_empty());
    assert_eq!(retracted(&mut reader), [1, 2, 3]);
    assert_eq!(
        (reader.wanted(60_000), reader.next()),
        (None, 1),
        "a forged event beyond the head is no gap"
    );
    assert_eq!(seqs(&reader.published(durable(1), 60_000)), [1]);
}

#[test]
fn event_published_during_a_read_of_the_log_is_not_taken_for_forged() {
    let mut reader = caught_up();
    reader.published(durable(1), 0);
    reader.published(ends(2), 0);
    assert_eq!(reader.wanted(0), Some(1));
    assert!(reader.published(durable(3), 0).is_empty());
    assert_eq!(
        seqs(&reader.page(vec![durable(1), ends(2)], 3, 2, 0)),
        [2, 3]
    );
    assert!(retracted(&mut reader).is_empty());
}

#[test]
fn heads_make_it_read_the_log_at_most_once_a_second() {
    let mut reader = caught_up();
    reader.published(durable(1), 0);
    reader.head(1, 100);
    assert_eq!(reader.wanted(100), Some(1));
    reader.page(vec![durable(1)], 2, 1, 100);
    reader.published(durable(2), 100);
    reader.head(2, 200);
    assert_eq!(reader.wanted(200), None);
    reader.head(2, 1_200);
    assert_eq!(reader.wanted(1_200), Some(2));
}

#[test]
fn events_of_a_private_bus_are_not_compared_with_the_log() {
    let mut reader = Reader::from(1).trusted();
    assert_eq!(reader.wanted(0), Some(1));
    reader.page(Vec::new(), 1, 0, 0);
    assert_eq!(seqs(&reader.published(durable(1), 0)), [1]);
    assert_eq!(seqs(&reader.published(ends(2), 0)), [2]);
    reader.head(2, 5_000);
    assert_eq!(reader.wanted(60_000), None);
}

#[test]
fn forged_live_event_does_not_suppress_true_ones_after_the_turn() {
    let mut reader = caught_up();
    reader.published(delta(i64::MAX, PLACE, 0, "FORGED"), 0);
    assert!(reader.published(delta(1, PLACE, 0, "true"), 0).is_empty());
    reader.published(ends(1), 0);
    reader.wanted(0);
    reader.page(vec![ends(1)], 2, 1, 0);
    let next = EventPlace { turn: 2, ..PLACE };
    assert_eq!(
        text_of(&reader.published(delta(1, next, 0, "again"), 0)),
        "again"
    );
}
