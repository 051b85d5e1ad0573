//! Property test: for any order of events, with crashes at any save, the log stays valid and every
//! input gets exactly one outcome.

use std::time::Duration;

use planck_common::{
    InputId, Timestamp,
    command::{AgentState, InputMode},
    event::{Event, EventKind, InputKind, ToolEffect, json},
    message::{Part, StopReason, text_of},
    spec::{OnLimit, OutputSpec},
    usage::Usage,
    wait::WaitDecision,
};
use proptest::prelude::*;

use super::{
    super::{Agent, Command, Input, NewInput, StoredInput, Ticket, input::CompactionResult},
    checks::{
        SEARCHED, check_calls, check_decisions, check_list, check_shapes, check_turns,
        search_result,
    },
    world::{World, check_history, sender, setup, tool},
};
use crate::{
    SUBMIT_OUTPUT,
    model::{Chunk, Failure, FailureKind, Finish, ToolSpec},
    outcome::ToolOutcome,
    search::TOOL_SEARCH,
};

#[derive(Debug, Clone)]
enum Move {
    /// An input is put into the inbox. If `told`, the agent is notified.
    Put {
        kind: InputKind,
        mode: InputMode,
        fresh: bool,
        told: bool,
        /// Whether the answer has a shape.
        shaped: bool,
    },
    /// The agent reads the inputs that it has not read yet.
    Look,
    /// A row of the inbox arrives a second time.
    Again(usize),
    /// A sender withdraws an input. If `told`, the agent is notified; otherwise its next save that
    /// consumes the input is refused.
    Withdraw {
        which: usize,
        told: bool,
    },
    Chunks,
    Say(StopReason),
    /// The model calls tools, one for each letter: `w` is `write`, `r` is `read`, `a` is `ask`, `u`
    /// is an unknown tool, `x` is `read` with arguments that are not JSON, `d` is `deploy`, which a
    /// person has to allow, `q` asks a person, `s` and `t` are `submit_output` with an answer that
    /// satisfies the shape and one that does not, `f` searches tools, and `z` is a searched tool.
    Call {
        tools: String,
        stop: StopReason,
    },
    SayNothing,
    Fail(FailureKind),
    Stale,
    ToolDone {
        which: usize,
        twice: bool,
    },
    /// A person answers a wait. If `told`, the agent is notified.
    Decide {
        which: usize,
        decision: WaitDecision,
        told: bool,
    },
    /// The agent reads the answers that it has not read yet.
    ReadAnswers,
    TimerEnded(usize),
    Compacted(u8),
    Commit,
    Abort,
    Nudge,
    Checkpoint,
    Record,
    Crash {
        after: usize,
    },
    Rewind(usize),
    /// The store refuses the pending saves because of their data.
    Refuse,
    Stop,
}

