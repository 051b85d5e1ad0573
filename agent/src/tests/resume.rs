//! Tests of how a restored agent resumes or closes the work that was interrupted.

use planck_common::{
    command::InputMode,
    event::{EventKind, InputKind},
    message::StopReason,
};

use super::{
    super::{
        Input, InputOutcome, Mark, NewInput, OpenTurn, StoredInput, Unstorable, effect::Change,
    },
    script::*,
    world::World,
};
use crate::outcome::ToolOutcome;

#[test]
fn input_that_may_not_wait_is_refused_by_an_agent_that_was_loaded_after_it_was_put() {
    let mut world = world();
    world.put(prompt("p1"));
    let hurried = NewInput {
        mode: InputMode::Reject,
        ..prompt("p2")
    };
    let row = StoredInput::unread(hurried.clone(), 0);
    world.inputs.push(row);
    world.crash();
    assert_eq!(world.agent.queued(), 1);
    world.step(Input::Delivered(hurried));
    assert_eq!(world.outcome("p2"), Some("busy"));
    assert_eq!(world.agent.queued(), 0);
    world.say("done");
    assert_eq!(world.ends().len(), 1);
}

#[test]
fn interrupted_call_is_repeated_or_failed_by_its_effect() {
    let mut world = world();
    world.put(prompt("p1"));
    let calls = [
        call(0, "write", "{}"),
        call(1, "read", "{}"),
        call(2, "ask", "{}"),
        call(3, "read", "{\"b\":1}"),
    ]
    .concat();
    world.answer(calls, StopReason::ToolUse);
    let before: Vec<_> = world.tools.iter().map(|run| run.call_id.clone()).collect();
    assert!(world.tools.iter().all(|run| !run.is_repeat));
    world.tools.swap(0, 3);
    world.tool_done(ToolOutcome::ok("had finished"));
    world.commit_all();
    world.crash();
    let again: Vec<_> = world.tools.iter().map(|run| run.call_id.clone()).collect();
    assert_eq!(
        again,
        before[1..3],
        "pure and idempotent calls run again under the same id"
    );
    assert!(world.tools.iter().all(|run| run.is_repeat));
    world.tool_done(ToolOutcome::ok("read"));
    world.tool_done(ToolOutcome::ok("asked"));
    assert_eq!(world.agent.request(), 2);
    world.say("done");
    assert_eq!(
        world.results(),
        [
            "interrupted; it may or may not have taken effect",
            "read",
            "asked",
            "had finished"
        ]
    );
    assert_eq!(
        world
            .kinds()
            .iter()
            .filter(|kind| **kind == "turn_start")
            .count(),
        1
    );
}

/// Returns an agent with three waiting prompts, loaded after the store refused a save that consumed
/// some of them.
fn loaded_without(consumed: &[&str]) -> World {
    let mut world = world();
    let row = |id| StoredInput::unread(prompt(id), 0);
    world.inputs = ["p1", "p2", "p3"].map(row).into();
    let mark = |id: &&str| Mark {
        input: prompt(id).id,
        change: Change::Consumed { turn: 1 },
    };
    let marks: Vec<Mark> = consumed.iter().map(mark).collect();
    world.load_as(OpenTurn::Refused(Unstorable::new("a test", &marks)));
    world
}

#[test]
fn inputs_of_a_refused_save_are_taken_one_by_one() {
    let world = loaded_without(&["p1", "p2"]);
    assert_eq!(
        world
            .inputs
            .iter()
            .map(|input| input.turn)
            .collect::<Vec<_>>(),
        [Some(1), None, None]
    );
    assert!(world.inputs.iter().all(|input| input.outcome.is_none()));
}

#[test]
fn single_input_of_a_refused_save_is_refused_and_the_agent_continues() {
    let world = loaded_without(&["p1"]);
    let fates = world
        .inputs
        .iter()
        .map(|input| (input.turn, input.outcome.as_ref().map(InputOutcome::name)))
        .collect::<Vec<_>>();
    assert_eq!(
        fates,
        [(Some(1), Some("error")), (Some(2), None), (Some(2), None)]
    );
    let kinds: Vec<EventKind> = world.rows.iter().map(|row| row.kind).take(3).collect();
    assert_eq!(
        kinds,
        [EventKind::TurnStart, EventKind::Error, EventKind::TurnStart]
    );
    assert!(
        world.rows[1].body.contains("not_storable") && world.rows[1].body.contains("p1"),
        "{}",
        world.rows[1].body
    );
}

#[test]
fn turn_that_was_rewound_or_lost_is_closed() {
    let mut before = world();
    before.put(arrival("q1", InputKind::Question, "?"));
    before.call_tool("write", "{}");
    for (open_turn, rewound, kind) in [
        (OpenTurn::Lost, false, EventKind::Error),
        (
            OpenTurn::Refused(Unstorable::new("a test", &[])),
            false,
            EventKind::Error,
        ),
        (OpenTurn::Close, false, EventKind::TurnEnd),
        (OpenTurn::Resume, true, EventKind::TurnEnd),
    ] {
        let mut world = world();
        (world.rows, world.inputs) = (before.rows.clone(), before.inputs.clone());
        if rewound {
            world.inputs[0].outcome = Some("rewound".into());
        }
        world.load_as(open_turn);
        assert_eq!(world.rows.last().unwrap().kind, kind);
        assert_eq!(
            world.results(),
            ["interrupted; it may or may not have taken effect"]
        );
        assert!(world.agent.is_idle() && world.inputs[0].outcome.is_some());
    }
}

/// The agent of a dead node may be loaded a while before it can be stopped.
#[test]
fn agent_that_was_lost_opens_no_turn_for_an_unread_input() {
    for (open_turn, reads) in [(OpenTurn::Resume, true), (OpenTurn::Lost, false)] {
        let mut world = world();
        world.put(prompt("p1"));
        world.say("done");
        world.put_unnoticed(prompt("p2"));
        world.load_as(open_turn);
        assert_eq!(world.agent.turn() == 2, reads);
        assert_eq!(world.inputs[1].turn.is_some(), reads);
    }
}

#[test]
fn call_after_a_rewind_has_an_id_of_its_own() {
    let mut world = world();
    for id in ["p1", "p2"] {
        world.put(prompt(id));
        world.call_tool("write", "{}");
        world.tool_done(ToolOutcome::ok("written"));
        world.say("done");
    }
    world.rewind(0);
    world.put(prompt("p3"));
    assert_eq!(world.agent.turn(), 2, "the hidden turn had the same number");
    world.call_tool("write", "{}");
    assert_eq!(world.ledger.len(), 3);
}
