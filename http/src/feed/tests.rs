use planck_common::event::EventKind;

use super::*;

fn event(kind: EventKind, seq: Option<Seq>, data: &str) -> Envelope {
    let seq = seq.map_or(String::new(), |seq| format!(r#""seq":{seq},"#));
    let kind = kind.name();
    let text = format!(
        r#"{{"v":1,"type":"{kind}","agent_id":"a","session_id":"s","team_id":"t","node_id":"n","epoch":1,{seq}
        "turn":1,"request":1,"at":"2026-01-01T12:00:00.000Z","data":{data}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn durable(seq: Seq, size: usize) -> FollowEvent {
    let data = format!(r#"{{"reason":"{}"}}"#, "x".repeat(size));
    FollowEvent::Durable(event(EventKind::SessionClosed, Some(seq), &data))
}

fn delta(offset: usize, text: &str) -> FollowEvent {
    let data = format!(r#"{{"text":"{text}","part":0,"offset":{offset}}}"#);
    FollowEvent::Live(event(EventKind::TextDelta, None, &data))
}

fn following(head: Seq) -> FeedState {
    FeedState {
        standing: FeedStanding::Following,
        head,
        whole_from: head + 1,
        ..FeedState::default()
    }
}

/// Returns the numbers of durable events and the texts of deltas, in order.
fn shown(found: Found) -> Vec<String> {
    let Found::Items(items, _) = found else {
        return vec!["none".into()];
    };
    let show = |item: FeedItem| match item {
        FeedItem::Event(event) => match event.seq {
            Some(seq) => seq.to_string(),
            None => {
                let event: serde_json::Value = serde_json::from_str(&event.json).unwrap();
                event["data"]["text"].as_str().unwrap().to_owned()
            }
        },
        FeedItem::Retracted(retracted) => format!("-{}", retracted.seq),
        FeedItem::CaughtUp => "caught up".into(),
        FeedItem::Retrying => "retrying".into(),
    };
    items.into_iter().map(show).collect()
}

#[test]
fn who_joins_gets_the_events_and_the_running_text() {
    let mut state = following(5);
    for event in [
        FollowEvent::CaughtUp,
        durable(6, 1),
        delta(0, "Hel"),
        durable(7, 1),
        delta(3, "lo"),
    ] {
        state.take(event);
    }
    assert_eq!(
        shown(state.find(None, 5, 0)),
        ["6", "7", "Hello", "caught up"]
    );
    assert_eq!(shown(state.find(None, 7, 0)), ["Hello", "caught up"]);
    assert!(matches!(state.find(None, 4, 0), Found::Behind));
    // One that is in the feed gets the items themselves.
    assert_eq!(shown(state.find(Some(3), 6, 0)), ["7", "lo"]);
    assert!(matches!(state.find(Some(5), 7, 0), Found::Nothing));
}

#[test]
fn saved_reply_replaces_its_pieces() {
    let mut state = following(0);
    state.take(delta(0, "Hello"));
    let data = r#"{"message":{"id":1,"agent_id":"a","at":"2026-01-01T12:00:00.000Z","role":"assistant","content":[],"metadata":{}}}"#;
    state.take(FollowEvent::Durable(event(
        EventKind::Message,
        Some(1),
        data,
    )));
    assert_eq!(shown(state.find(None, 0, 0)), ["1"]);
}

#[test]
fn kept_events_are_bounded_and_the_rest_is_in_the_log() {
    let mut state = following(0);
    for seq in 1..=10 {
        state.take(durable(seq, KEPT / 4));
    }
    assert!(
        state.bytes <= KEPT && state.items.len() < 10,
        "{}",
        state.items.len()
    );
    assert!(matches!(state.find(None, 0, 0), Found::Behind));
    // A cursor that was too slow joins again.
    assert!(matches!(state.find(Some(0), 1, 0), Found::Behind));
    let last = state.items.len();
    assert_eq!(shown(state.find(None, 10 - last as Seq, 0)).len(), last);
    state.take(durable(11, KEPT + 1));
    assert_eq!(shown(state.find(None, 10, 0)), ["11"]);
}

#[test]
fn after_a_retraction_the_log_decides() {
    let mut state = following(0);
    state.take(durable(1, 1));
    state.take(FollowEvent::Retracted(planck_client::Retracted {
        seq: 1,
        kind: "session_closed".into(),
        agent_id: planck_common::AgentId::parse("a").unwrap(),
    }));
    assert!(matches!(state.find(None, 0, 0), Found::Behind));
    assert_eq!(shown(state.find(Some(1), 1, 0)), ["-1"]);
}

#[test]
fn who_knows_of_further_events_reads_them_from_the_log() {
    let mut state = following(5);
    state.take(durable(6, 1));
    assert_eq!(shown(state.find(None, 5, 6)), ["6"]);
    assert!(matches!(state.find(None, 5, 7), Found::Behind));
    assert!(matches!(state.find(None, 6, 7), Found::Behind));
    // The event was read from the log, and comes once more from the feed.
    assert_eq!(shown(state.find(None, 7, 7)), Vec::<String>::new());
}

#[test]
fn after_a_rewind_the_log_says_what_is_hidden() {
    let mut state = following(0);
    state.take(durable(1, 1));
    let rewound = event(EventKind::Rewound, Some(2), r#"{"to":1,"by":"a"}"#);
    state.take(FollowEvent::Durable(rewound));
    assert!(matches!(state.find(None, 0, 0), Found::Behind));
    assert_eq!(shown(state.find(Some(1), 1, 0)), ["2"]);
    state.take(durable(3, 1));
    assert_eq!(shown(state.find(None, 2, 0)), ["3"]);
}

#[test]
fn running_text_is_bounded() {
    let mut state = following(0);
    let piece = "x".repeat(ROOM_FOR_TEXT / 2 + 1);
    state.take(delta(0, &piece));
    state.take(delta(piece.len(), &piece));
    assert_eq!(shown(state.find(None, 0, 0)), [piece]);
}
