//! A small model of the runtime and the store. It performs effects in memory, and can crash at any
//! save.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use planck_common::{
    AgentId, CallId, InputId, Seq, SessionId, Timestamp,
    envelope::EventPlace,
    event::{Event, EventKind, ToolEffect, ToolEnd, ToolStart, TurnEnd, TurnOutcome},
    message::{MessageBody, MessageRole, Part, Sender, text_of},
    permission::{Permissions, Rule, RuleAction},
    spec::{AgentLimits, AgentSpec, Grant, ModelRef, SessionLimits},
    usage::Usage,
    wait::WaitKind,
};
use serde_json::value::RawValue;

use super::super::{
    Agent, ArgumentCheck, Effect, Input, InputOutcome, LogRow, Memory, NewInput, OpenTurn, Save,
    Settings, Setup, StoredInput, Ticket, Unstorable,
    effect::{Change, ToolRun},
    input::Saved,
};
use super::waits::WaitTable;
use crate::{
    compact::Rules,
    model::{ModelCard, RetryRules, ToolSpec},
};

pub struct World {
    pub agent: Agent,
    pub setup: Setup,
    pub rows: Vec<LogRow>,
    pub inputs: Vec<StoredInput>,
    pub puts: Vec<(String, String)>,
    pub now: i64,
    /// Saves that are not committed yet and that no effect waits for.
    pub beside: VecDeque<Save>,
    pub model: Option<Ticket>,
    pub tools: Vec<ToolRun>,
    pub compactor: Option<Ticket>,
    pub timers: Vec<Ticket>,
    /// The store's table of waits.
    pub waits: WaitTable,
    /// How often each mutating call was run.
    pub ledger: HashMap<CallId, u32>,
    pub told: Vec<Event>,
    pub stopped: bool,
    pub settled: Vec<String>,
    /// Inputs of which the agent was not notified.
    unnoticed: Vec<InputId>,
    totals: Usage,
    seq: Seq,
    /// The time spent in the agent's steps.
    pub spent: Duration,
    /// The number of commits before the one right after which the process crashes, or `None` if it
    /// does not crash.
    pub fuse: Option<usize>,
    /// What the agent does with an open turn when it is loaded again.
    open_turn: OpenTurn,
    /// How often the agent was loaded again, after a crash, a rewind or a refused save.
    pub deaths: usize,
}

