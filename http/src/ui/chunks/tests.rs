use planck_client::turn::{WorkerState, WorkerUpdate};
use planck_common::{AgentId, usage::Usage};
use serde_json::value::RawValue;

use super::*;

fn id(id: &str) -> CallId {
    CallId::parse(id).unwrap()
}

fn encoder(continued: Option<Continued>) -> ChunkEncoder {
    ChunkEncoder::new(SessionId::parse("s").unwrap(), continued)
}

fn started() -> TurnEvent {
    TurnEvent::Started {
        turn: 3,
        has_shape: false,
    }
}

fn text(part: usize, text: &str) -> TurnEvent {
    let text = text.into();
    TurnEvent::Text { part, text }
}

fn reasoning(part: usize, text: &str) -> TurnEvent {
    let text = text.into();
    TurnEvent::Reasoning { part, text }
}

fn reset() -> TurnEvent {
    TurnEvent::StepReset
}

fn step() -> TurnEvent {
    TurnEvent::StepStarted
}

fn step_ended() -> TurnEvent {
    TurnEvent::StepEnded { seq: 9 }
}

fn called(call: &str, name: &str) -> TurnEvent {
    TurnEvent::ToolCalled {
        call_id: id(call),
        name: name.into(),
        args: RawValue::from_string(r#"{"a":1}"#.into()).unwrap(),
        invalid: None,
    }
}

fn runs(call: &str) -> TurnEvent {
    TurnEvent::ToolStarted { call_id: id(call) }
}

fn result(call: &str, result: &str, is_error: bool) -> TurnEvent {
    TurnEvent::ToolEnded {
        call_id: id(call),
        result: result.into(),
        is_error,
    }
}

fn wait(call: &str, kind: &str) -> TurnEvent {
    let wait = json!({"id": call, "kind": kind, "title": "t", "request": {}, "digest": "d"});
    TurnEvent::WaitOpened(serde_json::from_value(wait).unwrap())
}

fn closed(call: &str, decision: &str) -> TurnEvent {
    let wait = json!({"id": call, "decision": decision});
    TurnEvent::WaitClosed(serde_json::from_value(wait).unwrap())
}

fn ended(outcome: TurnOutcome) -> TurnEvent {
    TurnEvent::Ended {
        output: None,
        seq: 12,
        outcome,
        refused: false,
        limit: None,
        usage: Usage::default(),
    }
}

fn worker(state: WorkerState) -> TurnEvent {
    TurnEvent::Worker(WorkerUpdate {
        id: AgentId::parse("w").unwrap(),
        name: "ann".into(),
        state,
        text: None,
        waits: Vec::new(),
    })
}

/// Returns the chunks of events: the type, and what tells it from others of the type.
fn written(encoder: &mut ChunkEncoder, events: Vec<TurnEvent>) -> Vec<String> {
    let chunks = events.into_iter().flat_map(|event| encoder.take(event));
    let keys = [
        "delta",
        "messageId",
        "toolName",
        "output",
        "approved",
        "finishReason",
    ];
    let shown = chunks.map(|chunk| {
        let kind = chunk["type"].as_str().unwrap().to_owned();
        let part = chunk["id"].as_str().filter(|_| !kind.ends_with("delta"));
        let part = part.map(|id| format!(" {id}")).unwrap_or_default();
        let more = keys.iter().filter_map(|key| chunk.get(*key));
        more.fold(kind + &part, |text, value| format!("{text} {value}"))
    });
    shown.collect()
}

#[track_caller]
fn check(events: Vec<TurnEvent>, expected: &[&str]) {
    assert_eq!(written(&mut encoder(None), events), expected);
}

#[test]
fn parts_are_started_and_ended() {
    check(
        vec![
            started(),
            step(),
            reasoning(0, "Hm"),
            reasoning(0, "."),
            text(1, "Yes"),
            step_ended(),
            step(),
            text(0, "More"),
            step_ended(),
            ended(TurnOutcome::Completed),
        ],
        &[
            "start \"s-3\"",
            "start-step",
            "reasoning-start reasoning-1",
            "reasoning-delta \"Hm\"",
            "reasoning-delta \".\"",
            "reasoning-end reasoning-1",
            "text-start text-2",
            "text-delta \"Yes\"",
            "text-end text-2",
            "finish-step",
            "start-step",
            "text-start text-3",
            "text-delta \"More\"",
            "text-end text-3",
            "finish-step",
            "finish \"stop\"",
        ],
    );
}

#[test]
fn reset_voids_the_step_and_keeps_the_workers() {
    let mut encoder = encoder(None);
    written(
        &mut encoder,
        vec![started(), step(), worker(WorkerState::Idle)],
    );
    let events = vec![
        text(0, "a"),
        worker(WorkerState::Working),
        reset(),
        text(0, "b"),
    ];
    assert_eq!(
        written(&mut encoder, events),
        [
            "text-start text-1",
            "text-delta \"a\"",
            "data-agent w",
            "reset-step",
            "data-agent w",
            "text-start text-2",
            "text-delta \"b\"",
        ]
    );
    // In the next step the part of the worker is safe, because it is in an earlier one.
    let events = vec![step_ended(), step(), worker(WorkerState::Ended), reset()];
    assert_eq!(
        written(&mut encoder, events),
        [
            "text-end text-2",
            "finish-step",
            "start-step",
            "data-agent w",
            "reset-step"
        ]
    );
}

#[test]
fn call_is_shown_when_it_is_known_who_runs_it() {
    let mut encoder = encoder(None);
    let events = vec![
        started(),
        step(),
        called("c1", "bash"),
        called("c2", "mine"),
        step_ended(),
    ];
    assert_eq!(
        written(&mut encoder, events),
        ["start \"s-3\"", "start-step"]
    );
    let shown = encoder.take(runs("c1")).remove(0);
    assert_eq!(shown["providerExecuted"], true);
    assert_eq!(
        (&shown["dynamic"], &shown["input"]),
        (&json!(true), &json!({"a": 1}))
    );
    let shown = encoder.take(wait("c2", "client_tool")).remove(0);
    assert_eq!(shown.get("providerExecuted"), None);
    assert_eq!(shown["dynamic"], false);
    let ends = written(
        &mut encoder,
        vec![result("c1", "1", false), result("c2", "{\"b\":1}", false)],
    );
    assert_eq!(
        ends,
        [
            "tool-output-available \"1\"",
            "tool-output-available {\"b\":1}"
        ]
    );
}

#[test]
fn stream_ends_when_only_the_client_can_continue() {
    let begin = || {
        vec![
            started(),
            step(),
            called("c1", "a"),
            called("c2", "b"),
            step_ended(),
        ]
    };
    let mut encoder = encoder(None);
    written(&mut encoder, begin());
    // In the log this wait was answered long ago.
    let events = vec![wait("c1", "approval"), runs("c2"), result("c2", "r", false)];
    written(&mut encoder, events);
    assert!(!encoder.is_over());
    written(
        &mut encoder,
        vec![closed("c1", "allow"), TurnEvent::CaughtUp, runs("c1")],
    );
    assert!(!encoder.is_over());
    let events = vec![
        result("c1", "r", false),
        step(),
        called("c3", "c"),
        step_ended(),
    ];
    written(&mut encoder, events);
    assert_eq!(
        written(&mut encoder, vec![wait("c3", "approval")]),
        [
            "tool-input-available \"c\"",
            "tool-approval-request",
            "finish-step",
            "finish \"tool-calls\"",
        ]
    );
    assert!(encoder.is_over());
}

#[test]
fn client_that_answered_gets_the_rest() {
    let continued = Continued {
        answered: HashSet::from([id("c1")]),
        approvals: HashMap::from([(id("c1"), "c1:d".into())]),
    };
    let mut encoder = encoder(Some(continued));
    let known = vec![
        started(),
        step(),
        text(0, "a"),
        called("c1", "bash"),
        step_ended(),
        wait("c1", "approval"),
        TurnEvent::CaughtUp,
    ];
    assert!(written(&mut encoder, known).is_empty());
    assert!(!encoder.is_over());
    assert_eq!(
        written(
            &mut encoder,
            vec![closed("c1", "allow"), runs("c1"), result("c1", "r", false)]
        ),
        [
            "start \"s-3\"",
            "tool-approval-response true",
            "tool-output-available \"r\"",
        ]
    );
}

#[test]
fn client_keeps_the_output_of_its_own_tool() {
    let continued = Continued {
        answered: HashSet::from([id("c1")]),
        approvals: HashMap::new(),
    };
    let events = vec![
        started(),
        step(),
        called("c1", "mine"),
        step_ended(),
        wait("c1", "client_tool"),
        closed("c1", "answer"),
        result("c1", "7", false),
    ];
    assert_eq!(
        written(&mut encoder(Some(continued)), events),
        ["start \"s-3\""]
    );
}

#[test]
fn call_that_is_not_allowed_is_denied() {
    for (decision, last) in [
        ("deny", "tool-output-denied"),
        ("expired", "tool-output-error"),
    ] {
        let mut encoder = encoder(None);
        written(
            &mut encoder,
            vec![started(), step(), called("c1", "bash"), step_ended()],
        );
        let events = vec![
            wait("c1", "approval"),
            closed("c1", decision),
            result("c1", "no", true),
        ];
        assert_eq!(
            written(&mut encoder, events)[2..],
            ["tool-approval-response false", last]
        );
    }
}

#[test]
fn question_is_a_part_that_says_how_it_ended() {
    let mut encoder = encoder(None);
    written(
        &mut encoder,
        vec![started(), step(), called("c1", "ask_user"), step_ended()],
    );
    let open = encoder.take(wait("c1", "question"));
    assert_eq!(open[0]["dynamic"], true);
    assert_eq!(open[1]["data"]["state"], "open");
    let over = encoder.take(closed("c1", "answer"));
    assert_eq!(
        (&over[0]["id"], &over[0]["data"]["state"]),
        (&json!("c1"), &json!("answer"))
    );
    assert_eq!(over[0]["data"]["title"], "t");
}

#[test]
fn ends_are_told_apart() {
    for (event, expected) in [
        (ended(TurnOutcome::Truncated), vec!["finish \"length\""]),
        (ended(TurnOutcome::Limit), vec!["finish \"other\""]),
        (
            TurnEvent::Ended {
                output: None,
                seq: 12,
                outcome: TurnOutcome::Completed,
                refused: true,
                limit: None,
                usage: Usage::default(),
            },
            vec!["finish \"content-filter\""],
        ),
        (
            ended(TurnOutcome::Aborted),
            vec!["abort", "finish \"interrupted\""],
        ),
        (
            TurnEvent::Failed {
                code: "auth".into(),
                reason: "r".into(),
            },
            vec!["error"],
        ),
    ] {
        let mut encoder = encoder(None);
        written(&mut encoder, vec![started()]);
        assert_eq!(written(&mut encoder, vec![event]), expected);
        assert!(encoder.is_over());
    }
}
