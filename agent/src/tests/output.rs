//! Tests of turns whose answer has a shape.

use planck_common::{
    command::AgentState,
    event::{Event, EventKind, InputKind, ToolEffect, TurnEnd, TurnOutcome},
    message::StopReason,
    spec::OutputSpec,
};
use serde_json::json;

use super::{
    script::*,
    world::{World, setup, tool},
};
use crate::{Input, SUBMIT_OUTPUT, input::Command, outcome::ToolOutcome};

fn shaped(id: &str) -> crate::NewInput {
    crate::NewInput {
        output: Some(OutputSpec {
            schema: json!({"type": "object"}),
            name: Some("verdict".into()),
        }),
        ..prompt(id)
    }
}

fn asked() -> World {
    let mut setup = setup();
    let mut tools = setup.tools.to_vec();
    tools.push(tool("delegate_task", ToolEffect::Idempotent));
    setup.tools = tools.into();
    let mut world = World::new(setup);
    world.put(shaped("p1"));
    world
}

fn submit(world: &mut World, args: &str) {
    world.call_tool(SUBMIT_OUTPUT, args);
    world.commit_all();
    assert!(world.tools[0].output.is_some());
    let outcome = match args.contains("bad") {
        true => ToolOutcome::error("`bad` is not a property"),
        false => ToolOutcome::ok("taken"),
    };
    world.tool_done(outcome);
    world.commit_all();
}

/// Returns the only end of a turn.
fn end(world: &World) -> TurnEnd {
    match world.ends().as_slice() {
        [Event::TurnEnd(end)] => end.clone(),
        ends => panic!("{ends:?}"),
    }
}

fn output(end: &TurnEnd) -> Option<&str> {
    end.output.as_ref().map(|output| output.get())
}

/// Performs a step on a world, and on one whose process crashes after it.
fn also_after_a_crash(steps: &[&dyn Fn(&mut World)], check: impl Fn(&World)) {
    for crash_after in 0..=steps.len() {
        let mut world = asked();
        for (at, step) in steps.iter().enumerate() {
            if at == crash_after {
                world.crash();
            }
            step(&mut world);
        }
        world.commit_all();
        check(&world);
    }
}

