//! Measures a round of the loop with one tool call, early and late in a conversation. The cost of a
//! round must not depend on the length of the history.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a bench stops at the first unexpected result"
)]

use std::{collections::VecDeque, sync::Arc, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use planck_agent::{
    Agent, Effect, Input, NewInput, Settings, Setup, Ticket,
    input::Saved,
    model::{Chunk, Finish, ModelCard, RetryRules, ToolSpec},
    outcome::ToolOutcome,
};
use planck_common::{
    AgentId, InputId, SessionId, Timestamp,
    command::InputMode,
    event::{InputKind, ToolEffect, json},
    message::{Part, StopReason},
    spec::{AgentLimits, AgentRole, AgentSpec, Grant, ModelRef, SessionLimits},
    usage::Usage,
};
use serde_json::{Map, value::RawValue};

/// An agent with a store that commits every save at once.
struct Loop {
    agent: Agent,
    seq: i64,
    round: u64,
    model: Option<Ticket>,
    tool: Option<Ticket>,
}

fn setup() -> Setup {
    let spec = AgentSpec {
        r#type: "worker".into(),
        name: "w".into(),
        description: String::new(),
        role: AgentRole::Worker,
        model: ModelRef {
            provider: "scripted".into(),
            id: "m".into(),
            base_url: None,
        },
        system_prompt: "Be brief.".into(),
        opts: Map::new(),
        tools: vec!["read".into()],
        skills: vec![],
        grant: Grant::default(),
        compactor: None,
        listed_tools: None,
        limits: AgentLimits::default(),
        labels: Map::new(),
        permissions: Vec::new(),
        client_tools: Vec::new(),
        spawned_by: None,
        output: None,
    };
    let parameters = RawValue::from_string(r#"{"type":"object"}"#.into())
        .unwrap()
        .into();
    let tool = ToolSpec {
        name: "read".into(),
        description: "Reads.".into(),
        parameters,
        effect: ToolEffect::Pure,
        sidecar: None,
        wait: None,
        is_searched: false,
    };
    Setup {
        session: SessionId::mint(),
        agent: AgentId::mint(),
        epoch: 1,
        spec,
        card: ModelCard {
            context_window: u64::MAX / 2,
            max_output: 4_096,
            prices: None,
            retry: RetryRules::default(),
        },
        tools: [tool].into(),
        arguments: Arc::new(()),
        limits: SessionLimits::default(),
        settings: Settings {
            max_requests_per_turn: u32::MAX,
            ..Settings::default()
        },
        dir: "/work".into(),
    }
}

impl Loop {
    /// Returns a loop whose open turn has gone through `rounds` rounds.
    fn after(rounds: u64) -> Self {
        let mut looping = Self {
            agent: Agent::new(setup()),
            seq: 0,
            round: 0,
            model: None,
            tool: None,
        };
        looping.step(Input::Delivered(NewInput {
            id: InputId::mint(),
            agent: AgentId::mint(),
            kind: InputKind::Prompt,
            mode: InputMode::Queue,
            sender: None,
            by: None,
            reply_to: None,
            content: json(&[Part::text("Go on and on.")]),
            fresh: false,
            output: None,
            at: Timestamp::from_millis(0),
        }));
        (0..rounds).for_each(|_| looping.round());
        looping
    }

    fn step(&mut self, input: Input) {
        let now = Timestamp::from_millis(1_767_268_800_000);
        let mut todo = VecDeque::from(self.agent.step(input, now));
        while let Some(effect) = todo.pop_front() {
            if let Effect::Save(save) = effect {
                let seqs = save
                    .entries
                    .iter()
                    .map(|_| {
                        self.seq += 1;
                        self.seq
                    })
                    .collect();
                let saved = Saved {
                    save: save.ticket,
                    seqs,
                    session: Usage::default(),
                };
                todo.extend(self.agent.step(Input::Saved(saved), now));
            } else if let Effect::CallModel { ticket } = effect {
                self.model = Some(ticket);
            } else if let Effect::RunTool(run) = effect {
                self.tool = Some(run.ticket);
            }
        }
    }

    fn round(&mut self) {
        self.round += 1;
        let ticket = self.model.take().unwrap();
        let args = format!(r#"{{"line":{}}}"#, self.round);
        let call = Chunk::Call {
            part: 0,
            id: format!("call_{}", self.round),
            name: "read".into(),
        };
        self.step(Input::Chunks {
            ticket,
            chunks: vec![
                call,
                Chunk::Args {
                    part: 0,
                    json: args,
                },
            ],
        });
        let usage = Usage {
            input_tokens: 100,
            output_tokens: 20,
            ..Usage::default()
        };
        self.step(Input::Answered {
            ticket,
            chunks: Vec::new(),
            result: Ok(Finish::new(StopReason::ToolUse, usage)),
            jitter: 0.0,
        });
        let ticket = self.tool.take().unwrap();
        self.step(Input::ToolDone {
            ticket,
            outcome: ToolOutcome::ok("a line of text"),
            elapsed: Duration::from_millis(1),
        });
    }
}

/// Benchmarks a round at three lengths of history. The conversation grows while it is measured, so
/// each length is a minimum.
fn round(criterion: &mut Criterion) {
    for messages in [10, 1_000, 10_000] {
        let mut looping = Loop::after(messages / 2);
        criterion.bench_function(
            &format!("step/round after {messages} messages"),
            |bencher| bencher.iter(|| looping.round()),
        );
    }
}

criterion_group!(benches, round);
criterion_main!(benches);
