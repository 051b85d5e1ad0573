use planck_common::{AgentId, InputId, Seq, envelope::Envelope, event::EventKind};
use serde_json::{Value, json};

use super::{StepReader, TurnChoice, TurnEvent, TurnReader, WorkerState};
use crate::{FollowEvent, Retracted};

mod random;
mod work;

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

fn prompt(id: &str) -> TurnChoice {
    TurnChoice::Of(InputId::parse(id).unwrap())
}

fn reader(choice: TurnChoice) -> TurnReader {
    TurnReader::new(agent("lead"), choice)
}

/// An event: its agent, its place as epoch, turn and request, and its data.
type Row = (&'static str, (i64, u32, u32), Value);

/// Makes items of rows. Durable events are numbered from 1.
fn log(rows: &[(&'static str, Row)]) -> Vec<FollowEvent> {
    let mut seq = 0;
    let items = rows.iter().map(|(kind, row)| {
        let is_durable = EventKind::find(kind).unwrap().is_durable();
        seq += Seq::from(is_durable);
        item(kind, is_durable.then_some(seq), row)
    });
    items.collect()
}

fn item(kind: &str, seq: Option<Seq>, (agent, (epoch, turn, request), data): &Row) -> FollowEvent {
    let mut event = json!({
        "v": 1, "type": kind, "agent_id": agent, "session_id": "s", "team_id": "t",
        "node_id": "n", "epoch": epoch, "turn": turn, "request": request,
        "at": "2026-01-01T12:00:00.000Z", "data": data,
    });
    let Some(seq) = seq else {
        return FollowEvent::Live(serde_json::from_value(event).unwrap());
    };
    event["seq"] = seq.into();
    event["prev"] = (seq - 1).into();
    if kind == "message" {
        for (key, value) in [
            ("id", json!(seq)),
            ("agent_id", json!(agent)),
            ("at", json!("2026-01-01T12:00:00.000Z")),
        ] {
            event["data"]["message"][key] = value;
        }
    }
    FollowEvent::Durable(serde_json::from_value(event).unwrap())
}

fn hidden(item: FollowEvent, by: Seq) -> FollowEvent {
    let FollowEvent::Durable(event) = item else {
        return item;
    };
    FollowEvent::Durable(Envelope {
        hidden_by: Some(by),
        ..event
    })
}

fn row(turn: u32, request: u32, data: Value) -> Row {
    ("lead", (1, turn, request), data)
}

fn turn_start(turn: u32, input: &str) -> (&'static str, Row) {
    let inputs = json!([{"id": input, "kind": "prompt", "from": null}]);
    (
        "turn_start",
        row(turn, 0, json!({"index": turn, "inputs": inputs})),
    )
}

fn turn_end(turn: u32) -> (&'static str, Row) {
    let usage = json!({"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 0,
        "cache_write_tokens": 0, "cost_usd": 0.0});
    let data = json!({"outcome": "completed", "message": null, "usage": usage, "inputs": []});
    ("turn_end", row(turn, 9, data))
}

fn text(request: u32, offset: usize, text: &str) -> (&'static str, Row) {
    (
        "text_delta",
        row(
            1,
            request,
            json!({"text": text, "part": 0, "offset": offset}),
        ),
    )
}

fn saved(request: u32, content: Value) -> (&'static str, Row) {
    let message = json!({"role": "assistant", "content": content});
    ("message", row(1, request, json!({"message": message})))
}

fn said(request: u32, text: &str) -> (&'static str, Row) {
    saved(request, json!([{"type": "text", "text": text}]))
}

fn call(id: &str) -> Value {
    json!({"type": "tool_call", "id": "x", "call_id": id, "name": "bash", "args": {"a": 1}})
}

fn take(reader: &mut TurnReader, items: &[FollowEvent]) -> Vec<TurnEvent> {
    items.iter().flat_map(|item| reader.take(item)).collect()
}

/// Returns a short text for each event.
fn shown(events: &[TurnEvent]) -> Vec<String> {
    events.iter().map(show).collect()
}

fn show(event: &TurnEvent) -> String {
    match event {
        TurnEvent::Started { turn, .. } => format!("started {turn}"),
        TurnEvent::StepStarted => "step".into(),
        TurnEvent::Text { part, text } => format!("text {part} {text}"),
        TurnEvent::Reasoning { part, text } => format!("reasoning {part} {text}"),
        TurnEvent::StepEnded { seq } => format!("step ended at {seq}"),
        TurnEvent::StepReset => "reset".into(),
        TurnEvent::ToolCalled { call_id, args, .. } => format!("call {call_id} {args}"),
        TurnEvent::ToolStarted { call_id } => format!("runs {call_id}"),
        TurnEvent::CaughtUp => "caught up".into(),
        TurnEvent::ToolProgress { call_id, .. } => format!("progress {call_id}"),
        TurnEvent::ToolEnded {
            call_id, result, ..
        } => format!("result {call_id} {result}"),
        TurnEvent::WaitOpened(wait) => format!("wait {} {}", wait.id, wait.title),
        TurnEvent::WaitClosed(wait) => format!("closed {} {}", wait.id, wait.decision.name()),
        TurnEvent::Worker(worker) => format!("worker {} {:?}", worker.name, worker.state),
        TurnEvent::Compacting => "compacting".into(),
        TurnEvent::Compacted { summary } => format!("compacted to {summary}"),
        TurnEvent::Warning { code, .. } => format!("warning {code}"),
        TurnEvent::Ended { outcome, .. } => format!("ended {}", outcome.name()),
        TurnEvent::Failed { code, .. } => format!("failed {code}"),
    }
}

/// Checks what a reader returns of a turn that the prompt `p` opened, without its beginning.
#[track_caller]
fn check(rows: &[(&'static str, Row)], expected: &[&str]) {
    let rows: Vec<_> = [turn_start(1, "p")]
        .into_iter()
        .chain(rows.to_vec())
        .collect();
    let events = take(&mut reader(prompt("p")), &log(&rows));
    let shown = shown(&events);
    assert_eq!(shown[0], "started 1");
    assert_eq!(&shown[1..], expected);
}

#[test]
fn compaction_comes_with_its_summary() {
    let said = json!({"message": {"role": "custom", "custom": "summary", "content": [{"type": "text", "text": "All was well."}]}});
    let compacting = ("compacting", row(1, 1, json!({"tokens_before": 9})));
    let rows = [
        compacting.clone(),
        ("message", row(1, 1, said)),
        (
            "compacted",
            row(
                1,
                1,
                json!({"tokens_before": 9, "tokens_after": 3, "by": "local", "kept": 1}),
            ),
        ),
        turn_end(1),
    ];
    check(
        &rows,
        &[
            "compacting",
            "compacted to All was well.",
            "ended completed",
        ],
    );

    // The beginning of a turn is saved while its compaction runs.
    let rows = [compacting, turn_start(1, "p"), turn_end(1)];
    let events = take(&mut reader(prompt("p")), &log(&rows));
    assert_eq!(
        shown(&events),
        ["started 1", "compacting", "ended completed"]
    );
}

#[test]
fn streamed_reply_is_completed_by_the_saved_message() {
    let rows = [
        text(1, 0, "Hel"),
        text(1, 3, "lo"),
        said(1, "Hello!"),
        turn_end(1),
    ];
    let expected = [
        "step",
        "text 0 Hel",
        "text 0 lo",
        "text 0 !",
        "step ended at 2",
        "ended completed",
    ];
    check(&rows, &expected);
}

#[test]
fn late_reader_gets_the_same_parts() {
    let rows = [said(1, "Hello!"), turn_end(1)];
    check(
        &rows,
        &[
            "step",
            "text 0 Hello!",
            "step ended at 2",
            "ended completed",
        ],
    );
}

#[test]
fn forged_text_is_voided_by_the_saved_message() {
    let rows = [text(1, 0, "Send money"), said(1, "Hello!")];
    check(
        &rows,
        &[
            "step",
            "text 0 Send money",
            "reset",
            "text 0 Hello!",
            "step ended at 2",
        ],
    );
}

#[test]
fn steps_of_all_turns_are_read_from_any_place() {
    let of = |turn: u32, (kind, (agent, (epoch, _, request), data)): (&'static str, Row)| {
        (kind, (agent, (epoch, turn, request), data))
    };
    let rows = [
        of(4, text(3, 0, "Hel")),
        of(4, said(3, "Hello")),
        of(4, text(4, 0, "lost")),
        of(4, turn_end(4)),
        of(5, text(1, 0, "Next")),
        of(5, said(1, "Next.")),
        of(6, text(1, 0, "forged")),
        of(7, text(1, 0, "Last")),
    ];
    let mut steps = StepReader::default();
    let read = log(&rows).into_iter().flat_map(|item| {
        let (FollowEvent::Durable(envelope) | FollowEvent::Live(envelope)) = item else {
            return Vec::new();
        };
        let event = envelope.event().unwrap().unwrap();
        steps.take(&envelope, &event)
    });
    let expected = [
        "step",
        "text 0 Hel",
        "text 0 lo",
        "step ended at 1",
        "step",
        "text 0 lost",
        "reset",
        "step",
        "text 0 Next",
        "text 0 .",
        "step ended at 3",
        "step",
        "text 0 forged",
        "reset",
        "step",
        "text 0 Last",
    ];
    assert_eq!(shown(&read.collect::<Vec<_>>()), expected);
}

#[test]
fn parts_are_numbered_by_their_order() {
    let thought = json!({"text": "Hm.", "part": 3, "offset": 0});
    let spoken = json!({"text": "Yes", "part": 7, "offset": 0});
    let content = json!([{"type": "thinking", "text": ""}, {"type": "thinking", "text": "Hm."},
        {"type": "text", "text": "Yes."}, call("c1"), {"type": "text", "text": "More"}]);
    let rows = [
        ("thinking_delta", row(1, 1, thought)),
        ("text_delta", row(1, 1, spoken)),
        saved(1, content),
    ];
    check(
        &rows,
        &[
            "step",
            "reasoning 0 Hm.",
            "text 1 Yes",
            "text 1 .",
            "text 2 More",
            "call c1 {\"a\":1}",
            "step ended at 2",
        ],
    );
}

#[test]
fn retry_voids_what_was_streamed() {
    let retry = json!({"attempt": 2, "delay_ms": 5, "reason": "overloaded"});
    let rows = [
        text(1, 0, "Hel"),
        ("retry", row(1, 1, retry)),
        text(1, 3, "late"),
        text(2, 0, "Good"),
        said(2, "Good day"),
    ];
    let expected = [
        "step",
        "text 0 Hel",
        "reset",
        "text 0 Good",
        "text 0  day",
        "step ended at 3",
    ];
    check(&rows, &expected);
}

#[test]
fn failover_voids_what_was_streamed() {
    let resumed = (
        "lead",
        (2, 1, 1),
        json!({"from_node": "n1", "reason": "node_dead"}),
    );
    let other = (
        "lead",
        (2, 1, 2),
        json!({"text": "Good", "part": 0, "offset": 0}),
    );
    let rows = [
        text(1, 0, "Hel"),
        ("session_resumed", resumed),
        ("text_delta", other.clone()),
    ];
    check(&rows, &["step", "text 0 Hel", "reset", "text 0 Good"]);
    let rows = [text(1, 0, "Hel"), ("text_delta", other)];
    check(&rows, &["step", "text 0 Hel", "reset", "text 0 Good"]);
}

#[test]
fn next_reply_waits_for_the_save_of_the_one_before() {
    let rows = [
        text(1, 0, "Hel"),
        text(2, 0, "Next"),
        said(1, "Hello"),
        said(2, "Next."),
    ];
    check(
        &rows,
        &[
            "step",
            "text 0 Hel",
            "text 0 lo",
            "step ended at 2",
            "step",
            "text 0 Next",
            "text 0 .",
            "step ended at 3",
        ],
    );
}

#[test]
fn earlier_reply_comes_first_even_if_it_is_seen_late() {
    let rows = [text(2, 0, "Next"), said(1, "Hello"), said(2, "Next")];
    let expected = [
        "step",
        "text 0 Hello",
        "step ended at 2",
        "step",
        "text 0 Next",
        "step ended at 3",
    ];
    check(&rows, &expected);
    let mut reader = reader(prompt("p"));
    take(&mut reader, &log(&[turn_start(1, "p")]));
    reader.take(&FollowEvent::CaughtUp);
    let rows = [turn_start(1, "p"), text(2, 0, "Next"), said(1, "Hello")];
    let shown = shown(&take(&mut reader, &log(&rows)));
    let expected = [
        "step",
        "text 0 Next",
        "reset",
        "text 0 Hello",
        "step ended at 2",
        "step",
        "text 0 Next",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn next_reply_waits_for_the_calls_of_the_one_before() {
    let end = json!({"call_id": "c1", "id": "x", "name": "bash", "result": "ok", "error": false,
        "duration_ms": 1});
    let rows = [
        saved(1, json!([call("c1")])),
        text(2, 0, "Next"),
        ("tool_end", row(1, 1, end)),
        text(2, 4, "."),
    ];
    let expected = [
        "step",
        "call c1 {\"a\":1}",
        "step ended at 2",
        "result c1 ok",
        "step",
        "text 0 Next",
        "text 0 .",
    ];
    check(&rows, &expected);
}

#[test]
fn piece_before_the_first_event_is_not_lost() {
    for (turn, expected) in [(1, &["text 0 Hel", "text 0 lo"][..]), (2, &[])] {
        let (kind, (agent, (epoch, _, request), data)) = text(1, 0, "Hel");
        let early = (kind, (agent, (epoch, turn, request), data));
        let rows = [early, turn_start(1, "p"), text(1, 3, "lo")];
        let shown = shown(&take(&mut reader(prompt("p")), &log(&rows)));
        let texts: Vec<_> = shown
            .iter()
            .filter(|shown| shown.starts_with("text"))
            .collect();
        assert_eq!(texts, expected, "the early piece is of turn {turn}");
    }
}

#[test]
fn reply_that_is_never_saved_is_voided_at_the_end() {
    check(
        &[text(1, 0, "Hel"), turn_end(1)],
        &["step", "text 0 Hel", "reset", "ended completed"],
    );
}

#[test]
fn call_is_reported_once_and_ends_once() {
    let start = json!({"call_id": "c1", "id": "x", "name": "bash", "args": {}, "effect": "pure"});
    let end = json!({"call_id": "c1", "id": "x", "name": "bash", "result": "ok", "error": false,
        "duration_ms": 1});
    let progress = json!({"call_id": "c1", "message": "half"});
    let rows = [
        saved(1, json!([call("c1")])),
        ("tool_start", row(1, 1, start.clone())),
        ("tool_progress", row(1, 1, progress.clone())),
        ("tool_start", row(1, 1, start)),
        ("tool_end", row(1, 1, end.clone())),
        ("tool_end", row(1, 1, end)),
        ("tool_progress", row(1, 1, progress)),
    ];
    let expected = [
        "step",
        "call c1 {\"a\":1}",
        "step ended at 2",
        "runs c1",
        "progress c1",
        "result c1 ok",
    ];
    check(&rows, &expected);
}

#[test]
fn wait_is_closed_once() {
    let wait = |title| {
        let data = json!({"id": "c1", "kind": "approval", "title": title, "request": {},
            "digest": "d"});
        ("wait_opened", row(1, 1, data))
    };
    let closed = || {
        (
            "wait_closed",
            row(1, 1, json!({"id": "c1", "decision": "allow"})),
        )
    };
    let rows = [wait("old"), wait("new"), closed(), closed()];
    check(&rows, &["wait c1 old", "wait c1 new", "closed c1 allow"]);
}

#[test]
fn workers_are_updated() {
    let spawned = json!({"id": "w", "name": "ann", "type": "coder", "node_id": "n"});
    let rows = [
        ("worker_spawned", row(1, 1, spawned)),
        (
            "turn_start",
            ("w", (1, 1, 0), json!({"index": 1, "inputs": []})),
        ),
        (
            "text_delta",
            ("w", (1, 1, 1), json!({"text": "x", "part": 0, "offset": 0})),
        ),
        ("turn_end", ("w", (1, 1, 1), turn_end(1).1.2)),
        (
            "worker_exit",
            row(1, 1, json!({"id": "w", "name": "ann", "reason": "done"})),
        ),
    ];
    let expected = [
        "worker ann Idle",
        "worker ann Working",
        "worker ann Idle",
        "worker ann Ended",
    ];
    check(&rows, &expected);
}

#[test]
fn worker_that_begins_before_it_is_announced_stays_at_work() {
    let spawned = json!({"id": "w", "name": "ann", "type": "coder", "node_id": "n"});
    let rows = [
        (
            "turn_start",
            ("w", (1, 1, 0), json!({"index": 1, "inputs": []})),
        ),
        ("worker_spawned", row(1, 1, spawned)),
    ];
    check(&rows, &["worker w Working", "worker ann Working"]);
}

#[test]
fn worker_shows_what_it_waits_for() {
    let opened =
        json!({"id": "c1", "kind": "approval", "title": "t", "request": {}, "digest": "d"});
    let closed = json!({"id": "c1", "decision": "deny"});
    let rows = [
        turn_start(1, "p"),
        ("wait_opened", ("w", (1, 1, 1), opened)),
        ("wait_closed", ("w", (1, 1, 1), closed)),
    ];
    let mut reader = reader(prompt("p")).with_names([(agent("w"), "ann".into())]);
    let waits: Vec<_> = take(&mut reader, &log(&rows))
        .into_iter()
        .filter_map(|event| {
            let TurnEvent::Worker(worker) = event else {
                return None;
            };
            Some((worker.name, worker.state, worker.waits.len()))
        })
        .collect();
    let expected = [1, 0].map(|waits| ("ann".to_owned(), WorkerState::Idle, waits));
    assert_eq!(waits, expected);
}

#[test]
fn rewound_turn_fails() {
    let rewound = || ("rewound", row(1, 1, json!({"to": 2, "by": "client"})));
    check(
        &[text(1, 0, "Hel"), rewound()],
        &["step", "text 0 Hel", "reset", "failed rewound"],
    );
    let log: Vec<_> = log(&[turn_start(1, "p"), said(1, "Hello"), turn_end(1)])
        .into_iter()
        .map(|item| hidden(item, 4))
        .collect();
    let events = take(&mut reader(prompt("p")), &log);
    assert_eq!(shown(&events), ["started 1", "failed rewound"]);
}

#[test]
fn reader_finds_the_turn_that_was_asked_for() {
    let steer = json!({"message": {"role": "user", "content": [], "metadata": {"inputs": ["p9"]}}});
    let rows = [
        turn_start(1, "p1"),
        said(1, "one"),
        turn_end(1),
        turn_start(2, "p2"),
        ("message", row(2, 1, steer)),
        ("turn_end", row(2, 1, turn_end(2).1.2)),
    ];
    for (choice, first) in [
        (prompt("p1"), Some("started 1")),
        (prompt("p2"), Some("started 2")),
        (prompt("p9"), Some("started 2")),
        (prompt("p3"), None),
        (TurnChoice::Number(2), Some("started 2")),
    ] {
        let mut reader = reader(choice.clone());
        let events = shown(&take(&mut reader, &log(&rows)));
        assert_eq!(events.first().map(String::as_str), first, "{choice:?}");
        assert_eq!(reader.is_over(), first.is_some(), "{choice:?}");
    }
}

#[test]
fn prompt_that_gets_no_turn_fails() {
    let warning = |id: &str| {
        let data = json!({"code": "input_rejected", "message": "busy", "inputs": [id]});
        ("warning", row(1, 1, data))
    };
    for (event, code) in [
        (warning("p"), Some("failed input_rejected")),
        (warning("pp"), None),
        (
            ("session_closed", row(0, 0, json!({"reason": "closed"}))),
            Some("failed stopped"),
        ),
    ] {
        let events = shown(&take(&mut reader(prompt("p")), &log(&[event])));
        assert_eq!(events.first().map(String::as_str), code);
    }
}

#[test]
fn retracted_event_fails_the_turn_that_showed_it() {
    for (sender, kind, fails) in [
        ("lead", "message", true),
        ("lead", "usage_delta", false),
        ("w", "message", false),
    ] {
        let mut reader = reader(prompt("p"));
        take(&mut reader, &log(&[turn_start(1, "p"), said(1, "forged")]));
        let events = reader.take(&FollowEvent::Retracted(Retracted {
            seq: 2,
            kind: kind.into(),
            agent_id: agent(sender),
        }));
        assert_eq!(!events.is_empty(), fails, "{sender} {kind}");
    }
}