fn decisions() -> impl Strategy<Value = WaitDecision> {
    prop_oneof![
        4 => Just(WaitDecision::Allow),
        3 => Just(WaitDecision::Deny),
        2 => Just(WaitDecision::Answer),
        1 => Just(WaitDecision::Expired),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    let kind = prop_oneof![
        Just(InputKind::Prompt),
        Just(InputKind::Question),
        Just(InputKind::Task),
        Just(InputKind::Note)
    ];
    let mode = prop_oneof![3 => Just(InputMode::Queue), 2 => Just(InputMode::Steer), 1 => Just(InputMode::Reject)];
    let stop = prop_oneof![6 => Just(StopReason::ToolUse), 1 => Just(StopReason::Length)];
    let failure = prop_oneof![
        4 => Just(FailureKind::Transient),
        1 => Just(FailureKind::ContextFull),
        1 => Just(FailureKind::Auth),
        1 => Just(FailureKind::Refused)
    ];
    prop_oneof![
        8 => (kind, mode, prop::bool::weighted(0.1), prop::bool::weighted(0.8), prop::bool::weighted(0.3))
            .prop_map(|(kind, mode, fresh, told, shaped)| Move::Put { kind, mode, fresh, told, shaped }),
        1 => Just(Move::Look),
        1 => any::<usize>().prop_map(Move::Again),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, told)| Move::Withdraw { which, told }),
        4 => Just(Move::Chunks),
        4 => prop_oneof![3 => Just(StopReason::End), 1 => Just(StopReason::Length)].prop_map(Move::Say),
        10 => ("[wrauxwddqstffz]{1,4}", stop).prop_map(|(tools, stop)| Move::Call { tools, stop }),
        1 => Just(Move::SayNothing),
        3 => failure.prop_map(Move::Fail),
        1 => Just(Move::Stale),
        14 => (any::<usize>(), any::<bool>()).prop_map(|(which, twice)| Move::ToolDone { which, twice }),
        6 => (any::<usize>(), decisions(), any::<bool>())
            .prop_map(|(which, decision, told)| Move::Decide { which, decision, told }),
        2 => Just(Move::ReadAnswers),
        3 => any::<usize>().prop_map(Move::TimerEnded),
        4 => any::<u8>().prop_map(Move::Compacted),
        3 => Just(Move::Commit),
        2 => Just(Move::Abort),
        1 => Just(Move::Nudge),
        1 => Just(Move::Checkpoint),
        1 => Just(Move::Record),
        1 => any::<usize>().prop_map(Move::Rewind),
        2 => Just(Move::Refuse),
        4 => (0..6usize).prop_map(|after| Move::Crash { after }),
    ]
}

struct Player {
    world: World,
    put: usize,
    /// The listed tools, when they were last checked, with the agent's version.
    listed: Option<(usize, u64, Vec<String>)>,
}

impl Player {
    fn new(window: u64, asks: bool) -> Self {
        let mut setup = setup();
        setup.card.context_window = window;
        setup.spec.limits.max_turn_seconds = Some(600);
        setup.spec.limits.max_requests_per_turn = asks.then_some(3);
        setup.spec.limits.on_limit = Some(OnLimit::Ask);
        let searched = SEARCHED.map(|name| ToolSpec {
            is_searched: true,
            ..tool(name, ToolEffect::Pure)
        });
        let search = tool(TOOL_SEARCH, ToolEffect::Pure);
        let tools = setup.tools.iter().cloned();
        setup.tools = tools.chain(searched).chain([search]).collect();
        Self {
            world: World::new(setup),
            put: 0,
            listed: None,
        }
    }

