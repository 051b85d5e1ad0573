//! Tests of compaction in the loop, checkpoints and nudges.

use planck_common::{
    event::{Event, InputKind},
    message::{StopReason, text_of},
    usage::Usage,
};

use super::{
    super::{Command, Input, input::CompactionResult},
    script::*,
    world::{World, setup},
};
use crate::{
    model::{FailureKind, Finish},
    outcome::ToolOutcome,
};

fn small() -> World {
    let mut setup = setup();
    setup.card.context_window = 1_500;
    World::new(setup)
}

impl World {
    fn summarise(&mut self, words: &str) {
        let ticket = self.compactor.take().unwrap();
        let keep_from = self.agent.compaction().unwrap().keep_from();
        let result = CompactionResult::Summary {
            text: words.into(),
            keep_from,
            by: "local".into(),
            usage: Usage::default(),
        };
        self.step(Input::Compacted { ticket, result });
    }
}

#[test]
fn full_context_is_compacted_and_reads_the_same_after_a_restart() {
    let mut world = small();
    long_talk(&mut world);
    let before = world.agent.context_tokens();
    world.summarise("hay everywhere");
    assert!(world.agent.context_tokens() < before);
    let context: Vec<_> = world
        .agent
        .context()
        .iter()
        .map(|line| line.body.clone())
        .collect();
    assert!(text_of(&context[0].content).starts_with("hay everywhere"));
    assert!(
        text_of(&context[0].content).ends_with("find the needle"),
        "the latest input is kept word for word"
    );
    assert_eq!(context.len(), 5);
    world.crash();
    let after: Vec<_> = world
        .agent
        .context()
        .iter()
        .map(|line| serde_json::to_string(&line.body).unwrap())
        .collect();
    assert_eq!(
        after,
        context
            .iter()
            .map(|body| serde_json::to_string(body).unwrap())
            .collect::<Vec<_>>()
    );
    assert!(world.model.is_some());
}

fn long_talk(world: &mut World) {
    world.put(arrival("p1", InputKind::Prompt, "find the needle"));
    while world.compactor.is_none() {
        let ticket = world.model.take().unwrap();
        let n = world.rows.len();
        world.step(Input::Chunks {
            ticket,
            chunks: call(0, "read", &format!(r#"{{"n":{n}}}"#)).into(),
        });
        let finish = Finish::new(StopReason::ToolUse, Usage::default());
        world.step(Input::Answered {
            ticket,
            chunks: Vec::new(),
            result: Ok(finish),
            jitter: 0.0,
        });
        world.tool_done(ToolOutcome::ok("hay ".repeat(100)));
    }
}

#[test]
fn failed_compaction_is_not_repeated_at_once() {
    let mut world = small();
    long_talk(&mut world);
    let lines = world.agent.context().len();
    let ticket = world.compactor.take().unwrap();
    world.step(Input::Compacted {
        ticket,
        result: CompactionResult::Failed("no".into()),
    });
    assert_eq!(world.agent.context().len(), lines);
    assert!(world.model.is_some() && world.compactor.is_none());
}

#[test]
fn context_that_stays_full_ends_the_turn() {
    let mut world = small();
    long_talk(&mut world);
    world.summarise("s");
    world.fail(FailureKind::ContextFull);
    if world.compactor.is_some() {
        world.summarise("t");
        world.fail(FailureKind::ContextFull);
    }
    let Event::Error(error) = world.ends().remove(0) else {
        panic!()
    };
    assert_eq!(error.code, "context_full");
}

#[test]
fn single_huge_result_is_shortened_without_a_compactor() {
    let mut world = small();
    world.put(arrival("p1", InputKind::Prompt, "look"));
    world.call_tool("read", "{}");
    world.tool_done(ToolOutcome::ok("x".repeat(40_000)));
    assert!(world.compactor.is_none());
    assert!(world.model.is_some());
    let sizes: Vec<_> = world
        .agent
        .context()
        .iter()
        .map(|line| line.tokens)
        .collect();
    assert!(sizes.iter().sum::<u64>() < 1_000, "{sizes:?}");
    world.crash();
    assert_eq!(
        sizes,
        world
            .agent
            .context()
            .iter()
            .map(|line| line.tokens)
            .collect::<Vec<_>>()
    );
}

#[test]
fn checkpoint_waits_for_the_end_of_the_turn_and_nudge_runs_a_turn_without_input() {
    let mut world = world();
    world.put(prompt("p1"));
    world.step(Input::Command(Command::Checkpoint {
        summary: "we were here".into(),
    }));
    world.say("done");
    assert_eq!(world.agent.context().len(), 1);
    world.step(Input::Command(Command::Nudge));
    world.say("going on");
    world.step(Input::Command(Command::Nudge));
    assert_eq!(
        text_of(&world.messages().last().unwrap().content),
        "Continue.",
        "a model does not answer an assistant message"
    );
    world.say("still");
    assert_eq!(world.ends().len(), 3);
}