pub fn tool(name: &str, effect: ToolEffect) -> ToolSpec {
    let parameters = RawValue::from_string(r#"{"type":"object"}"#.into())
        .unwrap()
        .into();
    ToolSpec {
        name: name.into(),
        description: String::new(),
        parameters,
        effect,
        sidecar: None,
        wait: None,
        is_searched: false,
    }
}

/// Returns the tool with which the model asks a person.
fn question() -> ToolSpec {
    ToolSpec {
        wait: Some(WaitKind::Question),
        ..tool("ask_user", ToolEffect::Idempotent)
    }
}

/// Returns permissions under which `deploy` asks.
pub fn careful() -> Vec<Permissions> {
    let rule = Rule {
        tool: Some("deploy".into()),
        effect: None,
        path: None,
        command: None,
        sidecar: None,
        action: RuleAction::Ask,
    };
    let rules = vec![rule];
    vec![Permissions {
        rules,
        ..Permissions::default()
    }]
}

/// Refuses calls whose arguments have a member `unknown`.
#[derive(Debug)]
struct NoUnknown;

impl ArgumentCheck for NoUnknown {
    fn refusal(&self, tool: &str, args: &str) -> Option<String> {
        args.contains("\"unknown\"")
            .then(|| format!("`{tool}` was not run"))
    }
}

pub fn setup() -> Setup {
    let spec = AgentSpec {
        r#type: "worker".into(),
        name: "w".into(),
        description: String::new(),
        role: planck_common::spec::AgentRole::Worker,
        model: ModelRef {
            provider: "scripted".into(),
            id: "m".into(),
            base_url: None,
        },
        system_prompt: "be good".into(),
        opts: serde_json::Map::new(),
        tools: Vec::new(),
        skills: Vec::new(),
        grant: Grant::default(),
        compactor: None,
        listed_tools: None,
        limits: AgentLimits::default(),
        labels: serde_json::Map::new(),
        permissions: careful(),
        client_tools: Vec::new(),
        spawned_by: None,
        output: None,
    };
    Setup {
        session: SessionId::parse("s1").unwrap(),
        agent: AgentId::parse("a1").unwrap(),
        epoch: 1,
        spec,
        card: ModelCard {
            context_window: 100_000,
            max_output: 4_096,
            prices: None,
            retry: RetryRules::default(),
        },
        tools: [
            tool("write", ToolEffect::Mutating),
            tool("read", ToolEffect::Pure),
            tool("ask", ToolEffect::Idempotent),
            tool("deploy", ToolEffect::Mutating),
            question(),
        ]
        .into(),
        arguments: Arc::new(NoUnknown),
        limits: SessionLimits::default(),
        settings: Settings {
            compaction: Rules {
                ratio: 0.8,
                keep_recent: 4,
            },
            ..Settings::default()
        },
        dir: "/work".into(),
    }
}

pub fn sender() -> Sender {
    Sender {
        id: AgentId::parse("boss").unwrap(),
        name: "boss".into(),
    }
}

impl World {
    pub fn new(setup: Setup) -> Self {
        Self {
            agent: Agent::new(setup.clone()),
            setup,
            rows: Vec::new(),
            inputs: Vec::new(),
            puts: Vec::new(),
            now: 1_767_268_800_000,
            beside: VecDeque::new(),
            model: None,
            tools: Vec::new(),
            compactor: None,
            timers: Vec::new(),
            waits: WaitTable::default(),
            ledger: HashMap::new(),
            told: Vec::new(),
            stopped: false,
            settled: Vec::new(),
            unnoticed: Vec::new(),
            totals: Usage::default(),
            seq: 0,
            spent: Duration::ZERO,
            fuse: None,
            open_turn: OpenTurn::Resume,
            deaths: 0,
        }
    }

    fn now(&mut self) -> Timestamp {
        self.now += 10;
        Timestamp::from_millis(self.now)
    }

    /// Adds an input to the inbox, and wakes the agent.
    pub fn put(&mut self, arrival: NewInput) {
        let head = self.seq;
        self.inputs.push(StoredInput::unread(arrival.clone(), head));
        self.step(Input::Delivered(arrival));
    }

    /// Adds an input to the inbox, as if the wake-up was lost or the agent could not act on it.
    pub fn put_unnoticed(&mut self, arrival: NewInput) {
        let head = self.seq;
        self.unnoticed.push(arrival.id.clone());
        self.inputs.push(StoredInput::unread(arrival, head));
    }

    /// Passes every unread input to the agent, as a sweep does.
    pub fn look(&mut self) {
        self.unnoticed.clear();
        let unread = self.inputs.iter().filter(|row| row.is_unread());
        let unread: Vec<_> = unread.map(|row| row.input.clone()).collect();
        for input in unread {
            self.step(Input::Delivered(input));
        }
    }

    pub fn step(&mut self, input: Input) {
        let effects = self.timed(input);
        self.perform(effects);
    }

    pub fn perform(&mut self, effects: Vec<Effect>) {
        assert!(
            !self.stopped || effects.is_empty(),
            "effects after the end: {effects:?}"
        );
        let mut todo = VecDeque::from(effects);
        while let Some(effect) = todo.pop_front() {
            if let Effect::Save(save) = effect {
                if save.beside {
                    self.beside.push_back(save);
                } else {
                    let Some(more) = self.settle(save) else {
                        return self.crash();
                    };
                    todo.extend(more);
                }
            } else {
                self.act(effect);
            }
        }
    }

    /// Commits a save and all saves before it. Returns `None` if the process crashed.
    fn settle(&mut self, save: Save) -> Option<Vec<Effect>> {
        self.beside.push_back(save);
        let mut decided = Vec::new();
        while !self.beside.is_empty() {
            decided.extend(self.commit_next()?);
        }
        Some(decided)
    }

    /// Commits the oldest pending save, and passes the reply to the agent. Returns `None` if no
    /// save is pending or the process crashed.
    pub fn commit_next(&mut self) -> Option<Vec<Effect>> {
        let save = self.beside.pop_front()?;
        let answer = self.commit(save);
        if let Some(left) = self.fuse {
            self.fuse = left.checked_sub(1);
            if left == 0 {
                return None;
            }
        }
        Some(self.timed(answer))
    }

    fn timed(&mut self, input: Input) -> Vec<Effect> {
        let now = self.now();
        let begin = Instant::now();
        let effects = self.agent.step(input, now);
        self.spent += begin.elapsed();
        effects
    }

    pub fn commit(&mut self, save: Save) -> Input {
        assert!(!save.entries.is_empty(), "a save without entries");
        let gone: Vec<_> = save
            .marks
            .iter()
            .filter(|mark| !self.is_markable(mark))
            .map(|mark| mark.input.clone())
            .collect();
        if !gone.is_empty() {
            assert!(
                !save.entries.iter().any(|entry| entry.kind.is_terminal()),
                "the end of a turn came back as gone"
            );
            return Input::Gone {
                save: save.ticket,
                inputs: gone,
            };
        }
        for mark in &save.marks {
            let row = self
                .inputs
                .iter_mut()
                .find(|row| row.input.id == mark.input)
                .unwrap();
            match &mark.change {
                Change::Consumed { turn } => row.turn = Some(*turn),
                Change::Ended { outcome, answer } => {
                    (row.outcome, row.answer) = (Some(outcome.clone()), answer.clone())
                }
            }
        }
        let seqs: Vec<Seq> = save
            .entries
            .iter()
            .map(|entry| self.append(entry))
            .collect();
        self.puts.extend(
            save.puts
                .iter()
                .map(|put| (put.id.to_string(), text_of(&put.parts()))),
        );
        self.totals += save.usage;
        Input::Saved(Saved {
            save: save.ticket,
            seqs,
            session: self.totals,
        })
    }

    fn append(&mut self, entry: &super::super::Entry) -> Seq {
        self.seq += 1;
        let seq = self.seq;
        let body = entry.body.clone();
        self.waits.appended(entry);
        self.rows.push(LogRow {
            seq,
            kind: entry.kind,
            place: entry.place,
            body,
        });
        seq
    }

    fn is_markable(&self, mark: &super::super::Mark) -> bool {
        self.inputs.iter().any(|row| {
            let is_free = match mark.change {
                Change::Consumed { .. } => row.turn.is_none(),
                Change::Ended { .. } => true,
            };
            row.input.id == mark.input && row.outcome.is_none() && is_free
        })
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Save(_) => unreachable!(),
            Effect::Publish { event, .. } => {
                assert!(!event.kind().is_durable());
                self.told.push(event);
            }
            Effect::CallModel { ticket } => {
                assert!(self.model.is_none(), "two requests at once");
                assert!(self.tools.is_empty(), "a request while tools run");
                self.model = Some(ticket);
            }
            Effect::CancelModel { ticket } => assert_eq!(self.model.take(), Some(ticket)),
            Effect::RecordSpec => self.setup.spec.limits = self.agent.spec().limits,
            Effect::CheckWaits => assert!(!self.agent.waits().is_empty(), "no wait to check"),
            Effect::RunTool(run) => self.run(run),
            Effect::CancelTool { ticket } => {
                assert!(self.tools.iter().any(|run| run.ticket == ticket))
            }
            Effect::Compact { ticket } => {
                let material = self.agent.compaction().expect("nothing to compact");
                assert!(
                    material.lines.iter().all(|line| line.id > 0),
                    "a compaction of unsaved messages"
                );
                self.compactor = Some(ticket);
            }
            Effect::CancelCompact { .. } => self.compactor = None,
            Effect::StartTimer { ticket, .. } => self.timers.push(ticket),
            Effect::CancelTimer { ticket } => self.timers.retain(|wait| *wait != ticket),
            Effect::Settled { inputs } => {
                for (id, _) in inputs {
                    let row = self.inputs.iter().find(|row| row.input.id == id).unwrap();
                    assert!(row.outcome.is_some(), "settled without an outcome");
                    self.settled.push(id.to_string());
                }
            }
            Effect::Wake { .. } | Effect::Turn { .. } => {}
            Effect::Stopped => self.stop(),
        }
    }

    /// Ends the agent. The store gives an outcome to the inputs that the agent did not know.
    fn stop(&mut self) {
        self.stopped = true;
        for row in &mut self.inputs {
            if row.is_unread() && self.unnoticed.contains(&row.input.id) {
                row.outcome = Some(InputOutcome::Stopped);
            }
        }
    }

    fn run(&mut self, run: ToolRun) {
        assert!(
            self.started(&run.call_id),
            "a tool that runs before its start is saved"
        );
        if run.name == "deploy" {
            self.waits.assert_allowed(&run);
        }
        // A call that asked a question runs again with the answer.
        if run.answer.is_none() && (run.name == "write" || run.name == "deploy") {
            let runs = self.ledger.entry(run.call_id.clone()).or_default();
            *runs += 1;
            assert_eq!(*runs, 1, "a mutating call ran twice");
        }
        self.tools.push(run);
    }

    fn started(&self, call: &CallId) -> bool {
        self.rows
            .iter()
            .any(|row| row.kind == EventKind::ToolStart && row.body.contains(call.as_str()))
    }

    /// Hides every row from the `which`-th message on, and loads the agent again under the next
    /// epoch. Open calls and turns are ended first. The end of a call or turn is kept if its start
    /// is not hidden.
    pub fn rewind(&mut self, which: usize) {
        let messages: Vec<usize> = (0..self.rows.len())
            .filter(|at| self.rows[*at].kind == EventKind::Message)
            .collect();
        let Some(at) = which
            .checked_rem(messages.len())
            .map(|which| messages[which])
        else {
            return;
        };
        if self.stopped {
            return;
        }
        self.end_what_is_open();
        self.waits.withdraw_all();
        let hidden = self.rows.split_off(at);
        let has = |kind: EventKind, turn: u32| {
            hidden
                .iter()
                .any(|row| row.kind == kind && row.place.turn == turn)
        };
        for row in self
            .inputs
            .iter_mut()
            .filter(|row| row.turn.is_some_and(|turn| has(EventKind::TurnStart, turn)))
        {
            row.outcome = Some("rewound".into());
        }
        for row in self
            .inputs
            .iter_mut()
            .filter(|row| row.turn.is_some() && row.outcome.is_none())
        {
            row.outcome = Some("aborted".into());
        }
        for row in hidden {
            let is_start =
                |of: &LogRow| of.kind == EventKind::TurnStart && of.place.turn == row.place.turn;
            let ends_turn = row.kind.is_terminal() && self.rows.iter().any(is_start);
            if ends_turn || row.kind == EventKind::ToolEnd && self.started(&call_of(&row)) {
                self.rows.push(row);
            }
        }
        self.setup.epoch += 1;
        self.crash();
    }

    /// Ends open work as the store does: calls without an end are interrupted, a turn without an
    /// end is aborted.
    fn end_what_is_open(&mut self) {
        let last = self
            .rows
            .iter()
            .rposition(|row| row.kind == EventKind::TurnStart || row.kind.is_terminal());
        let Some(start) = last.filter(|at| self.rows[*at].kind == EventKind::TurnStart) else {
            return;
        };
        let place = EventPlace {
            at: self.now(),
            ..self.rows.last().unwrap().place
        };
        let ended: Vec<CallId> = self
            .rows
            .iter()
            .filter(|row| row.kind == EventKind::ToolEnd)
            .map(call_of)
            .collect();
        let open = self.rows[start..]
            .iter()
            .filter(|row| row.kind == EventKind::ToolStart)
            .filter_map(|row| {
                let Ok(Event::ToolStart(ToolStart {
                    call_id, id, name, ..
                })) = Event::parse(row.kind, &row.body)
                else {
                    panic!()
                };
                let end = ToolEnd {
                    call_id,
                    id,
                    name,
                    result: "interrupted".into(),
                    error: true,
                    duration_ms: 0,
                };
                (!ended.contains(&end.call_id)).then_some(Event::ToolEnd(end))
            });
        let mut ends: Vec<Event> = open.collect();
        let end = TurnEnd {
            outcome: TurnOutcome::Aborted,
            message: None,
            usage: Usage::default(),
            refused: false,
            limit: None,
            reason: None,
            output: None,
            output_repairs: 0,
            output_due: None,
            inputs: vec![],
        };
        ends.push(Event::TurnEnd(end));
        for event in ends {
            self.append(&super::super::Entry {
                kind: event.kind(),
                place,
                body: event.data(),
            });
        }
    }

    /// Drops all pending work, and restores the agent from the committed rows, as after a crash of
    /// the process.
    pub fn crash(&mut self) {
        if self.stopped {
            return;
        }
        self.deaths += 1;
        self.fuse = None;
        self.beside.clear();
        (self.model, self.compactor) = (None, None);
        self.tools.clear();
        self.timers.clear();
        self.unnoticed.clear();
        let (agent, effects) = self.restored();
        self.agent = agent;
        self.perform(effects);
    }

    /// Makes the store refuse the pending saves because of their data, and loads the agent again to
    /// end its turn.
    pub fn refuse(&mut self) {
        self.load_as(OpenTurn::Refused(Unstorable::new("for a test", &[])));
    }

    /// Loads the agent again, to do this with its open turn.
    pub fn load_as(&mut self, open_turn: OpenTurn) {
        self.open_turn = open_turn;
        self.crash();
        self.open_turn = OpenTurn::Resume;
    }

    pub fn restored(&mut self) -> (Agent, Vec<Effect>) {
        let memory = self.memory();
        let now = self.now();
        Agent::restore(self.setup.clone(), memory, now).unwrap()
    }

    pub fn memory(&self) -> Memory {
        let open = |row: &&StoredInput| row.outcome.is_none();
        let inputs = self.inputs.iter().filter(open).cloned();
        Memory {
            rows: self.load(),
            inputs: inputs.collect(),
            responded: Vec::new(),
            totals: self.totals,
            session: self.totals,
            open_turn: self.open_turn.clone(),
        }
    }

    /// Returns the rows after those covered by the latest checkpoint, or from the open turn's start
    /// if that is earlier.
    fn load(&self) -> Vec<LogRow> {
        let last = |is: fn(EventKind) -> bool| self.rows.iter().rev().find(|row| is(row.kind));
        let covers = last(|kind| kind == EventKind::Checkpoint).map_or(0, |row| {
            let Ok(Event::Checkpoint(checkpoint)) = Event::parse(row.kind, &row.body) else {
                panic!()
            };
            checkpoint.covers
        });
        let start = last(|kind| kind == EventKind::TurnStart).map_or(0, |row| row.seq);
        let end = last(EventKind::is_terminal).map_or(0, |row| row.seq);
        let from = if start > end {
            start.min(covers + 1)
        } else {
            covers + 1
        };
        self.rows
            .iter()
            .filter(|row| row.seq >= from)
            .cloned()
            .collect()
    }

    pub fn messages(&self) -> Vec<MessageBody> {
        let rows = self
            .rows
            .iter()
            .filter(|row| row.kind == EventKind::Message);
        rows.map(|row| serde_json::from_str(&row.body).unwrap())
            .collect()
    }

    pub fn kinds(&self) -> Vec<&'static str> {
        self.rows.iter().map(|row| row.kind.name()).collect()
    }
}

fn call_of(end: &LogRow) -> CallId {
    let Ok(Event::ToolEnd(end)) = Event::parse(end.kind, &end.body) else {
        panic!()
    };
    end.call_id
}

fn ids(body: &MessageBody) -> (Vec<&CallId>, Vec<&CallId>) {
    let calls = body.content.iter().filter_map(|part| {
        if let Part::ToolCall { call_id, .. } = part {
            Some(call_id)
        } else {
            None
        }
    });
    let results = body.content.iter().filter_map(|part| {
        if let Part::ToolResult { call_id, .. } = part {
            Some(call_id)
        } else {
            None
        }
    });
    (calls.collect(), results.collect())
}

/// Checks that a provider would accept a history. If `may_be_open`, the calls of the last message
/// may have no results.
pub fn check_history<'a>(messages: impl Iterator<Item = &'a MessageBody>, may_be_open: bool) {
    let mut open: Vec<&CallId> = Vec::new();
    for body in messages {
        let (calls, results) = ids(body);
        assert_eq!(open, results, "calls and results do not match");
        assert_eq!(body.role == MessageRole::ToolResult, !results.is_empty());
        open = calls;
    }
    assert!(open.is_empty() || may_be_open, "calls without results");
}
