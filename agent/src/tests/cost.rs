//! Checks that a step takes the same time for any length of the history.

use std::time::Duration;

use planck_common::{message::StopReason, usage::Usage};

use super::{
    super::Input,
    script::{call, prompt},
    world::{World, setup},
};
use crate::{model::Finish, outcome::ToolOutcome};

/// Returns the time that the agent's steps take in the fastest of 50 rounds with one tool call,
/// which follow `rounds` earlier rounds.
fn round_after(rounds: usize) -> Duration {
    let mut setup = setup();
    setup.settings.max_requests_per_turn = u32::MAX;
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    let mut fastest = Duration::MAX;
    for n in 0..rounds + 50 {
        world.spent = Duration::ZERO;
        let ticket = world.model.take().unwrap();
        world.step(Input::Chunks {
            ticket,
            chunks: call(0, "read", &format!(r#"{{"n":{n}}}"#)).into(),
        });
        let finish = Finish::new(
            StopReason::ToolUse,
            Usage {
                input_tokens: 100,
                ..Usage::default()
            },
        );
        world.step(Input::Answered {
            ticket,
            chunks: Vec::new(),
            result: Ok(finish),
            jitter: 0.0,
        });
        world.tool_done(ToolOutcome::ok("text"));
        if n >= rounds {
            fastest = fastest.min(world.spent);
        }
    }
    fastest
}

#[test]
fn round_costs_the_same_after_a_thousand_others() {
    let (short, long) = (round_after(5), round_after(1_000));
    assert!(long < short * 5, "{short:?} became {long:?}");
}