#[test]
fn turn_ends_with_the_answer() {
    let steps: [&dyn Fn(&mut World); 1] = [&|world| submit(world, r#"{"n": 1}"#)];
    also_after_a_crash(&steps, |world| {
        assert!(world.agent.is_idle());
        let end = end(world);
        assert_eq!(output(&end), Some(r#"{"n": 1}"#));
        assert_eq!(
            (end.outcome, end.output_repairs),
            (TurnOutcome::Completed, 0)
        );
    });
}

#[test]
fn model_that_stops_without_the_answer_is_told_once() {
    let steps: [&dyn Fn(&mut World); 2] = [
        &|world| {
            assert_eq!(world.agent.demanded_tool(), None);
            world.say("It is one.");
            world.commit_all();
        },
        &|world| {
            assert_eq!(world.agent.demanded_tool(), Some(SUBMIT_OUTPUT));
            submit(world, r#"{"n": 1}"#);
        },
    ];
    also_after_a_crash(&steps, |world| {
        assert_eq!(output(&end(world)), Some(r#"{"n": 1}"#))
    });
    let steps: [&dyn Fn(&mut World); 2] = [
        &|world| {
            world.say("It is one.");
            world.commit_all();
        },
        &|world| {
            world.say("As I said.");
            world.commit_all();
        },
    ];
    also_after_a_crash(&steps, |world| match world.ends().as_slice() {
        [Event::Error(error)] => assert_eq!(error.code, "output_invalid"),
        ends => panic!("{ends:?}"),
    });
}

#[test]
fn object_in_place_of_a_demanded_call_is_a_call() {
    let mut world = asked();
    world.say("{\"n\": 1}");
    world.commit_all();
    assert!(world.tools.is_empty(), "nothing was demanded yet");
    world.say(" {\"n\": 1}\n");
    world.commit_all();
    world.tool_done(ToolOutcome::ok("taken"));
    world.commit_all();
    assert_eq!(output(&end(&world)), Some("{\"n\": 1}"));
}

#[test]
fn wrong_answer_is_repaired_twice() {
    let wrong = |world: &mut World| submit(world, r#"{"bad": 1}"#);
    let right = |world: &mut World| submit(world, r#"{"n": 1}"#);
    also_after_a_crash(&[&wrong, &wrong, &right], |world| {
        let end = end(world);
        assert_eq!((output(&end), end.output_repairs), (Some(r#"{"n": 1}"#), 2));
        assert!(world.results()[0].contains("`bad` is not a property"));
    });
    also_after_a_crash(&[&wrong, &wrong, &wrong], |world| {
        match world.ends().as_slice() {
            [Event::Error(error)] => {
                assert_eq!(error.code, "output_invalid");
                assert!(
                    error.reason.contains("`bad` is not a property"),
                    "{}",
                    error.reason
                );
            }
            ends => panic!("{ends:?}"),
        }
    });
}

#[test]
fn other_calls_of_the_reply_run_first() {
    let mut world = asked();
    let chunks = [
        call(0, SUBMIT_OUTPUT, r#"{"n": 1}"#),
        call(1, "read", r#"{"path": "a"}"#),
        call(2, SUBMIT_OUTPUT, r#"{"n": 2}"#),
    ]
    .concat();
    world.answer(chunks, StopReason::ToolUse);
    world.commit_all();
    assert_eq!(world.agent.state(), AgentState::ExecutingTools);
    for _ in 0..3 {
        assert!(world.ends().is_empty());
        world.tool_done(ToolOutcome::ok("text"));
        world.commit_all();
    }
    assert_eq!(output(&end(&world)), Some(r#"{"n": 1}"#));
}

#[test]
fn reply_that_was_cut_is_no_answer_and_no_repair() {
    let mut world = asked();
    world.answer(
        call(0, SUBMIT_OUTPUT, r#"{"n": 1}"#).into(),
        StopReason::Length,
    );
    world.commit_all();
    let end = end(&world);
    assert_eq!((end.outcome, output(&end)), (TurnOutcome::Truncated, None));
}

#[test]
fn turn_may_leave_the_answer_to_one_that_reads_the_response() {
    let delegate = |world: &mut World| {
        world.call_tool("delegate_task", "{}");
        world.commit_all();
        world.tool_done(ToolOutcome::ok("{}"));
        world.commit_all();
    };
    let leave = |world: &mut World| {
        world.say("The worker is at it.");
        world.commit_all();
    };
    let respond = |world: &mut World| {
        let ended = world
            .rows
            .iter()
            .rev()
            .find(|row| row.kind == EventKind::TurnEnd)
            .unwrap();
        let end: TurnEnd = serde_json::from_str(&ended.body).unwrap();
        let task = end.output_due.unwrap().tasks.remove(0);
        world.put(crate::NewInput {
            reply_to: Some(task),
            ..arrival("r1", InputKind::Response, "done")
        });
    };
    let talk = |world: &mut World| {
        world.say("It is done.");
        world.commit_all();
        assert_eq!(world.agent.demanded_tool(), Some(SUBMIT_OUTPUT));
    };
    let answer = |world: &mut World| submit(world, r#"{"n": 1}"#);
    also_after_a_crash(
        &[&delegate, &leave, &respond, &talk, &answer],
        |world| match world.ends().as_slice() {
            [Event::TurnEnd(first), Event::TurnEnd(second)] => {
                assert_eq!((output(first), output(second)), (None, Some(r#"{"n": 1}"#)));
            }
            ends => panic!("{ends:?}"),
        },
    );
}

#[test]
fn shape_that_a_turn_left_ends_with_the_agent() {
    let mut world = asked();
    world.call_tool("delegate_task", "{}");
    world.commit_all();
    world.tool_done(ToolOutcome::ok("{}"));
    world.say("The worker is at it.");
    world.commit_all();
    assert!(end(&world).output_due.is_some());
    world.step(Input::Command(Command::Stop {
        reason: "closed".into(),
        for_good: false,
        last: vec![],
    }));
    world.commit_all();
    assert!(std::mem::take(&mut world.stopped));
    world.crash();
    world.put(prompt("p2"));
    world.commit_all();
    let offered = world.agent.tools();
    assert!(offered.iter().all(|tool| tool.name != SUBMIT_OUTPUT));
}

#[test]
fn next_turn_has_no_shape() {
    let mut world = asked();
    submit(&mut world, r#"{"n": 1}"#);
    world.put(prompt("p2"));
    world.commit_all();
    assert!(
        world
            .agent
            .tools()
            .iter()
            .all(|tool| tool.name != SUBMIT_OUTPUT)
    );
    world.say("hello");
    world.commit_all();
    assert!(world.agent.is_idle());
    assert_eq!(world.ends().len(), 2);
}
