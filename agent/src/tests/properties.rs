//! Property test: for any order of events, with crashes at any save, the log stays valid and every
//! input gets exactly one outcome.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use planck_common::{
    CallId, InputId, Timestamp,
    command::{AgentState, InputMode},
    event::{Event, EventKind, InputKind, TurnOutcome, TurnStart, json},
    message::{Part, StopReason, text_of},
    spec::{OnLimit, OutputSpec},
    usage::Usage,
    wait::{WaitDecision, WaitKind},
};
use proptest::prelude::*;

use super::{
    super::{Agent, Command, Input, NewInput, StoredInput, Ticket, input::CompactionResult},
    world::{World, check_history, sender, setup},
};
use crate::{
    SUBMIT_OUTPUT,
    model::{Chunk, Failure, FailureKind, Finish},
    outcome::ToolOutcome,
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
    /// person has to allow, `q` asks a person, and `s` and `t` are `submit_output` with an answer that
    /// satisfies the shape and one that does not.
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
        10 => ("[wrauxwddqst]{1,4}", stop).prop_map(|(tools, stop)| Move::Call { tools, stop }),
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
}

impl Player {
    fn new(window: u64, asks: bool) -> Self {
        let mut setup = setup();
        setup.card.context_window = window;
        setup.spec.limits.max_turn_seconds = Some(600);
        setup.spec.limits.max_requests_per_turn = asks.then_some(3);
        setup.spec.limits.on_limit = Some(OnLimit::Ask);
        Self {
            world: World::new(setup),
            put: 0,
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
                false => ToolOutcome::ok("result ".repeat(30)),
            };
            if which % 7 == 3 {
                outcome.changes = super::changes::changes();
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

/// Checks that turns are numbered without gaps, that each has one start and, unless it is open, one
/// end, and that request numbers never fall within a turn.
fn check_turns(world: &World) {
    let (mut turn, mut open, mut request) = (0, false, 0);
    for row in &world.rows {
        if row.kind == EventKind::TurnStart {
            let Ok(Event::TurnStart(TurnStart { index, .. })) = Event::parse(row.kind, &row.body)
            else {
                panic!()
            };
            assert!(!open, "a turn started inside another");
            assert_eq!(index, turn + 1);
            (turn, open, request) = (index, true, 0);
        }
        if row.kind.is_terminal() {
            assert!(open, "a turn ended without a start");
            open = false;
        }
        assert_eq!(row.place.turn, turn);
        assert!(row.place.request >= request);
        request = row.place.request;
    }
    let is_open = !matches!(world.agent.state(), AgentState::Idle | AgentState::Stopped);
    assert_eq!(
        open, is_open,
        "the log and the agent disagree on whether a turn is open"
    );
}

/// Checks that a turn with a shape is completed with an answer that satisfies the shape or leaves the
/// shape to a later turn, and that no other turn has such an answer.
fn check_shapes(world: &World) {
    let mut has_shape = false;
    for row in &world.rows {
        if !matches!(row.kind, EventKind::TurnStart | EventKind::TurnEnd) {
            continue;
        }
        match Event::parse(row.kind, &row.body) {
            Ok(Event::TurnStart(start)) => has_shape = start.output.is_some(),
            Ok(Event::TurnEnd(end)) => {
                let answered = end.outcome == TurnOutcome::Completed && !end.refused;
                let output = end.output.as_ref().map(|output| output.get());
                assert_eq!(
                    output.is_some() || end.output_due.is_some(),
                    answered && has_shape,
                    "{end:?}"
                );
                assert!(output.is_none_or(|output| !output.contains("bad")));
                assert!(end.output_repairs <= 3);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that no call starts or ends twice, and that every started call has an end once its round
/// is over.
fn check_calls(world: &World, may_be_open: bool) {
    let mut ends: HashMap<String, usize> = HashMap::new();
    let mut starts: HashMap<String, usize> = HashMap::new();
    for row in &world.rows {
        match Event::parse(
            row.kind,
            if row.kind == EventKind::Message {
                "{}"
            } else {
                &row.body
            },
        ) {
            Ok(Event::ToolStart(start)) => {
                *starts.entry(start.call_id.to_string()).or_default() += 1
            }
            Ok(Event::ToolEnd(end)) => *ends.entry(end.call_id.to_string()).or_default() += 1,
            _ => {}
        }
    }
    assert!(
        ends.values()
            .chain(starts.values())
            .all(|count| *count == 1),
        "a call started or ended twice"
    );
    assert!(
        may_be_open || starts.keys().all(|call| ends.contains_key(call)),
        "a call without an end"
    );
}

/// Checks that an allowed call has a start in the log, and that any other call that waited has none
/// but a result. The answer, and what becomes of the call, are saved together, so a crash between
/// them neither runs a denied call nor loses an allowed one.
fn check_decisions(world: &World) {
    let mut decisions: HashMap<CallId, WaitDecision> = HashMap::new();
    let (mut starts, mut ends) = (HashSet::new(), HashSet::new());
    // Limits, and changes by a call that has started already.
    let mut others = HashSet::new();
    for row in &world.rows {
        if row.kind == EventKind::Message {
            continue;
        }
        match Event::parse(row.kind, &row.body) {
            Ok(Event::WaitOpened(wait))
                if matches!(wait.kind, WaitKind::Budget | WaitKind::Change) =>
            {
                others.insert(wait.id);
            }
            Ok(Event::WaitClosed(wait)) if !others.contains(&wait.id) => {
                decisions.insert(wait.id, wait.decision);
            }
            Ok(Event::ToolStart(start)) => drop(starts.insert(start.call_id)),
            Ok(Event::ToolEnd(end)) => drop(ends.insert(end.call_id)),
            _ => {}
        }
    }
    for (call, decision) in decisions {
        let is_allowed = decision == WaitDecision::Allow;
        assert_eq!(
            starts.contains(&call),
            is_allowed,
            "{call} was decided with {decision:?}"
        );
        assert!(is_allowed || ends.contains(&call), "{call} has no result");
    }
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