    fn play(&mut self, step: Move) {
        let world = &mut self.world;
        match step {
            Move::Put {
                kind,
                mode,
                fresh,
                told,
                shaped,
            } => {
                let shape = OutputSpec {
                    schema: serde_json::json!({"type": "object"}),
                    name: None,
                };
                self.put(kind, mode, fresh, told, Some(shape).filter(|_| shaped));
            }
            Move::Look => world.look(),
            Move::Again(which) => {
                if let Some(row) = pick(&world.inputs, which).cloned() {
                    world.step(Input::Delivered(row.input));
                }
            }
            Move::Withdraw { which, told } => self.withdraw(which, told),
            Move::Chunks => self.chunks(vec![Chunk::Text {
                part: 0,
                text: "so ".into(),
            }]),
            Move::Say(stop) => self.answer(
                vec![Chunk::Text {
                    part: 0,
                    text: "done. ".repeat(20),
                }],
                stop,
            ),
            Move::Call { tools, stop } => self.answer(calls(&tools), stop),
            Move::SayNothing => self.answer(Vec::new(), StopReason::End),
            Move::Fail(kind) => self.fail(kind),
            Move::Stale => world.step(Input::Answered {
                ticket: Ticket(1),
                chunks: Vec::new(),
                result: Ok(finish(StopReason::End)),
                jitter: 0.5,
            }),
            Move::ToolDone { which, twice } => self.tool_done(which, twice),
            Move::Decide {
                which,
                decision,
                told,
            } => world.decide(which, decision, told),
            Move::ReadAnswers => world.read_answers(),
            Move::TimerEnded(which) => {
                if let Some(at) = which.checked_rem(world.timers.len()) {
                    let ticket = world.timers.swap_remove(at);
                    world.step(Input::TimerEnded(ticket));
                }
            }
            Move::Compacted(how) => self.compacted(how),
            Move::Commit => {
                if !world.beside.is_empty() {
                    match world.commit_next() {
                        Some(effects) => world.perform(effects),
                        None => world.crash(),
                    }
                }
            }
            Move::Abort => world.step(Input::Command(Command::Abort { reason: None })),
            Move::Nudge => world.step(Input::Command(Command::Nudge)),
            Move::Checkpoint => world.step(Input::Command(Command::Checkpoint {
                summary: "so far".into(),
            })),
            Move::Record => {
                let warning = planck_common::event::Warning::new("test", "x");
                world.step(Input::Command(Command::Record(Event::Warning(warning))));
            }
            Move::Refuse => {
                let open = open_turn(world);
                world.refuse();
                let ends = |turn| {
                    world
                        .rows
                        .iter()
                        .any(|row| row.kind.is_terminal() && row.place.turn == turn)
                };
                assert!(
                    world.stopped || open.is_none_or(ends),
                    "a turn whose save was refused continues"
                );
            }
            Move::Crash { after: 0 } => world.crash(),
            Move::Crash { after } => world.fuse = Some(after),
            Move::Rewind(which) => world.rewind(which),
            Move::Stop => world.step(Input::Command(Command::Stop {
                reason: "test".into(),
                for_good: true,
                last: vec![],
            })),
        }
    }

    fn put(
        &mut self,
        kind: InputKind,
        mode: InputMode,
        fresh: bool,
        told: bool,
        output: Option<OutputSpec>,
    ) {
        if self.world.stopped {
            return;
        }
        self.put += 1;
        let id = InputId::parse(&format!("i{}", self.put)).unwrap();
        let from = (kind != InputKind::Prompt).then(sender);
        let content = json(&[Part::text("please ".repeat(10))]);
        let input = NewInput {
            id,
            agent: setup().agent,
            kind,
            mode,
            sender: from,
            by: None,
            reply_to: None,
            content,
            fresh,
            output,
            at: Timestamp::from_millis(0),
        };
        match told {
            true => self.world.put(input),
            false => self.world.put_unnoticed(input),
        }
    }

    fn withdraw(&mut self, which: usize, told: bool) {
        let unread: Vec<usize> = (0..self.world.inputs.len())
            .filter(|at| {
                self.world.inputs[*at].outcome.is_none() && self.world.inputs[*at].turn.is_none()
            })
            .collect();
        let Some(at) = pick(&unread, which).copied() else {
            return;
        };
        self.world.inputs[at].outcome = Some("withdrawn".into());
        if told {
            let id = self.world.inputs[at].input.id.clone();
            self.world.step(Input::Withdrawn(id));
        }
    }

    fn chunks(&mut self, chunks: Vec<Chunk>) {
        if let Some(ticket) = self.world.model {
            self.world.step(Input::Chunks { ticket, chunks });
        }
    }

    fn answer(&mut self, chunks: Vec<Chunk>, stop: StopReason) {
        self.chunks(chunks);
        if let Some(ticket) = self.world.model.take() {
            self.world.step(Input::Answered {
                ticket,
                chunks: Vec::new(),
                result: Ok(finish(stop)),
                jitter: 0.5,
            });
        }
    }

    fn fail(&mut self, kind: FailureKind) {
        if let Some(ticket) = self.world.model.take() {
            let failure = Failure {
                kind,
                message: "no".into(),
                public: None,
                retry_after: None,
            };
            self.world.step(Input::Answered {
                ticket,
                chunks: Vec::new(),
                result: Err(failure),
                jitter: 0.5,
            });
        }
    }

