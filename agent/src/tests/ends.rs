//! Tests of how turns and agents end: failures, aborts, stops and limits.

use std::time::Duration;

use planck_common::{
    InputId,
    command::{InputMode, Prices},
    event::{Event, EventKind, InputKind},
    message::{StopReason, text_of},
};

use super::{
    super::{Command, Effect, Input, NewInput},
    script::*,
    world::{World, setup},
};
use crate::{
    model::{Failure, FailureKind},
    outcome::ToolOutcome,
};

#[test]
fn empty_answer_ends_the_turn() {
    for chunks in [vec![], vec![text("")]] {
        let mut world = world();
        world.put(prompt("p1"));
        world.answer(chunks, StopReason::End);
        let Event::TurnEnd(end) = world.ends().remove(0) else {
            panic!()
        };
        assert_eq!((end.message, end.usage.input_tokens), (None, 100));
        assert_eq!(world.messages().len(), 1);
    }
}

/// Nothing of a refusal was cut, so its turn is complete, and says that the answer is a refusal.
#[test]
fn refusal_completes_the_turn_and_is_told() {
    for (before, chunks, message, answer) in [
        (
            None,
            vec![text("I can't.")],
            Some("I can't."),
            "I can't.\n[the model refused to answer]",
        ),
        (None, vec![], None, "[the model refused to answer]"),
        (
            Some("Let me look."),
            vec![],
            Some("Let me look."),
            "Let me look.\n[the model refused to answer]",
        ),
    ] {
        let mut world = world();
        world.put(arrival("q1", InputKind::Question, "how?"));
        if let Some(before) = before {
            let mut said = vec![text(before)];
            said.extend(call(1, "read", r#"{"a":1}"#));
            world.answer(said, StopReason::ToolUse);
            world.tool_done(ToolOutcome::ok("x"));
        }
        world.answer(chunks, StopReason::Refusal);
        world.commit_all();
        let Event::TurnEnd(end) = world.ends().remove(0) else {
            panic!()
        };
        assert_eq!((end.message.as_deref(), end.refused), (message, true));
        assert_eq!(world.outcome("q1"), Some("completed"));
        assert_eq!(world.answer_of("q1"), Some(answer));
    }
}

#[test]
fn failure_is_retried_and_then_ends_the_turn() {
    let mut world = world();
    world.put(prompt("p1"));
    for _ in 0..4 {
        world.fail(FailureKind::Transient);
        let ticket = world.timers.pop().unwrap();
        world.step(Input::TimerEnded(ticket));
    }
    world.fail(FailureKind::Transient);
    let retries: Vec<_> = world
        .rows
        .iter()
        .filter(|row| row.kind == EventKind::Retry)
        .map(|row| row.body.clone())
        .collect();
    insta::assert_snapshot!(retries.join("\n"), @r#"
    {"attempt":2,"delay_ms":1000,"reason":"overloaded"}
    {"attempt":3,"delay_ms":2000,"reason":"overloaded"}
    {"attempt":4,"delay_ms":4000,"reason":"overloaded"}
    {"attempt":5,"delay_ms":8000,"reason":"overloaded"}
    "#);
    let Event::Error(error) = world.ends().remove(0) else {
        panic!()
    };
    assert_eq!((error.code.as_str(), error.retryable), ("provider", true));
    assert_eq!(world.outcome("p1"), Some("error"));
}

#[test]
fn text_before_a_failure_is_kept_unless_the_request_is_repeated_or_over_a_limit() {
    for (kind, kept) in [
        (FailureKind::Refused, true),
        (FailureKind::Transient, false),
        (FailureKind::AnswerLimit, false),
    ] {
        let mut world = world();
        world.put(prompt("p1"));
        let ticket = world.model.unwrap();
        world.step(Input::Chunks {
            ticket,
            chunks: [vec![text("half a")], call(1, "write", "{}").into()].concat(),
        });
        world.fail(kind);
        let answers: Vec<_> = world.messages().into_iter().skip(1).collect();
        assert_eq!(
            answers
                .iter()
                .map(|answer| text_of(&answer.content))
                .collect::<Vec<_>>(),
            vec!["half a"; usize::from(kept)]
        );
        assert!(
            answers
                .iter()
                .all(|answer| answer.metadata.interrupted && answer.content.len() == 1),
            "{kind:?}"
        );
        assert_eq!(
            world.outcome("p1"),
            (kind != FailureKind::Transient).then_some("error"),
            "{kind:?}"
        );
        assert!(
            world.tools.is_empty(),
            "{kind:?}: no call of a failed answer may run"
        );
        if kept {
            world.put(prompt("p2"));
            assert_eq!(
                world.messages().len(),
                3,
                "the next turn follows what was kept"
            );
        }
    }
}

#[test]
fn retry_waits_as_long_as_the_provider_asked() {
    let mut world = world();
    world.put(prompt("p1"));
    for (asked, waited) in [(30, 30), (600, 60)] {
        let ticket = world.model.take().unwrap();
        let retry_after = Some(Duration::from_secs(asked));
        let failure = Failure {
            kind: FailureKind::Transient,
            message: "slow down".into(),
            public: None,
            retry_after,
        };
        let now = planck_common::Timestamp::from_millis(0);
        let effects = world.agent.step(
            Input::Answered {
                ticket,
                chunks: Vec::new(),
                result: Err(failure),
                jitter: 0.5,
            },
            now,
        );
        let wait = effects.iter().find_map(|effect| {
            if let Effect::StartTimer { delay, .. } = effect {
                Some(delay.as_secs())
            } else {
                None
            }
        });
        assert_eq!(wait, Some(waited));
        world.perform(effects);
        let ticket = world.timers.pop().unwrap();
        world.step(Input::TimerEnded(ticket));
    }
}

#[test]
fn abort_keeps_the_answer_so_far() {
    let mut world = world();
    world.put(prompt("p1"));
    let ticket = world.model.unwrap();
    world.step(Input::Chunks {
        ticket,
        chunks: [vec![text("half a")], call(1, "write", "{").into()].concat(),
    });
    world.put(prompt("p2"));
    world.step(Input::Command(Command::Abort { reason: None }));
    let partial = &world.messages()[1];
    assert!(partial.metadata.interrupted);
    assert_eq!(
        (text_of(&partial.content).as_str(), partial.content.len()),
        ("half a", 1)
    );
    assert_eq!(world.outcome("p1"), Some("aborted"));
    assert!(world.model.is_some(), "the agent continues with its inbox");
}

#[test]
fn log_says_who_sent_a_prompt_and_why_its_turn_was_aborted() {
    let mut world = world();
    world.put(NewInput {
        by: Some("ann".into()),
        ..prompt("p1")
    });
    world.put(NewInput {
        by: Some("bob".into()),
        mode: InputMode::Steer,
        ..prompt("p2")
    });
    assert_eq!(world.messages()[0].metadata.by.as_deref(), Some("ann"));
    world.call_tool("write", "{}");
    world.tool_done(ToolOutcome::ok("written"));
    let messages = world.messages();
    let mut authors = messages
        .iter()
        .map(|message| message.metadata.by.as_deref());
    assert!(authors.any(|by| by == Some("bob")));
    let reason = Some("too slow".into());
    world.step(Input::Command(Command::Abort { reason }));
    let body = |kind: EventKind| {
        let row = world.rows.iter().find(|row| row.kind == kind).unwrap();
        row.body.clone()
    };
    let start = body(EventKind::TurnStart);
    assert!(start.contains(r#""from":null,"by":"ann""#), "{start}");
    let end = body(EventKind::TurnEnd);
    assert!(end.contains(r#""reason":"too slow""#), "{end}");
}

#[test]
fn abort_gives_running_calls_a_result() {
    let mut world = world();
    world.put(prompt("p1"));
    world.answer(
        [call(0, "read", "{}"), call(1, "write", "{}")].concat(),
        StopReason::ToolUse,
    );
    world.tool_done(ToolOutcome::ok("fine"));
    world.step(Input::Command(Command::Abort { reason: None }));
    assert!(world.agent.is_winding_down());
    world.tool_done(ToolOutcome::stopped("line 1"));
    assert_eq!(world.results(), ["fine", "aborted by request\nline 1"]);
    assert!(world.tools.is_empty() && world.agent.is_idle());
}

#[test]
fn output_that_reads_like_an_abort_does_not_make_a_call_stopped() {
    let mut world = world();
    world.put(prompt("p1"));
    world.call_tool("read", "{}");
    let reason = Some("enough".into());
    world.step(Input::Command(Command::Abort { reason }));
    world.tool_done(ToolOutcome::error("aborted by request\nof the remote side"));
    assert_eq!(world.results(), ["aborted by request\nof the remote side"]);
}

#[test]
fn stop_gives_every_input_its_outcome() {
    let mut world = world();
    world.put(prompt("p1"));
    world.put(prompt("p2"));
    world.put(arrival("q1", InputKind::Question, "?"));
    world.inputs[2].outcome = Some("withdrawn".into());
    world.step(Input::Command(Command::Stop {
        reason: "closed".into(),
        for_good: false,
        last: vec![],
    }));
    assert!(world.stopped);
    assert_eq!(
        ["p1", "p2", "q1"].map(|id| world.outcome(id)),
        [Some("aborted"), Some("stopped"), Some("withdrawn")]
    );
    assert_eq!(world.kinds().last(), Some(&"agent_stopped"));
}

#[test]
fn stop_waits_for_running_calls() {
    let mut world = world();
    world.put(prompt("p1"));
    world.call_tool("write", "{}");
    world.step(Input::Command(Command::Abort { reason: None }));
    world.step(Input::Command(Command::Stop {
        reason: "not needed".into(),
        for_good: true,
        last: vec![],
    }));
    world.put(prompt("p2"));
    assert!(!world.stopped && world.agent.is_winding_down());
    world.tool_done(ToolOutcome::ok("written"));
    assert!(world.stopped);
    assert_eq!(
        world.results(),
        ["written"],
        "the result of a cancelled call is kept"
    );
    assert_eq!(
        ["p1", "p2"].map(|id| world.outcome(id)),
        [Some("aborted"), Some("stopped")]
    );
}

#[test]
fn agent_of_a_closing_session_owes_no_response() {
    for (for_good, notes) in [(true, 1), (false, 0)] {
        let mut world = world();
        world.put(arrival("t1", InputKind::Task, "count"));
        world.step(Input::Command(Command::Stop {
            reason: "over".into(),
            for_good,
            last: vec![],
        }));
        assert_eq!((world.stopped, world.puts.len()), (true, notes));
    }
}

#[test]
fn task_without_a_response_is_reported_to_its_sender() {
    for responds in [false, true] {
        let mut world = world();
        world.put(arrival("t1", InputKind::Task, "count"));
        world.call_tool("ask", "{}");
        let responded = responds.then(|| InputId::parse("t1").unwrap());
        world.tool_done(ToolOutcome {
            responded,
            ..ToolOutcome::ok("sent")
        });
        world.say("I counted 3");
        let notes: Vec<_> = world.puts.iter().map(|(_, text)| text.as_str()).collect();
        let expected = [
            "task_unanswered t1: the turn ended (completed) without a response. Its text:\n\nI counted 3",
        ];
        assert_eq!(notes, if responds { &[][..] } else { &expected[..] });
    }
}

#[test]
fn turn_ends_with_the_name_of_the_limit_it_reached() {
    type Set = fn(&mut super::super::Setup);
    let cases: [(&str, Set); 5] = [
        ("max_requests_per_turn", |setup| {
            setup.spec.limits.max_requests_per_turn = Some(1)
        }),
        ("max_tokens", |setup| {
            setup.spec.limits.max_tokens = Some(110)
        }),
        ("max_cost_usd", |setup| {
            setup.spec.limits.max_cost_usd = Some(0.0002)
        }),
        ("session.max_tokens", |setup| {
            setup.limits.max_tokens = Some(110)
        }),
        ("session.max_cost_usd", |setup| {
            setup.limits.max_cost_usd = Some(0.0002)
        }),
    ];
    for (name, set) in cases {
        let mut setup = setup();
        setup.card.prices = Some(Prices {
            input: 1.0,
            output: 10.0,
            cache_read: 0.0,
            cache_write: 0.0,
        });
        set(&mut setup);
        let mut world = World::new(setup);
        world.put(prompt("p1"));
        world.call_tool("read", "{}");
        world.tool_done(ToolOutcome::ok("text"));
        let Event::TurnEnd(end) = world.ends().remove(0) else {
            panic!()
        };
        assert_eq!(end.limit.as_deref(), Some(name));
        assert_eq!(world.outcome("p1"), Some("limit"));
    }
}

#[test]
fn turn_ends_when_its_time_is_up() {
    let mut setup = setup();
    setup.spec.limits.max_turn_seconds = Some(5);
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.call_tool("read", "{}");
    let ticket = world.timers.pop().unwrap();
    world.step(Input::TimerEnded(ticket));
    world.tool_done(ToolOutcome::stopped(""));
    assert_eq!(world.results(), ["the turn's time is up"]);
    let Event::TurnEnd(end) = world.ends().remove(0) else {
        panic!()
    };
    assert_eq!(end.limit.as_deref(), Some("max_turn_seconds"));
    assert!(world.tools.is_empty());
}
