//! Calls whose tools ask a person: the call waits, and runs again with the answer.

use planck_common::{
    event::{Event, EventKind},
    message::StopReason,
    sidecar::ToolQuestion,
    wait::{WaitDecision, WaitKind, WaitOpened},
};
use serde_json::json;

use super::{
    script::*,
    world::{World, setup},
};
use crate::outcome::ToolOutcome;

pub fn asking(message: &str) -> ToolOutcome {
    ToolOutcome::asks(ToolQuestion {
        message: message.into(),
        schema: Some(json!({"type": "string"})),
        state: Some(json!({"message": message})),
    })
}

/// Returns a world in which a call with an effect, and one without, run.
fn calling() -> World {
    let mut world = World::new(setup());
    world.put(prompt("p1"));
    let calls = [call(0, "write", "{}"), call(1, "read", "{}")].concat();
    world.answer(calls, StopReason::ToolUse);
    world.commit_all();
    world
}

fn opened(world: &World) -> WaitOpened {
    match world.events_of(EventKind::WaitOpened).pop() {
        Some(Event::WaitOpened(opened)) => opened,
        other => panic!("no wait: {other:?}"),
    }
}

/// Answers the open question, and returns the decision and the state with which its call runs again.
fn answered(world: &mut World, decision: WaitDecision) -> (WaitDecision, serde_json::Value) {
    world.decide(0, decision, true);
    world.commit_all();
    let run = world.tools.iter().find(|run| run.answer.is_some());
    let answer = run.and_then(|run| run.answer.clone()).expect("no run");
    (answer.decision, answer.state.unwrap())
}

#[test]
fn call_runs_again_with_the_answer() {
    let mut world = calling();
    world.tool_done(asking("Which?"));
    world.tool_done(ToolOutcome::ok("read"));
    world.commit_all();
    assert!(
        world.agent.is_waiting(),
        "an agent that waits can be unloaded"
    );
    let first = opened(&world);
    assert_eq!(
        (first.kind, first.title.as_str()),
        (WaitKind::Question, "write asks: Which?")
    );
    assert_ne!(first.id, *first.call());
    world.crash();
    assert!(
        world.agent.is_waiting() && world.tools.is_empty(),
        "it waits on"
    );
    let state = json!({"message": "Which?"});
    assert_eq!(
        answered(&mut world, WaitDecision::Answer),
        (WaitDecision::Answer, state)
    );

    world.tool_done(asking("Sure?"));
    world.commit_all();
    assert_ne!(opened(&world).id, first.id);
    let state = json!({"message": "Sure?"});
    assert_eq!(
        answered(&mut world, WaitDecision::Deny),
        (WaitDecision::Deny, state)
    );
    world.tool_done(ToolOutcome::ok("written"));
    world.commit_all();
    assert_eq!(world.results(), ["written", "read"]);
    assert_eq!(world.events_of(EventKind::ToolStart).len(), 2);
}

#[test]
fn call_that_dies_after_the_answer_is_decided_by_its_effect() {
    let mut world = calling();
    world.tool_done(asking("Which?"));
    world.tool_done(asking("Which one to read?"));
    world.commit_all();
    answered(&mut world, WaitDecision::Answer);
    answered(&mut world, WaitDecision::Answer);
    world.crash();
    world.commit_all();
    let names: Vec<&str> = world.tools.iter().map(|run| run.name.as_str()).collect();
    assert_eq!(
        names,
        ["read"],
        "only the call without an effect runs again"
    );
    assert!(world.tools[0].is_repeat && world.tools[0].answer.is_none());
}

#[test]
fn question_is_withdrawn_with_its_turn() {
    let mut world = calling();
    world.tool_done(asking("Which?"));
    world.tool_done(ToolOutcome::ok("read"));
    world.commit_all();
    let reason = None;
    world.step(crate::Input::Command(crate::Command::Abort { reason }));
    world.commit_all();
    let told = "the tool asked a question, and the turn ended before it was answered; the call may or may not have taken effect";
    assert_eq!(world.results(), [told, "read"]);
    assert!(world.agent.is_idle());
}

#[test]
fn questions_of_a_call_are_bounded() {
    let mut world = calling();
    for _ in 0..16 {
        world.tool_done(asking("Again?"));
        world.commit_all();
        // The other call runs meanwhile, so the one that asked is the last to run again.
        let other = world.tools.remove(0);
        answered(&mut world, WaitDecision::Answer);
        world.tools.push(other);
    }
    world.tool_done(asking("Again?"));
    world.tool_done(ToolOutcome::ok("read"));
    world.commit_all();
    let results = world.results();
    assert!(
        results[0].starts_with("the tool asked a question, which no person was asked"),
        "{results:?}"
    );
}