    fn tool_done(&mut self, which: usize, twice: bool) {
        let Some(at) = which.checked_rem(self.world.tools.len()) else {
            return;
        };
        let run = self.world.tools.swap_remove(at);
        let ticket = run.ticket;
        let deaths = self.world.deaths;
        for _ in 0..=usize::from(twice) {
            // Tools of a dead process report no result, and the next process counts its tickets
            // from the start.
            if self.world.deaths != deaths {
                return;
            }
            let mut outcome = match run.output.is_some() && run.args.get().contains("bad") {
                true => ToolOutcome::error("`bad` is not a property"),
                false if run.name == TOOL_SEARCH => ToolOutcome::ok(search_result(which)),
                false => ToolOutcome::ok("result ".repeat(30)),
            };
            if which % 7 == 3 {
                outcome.changes = super::changes::changes();
            }
            if which % 7 == 5 && run.output.is_none() {
                outcome = super::questions::asking("Which?");
            }
            self.world.step(Input::ToolDone {
                ticket,
                outcome,
                elapsed: Duration::from_millis(5),
            });
        }
    }

    fn compacted(&mut self, how: u8) {
        let Some(ticket) = self.world.compactor.take() else {
            return;
        };
        let keep_from = self.world.agent.compaction().unwrap().keep_from();
        let summary = |text: String, keep_from| {
            let usage = Usage {
                input_tokens: 100,
                output_tokens: 10,
                ..Usage::default()
            };
            CompactionResult::Summary {
                text,
                keep_from,
                by: "local".into(),
                usage,
            }
        };
        let result = match how % 8 {
            0 => CompactionResult::Skipped,
            1 => CompactionResult::Failed("no".into()),
            2 => summary("long ".repeat(10_000), keep_from),
            3 => summary("wrong".into(), 999_999),
            _ => summary("short".into(), keep_from),
        };
        self.world.step(Input::Compacted { ticket, result });
    }

    /// Answers every request, call, compaction, save and wait until the agent is idle or stopped.
    fn drain(&mut self) {
        self.world.fuse = None;
        for _ in 0..10_000 {
            let is_at_rest = self.world.agent.is_idle() && self.world.beside.is_empty();
            let has_unread = self.world.inputs.iter().any(StoredInput::is_unread);
            if self.world.stopped || (is_at_rest && !has_unread) {
                return;
            }
            let step = match &self.world {
                _ if is_at_rest => Move::Look,
                world if world.model.is_some() => Move::Say(StopReason::End),
                world if !world.tools.is_empty() => Move::ToolDone {
                    which: 0,
                    twice: false,
                },
                world if world.compactor.is_some() => Move::Compacted(7),
                world if world.waits.has_open() => Move::Decide {
                    which: 0,
                    decision: WaitDecision::Allow,
                    told: true,
                },
                world if world.waits.has_answers() => Move::ReadAnswers,
                world if !world.beside.is_empty() => Move::Commit,
                world => {
                    assert!(
                        !world.timers.is_empty(),
                        "the agent waits for nothing but is not idle: {:?}",
                        world.agent
                    );
                    Move::TimerEnded(world.timers.len() - 1)
                }
            };
            self.play(step);
            self.check();
        }
        panic!("the agent never became idle");
    }

    fn check(&mut self) {
        let world = &mut self.world;
        let may_be_open = matches!(
            world.agent.state(),
            AgentState::ExecutingTools | AgentState::Waiting
        );
        check_history(
            world.agent.context().iter().map(|line| &*line.body),
            may_be_open,
        );
        if world.beside.is_empty() {
            check_history(world.messages().iter(), may_be_open);
            check_turns(world);
            check_shapes(world);
            check_calls(world, may_be_open);
            check_decisions(world);
            world.waits.check(&world.agent);
            check_restore(world);
        }
        check_list(&self.world.agent);
        self.check_version();
    }
}

