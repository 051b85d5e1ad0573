//! The turns that belong to the work of a prompt.

use planck_common::command::Outcome;

use super::*;
use crate::turn::Until;

type Rows = Vec<(&'static str, Row)>;

/// An event of the lead's turn with this number, or of a worker's.
fn of(agent: &'static str, turn: u32, data: Value) -> Row {
    (agent, (1, turn, 1), data)
}

/// The start of a turn with an input: its id, its kind and its sender.
fn starts(agent: &'static str, turn: u32, input: (&str, &str, Option<&str>)) -> Rows {
    let (id, kind, from) = input;
    let inputs = json!([{"id": id, "kind": kind, "from": from}]);
    let data = json!({"index": turn, "inputs": inputs});
    vec![("turn_start", of(agent, turn, data))]
}

fn says(agent: &'static str, turn: u32, content: Value) -> Rows {
    let message = json!({"role": "assistant", "content": content});
    vec![("message", of(agent, turn, json!({"message": message})))]
}

fn words(agent: &'static str, turn: u32, text: &str) -> Rows {
    says(agent, turn, json!([{"type": "text", "text": text}]))
}

fn ends(agent: &'static str, turn: u32) -> Rows {
    let (kind, (_, _, data)) = turn_end(turn);
    vec![(kind, of(agent, turn, data))]
}

/// The lead gives a worker a task with the call `c1`, and ends its turn.
fn delegated() -> Rows {
    let rows = [
        starts("lead", 1, ("p", "prompt", None)),
        says("lead", 1, json!([call("c1")])),
        words("lead", 1, "It is at work."),
        ends("lead", 1),
    ];
    rows.concat()
}

/// The worker reads the task, and responds with the call `c2`.
fn worked() -> Rows {
    let rows = [
        starts("w", 1, ("c1", "task", Some("lead"))),
        says("w", 1, json!([call("c2")])),
        ends("w", 1),
    ];
    rows.concat()
}

/// The lead reads an input in a turn with this number.
fn read(turn: u32, input: (&str, &str, Option<&str>)) -> Rows {
    let rows = [
        starts("lead", turn, input),
        words("lead", turn, "Done."),
        ends("lead", turn),
    ];
    rows.concat()
}

const RESPONSE: (&str, &str, Option<&str>) = ("c2", "response", Some("w"));

fn outcome(outcome: &str, turns: &[u32], head: usize) -> Outcome {
    let outcome = json!({"prompt_id": "p", "agent_id": "lead", "state": "over",
        "outcome": outcome, "turns": turns, "head": head});
    serde_json::from_value(outcome).unwrap()
}

fn worker() -> TurnReader {
    let names = [(agent("lead"), "lead".into()), (agent("w"), "ann".into())];
    reader(prompt("p")).until(Until::Work).with_names(names)
}

fn all(reader: &mut TurnReader, rows: &[Rows]) -> Vec<String> {
    shown(&take(reader, &log(&rows.concat())))
}

/// Returns the starts and the ends of turns among the events.
fn turns(reader: &mut TurnReader, rows: &[Rows]) -> Vec<String> {
    let mut events = all(reader, rows);
    events.retain(|event| {
        ["started", "ended", "failed"]
            .iter()
            .any(|kind| event.starts_with(kind))
    });
    events
}

#[test]
fn answer_goes_on_with_the_turn_that_reads_the_response() {
    let mut reader = worker();
    let events = all(&mut reader, &[delegated(), worked(), read(2, RESPONSE)]);
    let expected = [
        "started 1",
        "step",
        "call c1 {\"a\":1}",
        "step ended at 2",
        "step",
        "text 0 It is at work.",
        "step ended at 3",
        "worker ann Working",
        "worker ann Idle",
        "started 2",
        "step",
        "text 0 Done.",
        "step ended at 9",
    ];
    assert_eq!(events, expected);
    assert_eq!(reader.awaited().map(|prompt| prompt.as_str()), Some("p"));
    let over = outcome("completed", &[1, 2], 10);
    assert!(reader.has_all(&over));
    let end = reader.over(Some(&over));
    let [TurnEvent::Ended { usage, seq, .. }] = end.as_slice() else {
        panic!("{end:?}")
    };
    assert_eq!((usage.input_tokens, *seq), (2, 10), "both turns count");
    assert!(reader.is_over());
}

#[test]
fn note_about_a_task_belongs_to_the_work_of_the_task() {
    let note = InputId::parse("c1").unwrap().unanswered();
    let note = (note.as_str(), "note", Some("w"));
    let started = turns(&mut worker(), &[delegated(), worked(), read(2, note)]);
    assert_eq!(started, ["started 1", "started 2"]);
}

#[test]
fn first_task_of_a_spawned_agent_belongs_to_the_work() {
    use planck_common::{CallId, SessionId};
    let (session, call) = (SessionId::parse("s").unwrap(), CallId::parse("c1").unwrap());
    let task = CallId::of(&session, &call.as_agent(), 0, 0, 0, 0).as_input();
    let worked = [
        starts("w", 1, (task.as_str(), "task", Some("lead"))),
        says("w", 1, json!([super::call("c2")])),
        ends("w", 1),
    ];
    let rows = [delegated(), worked.concat(), read(2, RESPONSE)];
    assert_eq!(turns(&mut worker(), &rows), ["started 1", "started 2"]);
}

#[test]
fn turn_of_another_prompt_is_not_shown() {
    let other = ("q", "prompt", None);
    let rows = [delegated(), read(2, other), worked(), read(3, RESPONSE)];
    assert_eq!(turns(&mut worker(), &rows), ["started 1", "started 3"]);
    // Neither is the work of an agent for that prompt.
    let rows = [
        delegated(),
        starts("w", 1, ("other", "task", Some("lead"))),
        ends("w", 1),
    ];
    let events = all(&mut worker(), &rows);
    assert!(!events.iter().any(|event| event.starts_with("worker")));
}

#[test]
fn turn_belongs_to_the_work_from_the_input_on_that_it_takes() {
    let steer = json!({"message": {"role": "user", "content": [], "metadata": {"inputs": ["c2"]}}});
    let rows = [
        delegated(),
        worked(),
        starts("lead", 2, ("q", "prompt", None)),
        words("lead", 2, "For q."),
        vec![("message", of("lead", 2, steer))],
        words("lead", 2, "For p."),
    ];
    let events = all(&mut worker(), &rows);
    let from = events.iter().position(|event| event == "started 2");
    let rest = &events[from.unwrap()..];
    let expected = ["started 2", "step", "text 0 For p.", "step ended at 11"];
    assert_eq!(rest, expected);
}

#[test]
fn turn_that_can_cause_nothing_is_the_last_one() {
    let ended = ["started 1", "ended completed"];
    let alone = [read(1, ("p", "prompt", None))];
    assert_eq!(turns(&mut worker(), &alone), ended, "no call was made");
    let mut single = reader(prompt("p")).until(Until::Work);
    assert_eq!(turns(&mut single, &[delegated()]), ended, "no other agent");
    let names = [(agent("w"), "ann".into())];
    let mut first = reader(prompt("p")).until(Until::Turn).with_names(names);
    assert_eq!(turns(&mut first, &[delegated()]), ended, "only the turn");
}

#[test]
fn work_ends_when_all_of_it_was_read() {
    let mut reader = worker();
    assert!(!reader.has_all(&outcome("completed", &[1], 0)), "before");
    let rows = [
        delegated(),
        starts("w", 1, ("c1", "task", Some("lead"))),
        says("w", 1, json!([call("c2")])),
        read(2, RESPONSE),
    ];
    all(&mut reader, &rows);
    // The log goes on with the end of the worker's turn.
    assert!(!reader.has_all(&outcome("completed", &[1, 2], 10)));
    assert!(!reader.has_all(&outcome("completed", &[1, 2, 3], 20)));
    let rows = [rows.concat(), ends("w", 1)];
    all(&mut reader, &rows);
    assert!(reader.has_all(&outcome("completed", &[1, 2], 100)));
    assert!(!reader.has_all(&outcome("completed", &[1, 2, 3], 100)));
}

#[test]
fn work_that_was_not_finished_fails() {
    for (how, expected) in [
        (Some("stopped"), "failed stopped"),
        (Some("rewound"), "failed rewound"),
        (Some("aborted"), "ended completed"),
        (None, "ended completed"),
    ] {
        let mut reader = worker();
        all(&mut reader, &[delegated()]);
        let outcome = how.map(|how| outcome(how, &[1], 4));
        let end = shown(&reader.over(outcome.as_ref()));
        assert_eq!(end, [expected], "{how:?}");
    }
    let closed = vec![("session_closed", of("lead", 1, json!({"reason": "closed"})))];
    let failed = turns(&mut worker(), &[delegated(), closed]);
    assert_eq!(failed, ["started 1", "failed stopped"]);
}

#[test]
fn failed_turn_is_not_the_end_if_the_work_goes_on() {
    let failed = json!({"code": "provider", "reason": "no luck", "retryable": false, "inputs": []});
    let first = [
        starts("lead", 1, ("p", "prompt", None)),
        says("lead", 1, json!([call("c1")])),
        vec![("error", of("lead", 1, failed))],
    ];
    let mut reader = worker();
    let rows = [first.concat(), worked(), read(2, RESPONSE)];
    assert_eq!(turns(&mut reader, &rows), ["started 1", "started 2"]);
    let end = shown(&reader.over(None));
    assert_eq!(end, ["ended completed"]);
    let mut reader = worker();
    all(&mut reader, &[first.concat()]);
    assert_eq!(shown(&reader.over(None)), ["failed provider"]);
}
