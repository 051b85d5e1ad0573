//! Tests of whole turns: the inputs that the agent gets, and the effects that it requests.

use planck_common::{
    command::{AgentState, InputMode},
    event::{EventKind, InputKind},
    message::StopReason,
};

use super::{
    super::{Input, NewInput},
    script::*,
};
use crate::{model::Chunk, outcome::ToolOutcome};

#[test]
fn a_turn_with_two_tools_and_a_question() {
    let mut world = world();
    world.put(arrival("q1", InputKind::Question, "what is in a?"));
    assert_eq!(world.agent.state(), AgentState::Streaming);
    let chunks = [
        vec![text("I look.")],
        call(1, "read", r#"{"path": "a"}"#).into(),
        call(2, "write", "").into(),
    ]
    .concat();
    world.answer(chunks, StopReason::ToolUse);
    assert_eq!(world.agent.state(), AgentState::ExecutingTools);
    world.tools.reverse();
    world.tool_done(ToolOutcome::ok("written"));
    world.tool_done(ToolOutcome::error("no such file"));
    world.say("Nothing.");
    assert!(world.agent.is_idle());
    assert_eq!(world.inputs[0].answer.as_deref(), Some("Nothing."));
    insta::assert_snapshot!(world.log());
}

#[test]
fn delta_has_part_and_offset() {
    let mut world = world();
    world.put(prompt("p1"));
    let ticket = world.model.unwrap();
    world.step(Input::Chunks {
        ticket,
        chunks: vec![
            text("zwölf"),
            text(" Bäume"),
            Chunk::Thinking {
                part: 1,
                text: "hm".into(),
            },
        ],
    });
    world.step(Input::Chunks {
        ticket,
        chunks: vec![text("!")],
    });
    let deltas: Vec<_> = world
        .told
        .iter()
        .map(|event| format!("{} {}", event.kind().name(), event.data()))
        .collect();
    assert_eq!(
        deltas,
        [
            r#"text_delta {"text":"zwölf Bäume","part":0,"offset":0}"#,
            r#"thinking_delta {"text":"hm","part":1,"offset":0}"#,
            r#"text_delta {"text":"!","part":0,"offset":11}"#
        ]
    );
    let running = world
        .agent
        .snapshot(planck_common::Timestamp::from_millis(0))
        .unwrap();
    assert_eq!(running.parts[0].text, "zwölf Bäume!");
}

#[test]
fn waiting_inputs_share_a_turn_but_a_fresh_input_gets_its_own() {
    let mut world = world();
    world.put(prompt("p1"));
    world.put(prompt("p2"));
    world.put(NewInput {
        fresh: true,
        ..arrival("t1", InputKind::Task, "anew")
    });
    world.put(prompt("p3"));
    assert_eq!(world.agent.queued(), 3);
    world.say("one");
    world.say("two");
    assert_eq!(
        world.agent.context().len(),
        1,
        "a fresh turn begins with an empty context"
    );
    world.say("three");
    world.say("four");
    let inputs: Vec<_> = world
        .rows
        .iter()
        .filter(|row| row.kind == EventKind::TurnStart)
        .map(|row| row.body.as_str())
        .collect();
    insta::assert_snapshot!(inputs.join("\n"), @r#"
    {"index":1,"inputs":[{"id":"p1","kind":"prompt","from":null}]}
    {"index":2,"inputs":[{"id":"p2","kind":"prompt","from":null}]}
    {"index":3,"inputs":[{"id":"t1","kind":"task","from":"boss"}]}
    {"index":4,"inputs":[{"id":"p3","kind":"prompt","from":null}]}
    "#);
}

#[test]
fn steered_input_joins_before_the_next_request() {
    let mut world = world();
    world.put(prompt("p1"));
    world.call_tool("read", "{}");
    world.put(NewInput {
        mode: InputMode::Steer,
        ..prompt("p2")
    });
    world.put(NewInput {
        mode: InputMode::Reject,
        ..prompt("p3")
    });
    world.tool_done(ToolOutcome::ok("text"));
    world.say("done");
    let roles: Vec<_> = world
        .messages()
        .iter()
        .map(|body| format!("{:?}", body.role))
        .collect();
    assert_eq!(
        roles,
        ["User", "Assistant", "ToolResult", "User", "Assistant"]
    );
    assert_eq!(
        ["p1", "p2", "p3"].map(|id| world.outcome(id)),
        [Some("completed"), Some("completed"), Some("busy")]
    );
}

#[test]
fn withdrawn_input_is_left_out_of_its_turn() {
    let mut world = world();
    world.put(prompt("p1"));
    world.put(arrival("q1", InputKind::Question, "?"));
    world.put(prompt("p2"));
    world.inputs[1].outcome = Some("withdrawn".into());
    world.say("one");
    world.say("two");
    assert_eq!(world.ends().len(), 2);
    assert_eq!(world.outcome("p2"), Some("completed"));
}

#[test]
fn incomplete_call_gets_a_result_and_is_not_run() {
    let cases: [(&str, StopReason, &str, &str); 5] = [
        (
            "{broken",
            StopReason::ToolUse,
            "not run: the arguments are not a JSON object: key must be",
            "completed",
        ),
        (
            "[1]",
            StopReason::ToolUse,
            "not run: the arguments are not a JSON object: they are JSON, but not an object",
            "completed",
        ),
        (
            "{}",
            StopReason::Length,
            "not run: the call was cut off before it was complete",
            "truncated",
        ),
        (
            "{\"a",
            StopReason::Length,
            "not run: the call was cut off before it was complete",
            "truncated",
        ),
        (
            "{}",
            StopReason::Refusal,
            "not run: the answer with the call ended as a refusal",
            "completed",
        ),
    ];
    for (args, stop, result, outcome) in cases {
        let mut world = world();
        world.put(prompt("p1"));
        world.answer(call(0, "write", args).into(), stop);
        if world.model.is_some() {
            world.say("well");
        }
        world.commit_all();
        assert!(world.ledger.is_empty());
        assert!(
            world.results()[0].starts_with(result),
            "{}",
            world.results()[0]
        );
        assert_eq!(world.outcome("p1"), Some(outcome));
        assert!(!world.kinds().contains(&"tool_start"));
    }
}

#[test]
fn call_of_a_tool_that_the_agent_does_not_have_is_not_started() {
    let mut world = world();
    world.put(prompt("p1"));
    world.call_tool("wriet", r#"{"a":1}"#);
    assert!(world.tools.is_empty());
    world.say("well");
    let result = &world.results()[0];
    assert!(
        result.starts_with("there is no tool `wriet`; did you mean `write`? your tools are: ask, "),
        "{result}"
    );
    assert!(!world.kinds().contains(&"tool_start"));
    assert!(world.kinds().contains(&"tool_end"));
}

#[test]
fn loop_guard_counts_across_requests() {
    let mut world = world();
    world.put(prompt("p1"));
    for _ in 0..9 {
        world.call_tool("read", r#"{"a":1,"b":2}"#);
        world.tool_done(ToolOutcome::ok("same"));
    }
    world.call_tool("read", r#"{"b":2,"a":1}"#);
    assert!(world.tools.is_empty());
    world.say("I give up");
    let results = world.results();
    assert_eq!(results[1], "same");
    assert!(
        results[2].contains("call 3 in a row of read"),
        "{}",
        results[2]
    );
    assert!(
        results[9].starts_with("not run: this is call 10 in a row"),
        "{}",
        results[9]
    );
}