impl Player {
    /// Checks that the listed tools stay the same while the agent's version does.
    fn check_version(&mut self) {
        let agent = &self.world.agent;
        let names = agent.tools().iter().map(|tool| tool.name.clone());
        let now = (self.world.deaths, agent.version(), names.collect());
        if let Some(before) = self.listed.replace(now.clone()) {
            let is_same = (before.0, before.1) == (now.0, now.1);
            assert!(!is_same || before.2 == now.2, "{before:?} {now:?}");
        }
    }
}

/// Returns the turn that the committed rows leave open, or `None` if they leave none open.
fn open_turn(world: &World) -> Option<u32> {
    let last = world
        .rows
        .iter()
        .rev()
        .find(|row| row.kind == EventKind::TurnStart || row.kind.is_terminal())?;
    (last.kind == EventKind::TurnStart).then_some(last.place.turn)
}

/// Checks that a node that restores the agent gets the same context, turn and totals. Messages that
/// are not saved yet are left out.
fn check_restore(world: &mut World) {
    let (other, _) = world.restored();
    let context = |agent: &Agent| -> Vec<(i64, String)> {
        let known = agent.context().iter().filter(|line| line.id > 0);
        known
            .map(|line| (line.id, serde_json::to_string(&*line.body).unwrap()))
            .collect()
    };
    assert_eq!(
        context(&world.agent),
        context(&other),
        "the restored context differs"
    );
    check_list(&other);
    assert_eq!(world.agent.turn(), other.turn());
    assert_eq!(world.agent.totals(), other.totals());
}

fn pick<T>(from: &[T], which: usize) -> Option<&T> {
    from.get(which.checked_rem(from.len())?)
}

fn finish(stop: StopReason) -> Finish {
    Finish::new(
        stop,
        Usage {
            input_tokens: 50,
            output_tokens: 5,
            ..Usage::default()
        },
    )
}

fn calls(tools: &str) -> Vec<Chunk> {
    let mut chunks = vec![Chunk::Text {
        part: 0,
        text: "let me see".into(),
    }];
    for (at, letter) in tools.chars().enumerate() {
        let name = match letter {
            'w' => "write",
            'r' | 'x' => "read",
            'a' => "ask",
            'd' => "deploy",
            'q' => "ask_user",
            's' | 't' => SUBMIT_OUTPUT,
            'f' => TOOL_SEARCH,
            'z' => "zip",
            _ => "unknown",
        };
        let args = match letter {
            'x' => "{broken",
            't' => r#"{"bad":1}"#,
            _ => r#"{"a":1,"question":"why?"}"#,
        };
        chunks.push(Chunk::Call {
            part: at + 1,
            id: if at % 2 == 0 {
                "c".into()
            } else {
                String::new()
            },
            name: name.into(),
        });
        chunks.push(Chunk::Args {
            part: at + 1,
            json: args.into(),
        });
    }
    chunks
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn log_stays_legal_for_any_order_of_events(
        steps in prop::collection::vec(moves(), 1..60),
        window in prop_oneof![Just(400u64), Just(1_000), Just(100_000)],
        stops in prop::bool::weighted(0.2),
        asks in any::<bool>(),
    ) {
        let mut player = Player::new(window, asks);
        for step in steps {
            player.play(step);
            player.check();
        }
        if stops {
            player.play(Move::Stop);
        }
        player.drain();
        player.check();
        let open: Vec<_> = player.world.inputs.iter().filter(|row| row.outcome.is_none()).map(|row| &row.input.id).collect();
        prop_assert!(open.is_empty(), "inputs without an outcome: {open:?}");
        for body in player.world.messages() {
            prop_assert!(!body.content.is_empty(), "an empty message: {}", text_of(&body.content));
        }
    }
}
