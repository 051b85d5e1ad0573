//! The simulated people who prompt agents and abort turns, and the checks that each acknowledged
//! input begins a turn and each abort ends one. A person sends a request to any process until there
//! is a reply. All times are in virtual milliseconds.

use super::{
    asked::READ_WITHIN,
    inbox::{InputNumber, InputSource, InputState, SimInput},
    people::{PATIENCE, PersonAbort},
    process::{AgentStage, SqlCaller},
    sql::{AgentKey, LogRow, LogRowKind, SqlReply, SqlStatement},
    world::{MACHINES, SimWorld, WorldEvent},
};

/// The number of prompts at random times.
const PROMPTS: usize = 15;
/// When the first and the last prompt at a random time is sent.
const PROMPTS_FROM: u64 = 6_000;
const PROMPTS_UNTIL: u64 = 56_000;
/// The number of prompts around an outage, from shortly before it until shortly after it.
const PROMPTS_AROUND: usize = 12;
const BEFORE: u64 = 200;
const AFTER: u64 = 2_000;
/// One in this many waits is aborted.
const ABORTED: u32 = 5;
/// The time within which an abort must end a wait if no fault occurs. A person sends the abort again
/// if the agent had no host, or if the request to take it up was lost.
const ABORTS_WITHIN: u64 = 7_000;

impl SimWorld {
    /// Schedules the prompts at random times, and the first prompt of each session.
    pub fn schedule_prompts(&mut self, first_at: u64) {
        for session in 0..self.sql.sessions.len() {
            self.schedule_prompt(first_at, (session, 0));
        }
        for _ in 0..PROMPTS {
            let at = self.rng.u64(PROMPTS_FROM..PROMPTS_UNTIL);
            self.schedule_any_prompt(at);
        }
    }

    /// Schedules prompts from shortly before an outage until shortly after it, of which half are
    /// sent around the end.
    pub fn schedule_prompts_around(&mut self, begin: u64, end: u64) {
        for number in 0..PROMPTS_AROUND {
            let from = if number % 2 == 0 { begin } else { end };
            let at = self.rng.u64(from - BEFORE..end + AFTER);
            self.schedule_any_prompt(at);
        }
    }

    fn schedule_any_prompt(&mut self, at: u64) {
        let session = self.rng.usize(0..self.sql.sessions.len());
        let agent = self
            .rng
            .usize(0..self.sql.sessions[session].row.leases.len());
        self.schedule_prompt(at, (session, agent));
    }

    fn schedule_prompt(&mut self, at: u64, agent: AgentKey) {
        let input = SimInput {
            number: self.checks.next_call(),
            agent,
            source: InputSource::Prompt,
        };
        self.at(at, WorldEvent::Prompt(input));
    }

    /// Returns the running process on a random machine, or `None` if there is none.
    pub fn any_process(&mut self) -> Option<usize> {
        let machine = self.rng.usize(0..MACHINES);
        let process = self.process_on(machine);
        process.filter(|at| self.processes[*at].is_running())
    }

    /// Returns the process that a person asks about an agent, which is the agent's host in some
    /// runs.
    fn asked_process(&mut self, agent: AgentKey) -> Option<usize> {
        let any = self.any_process();
        let host = self.sql.row(agent).node.filter(|_| self.asks_host);
        host.filter(|host| self.processes[*host].is_running())
            .or(any)
    }

    /// Sends the prompt of a person who has no reply yet.
    pub fn person_prompts(&mut self, input: SimInput) {
        if self.checks.is_input_settled(input.number) {
            return;
        }
        if let Some(process) = self.asked_process(input.agent) {
            self.put(process, input);
        }
        self.after(PATIENCE, WorldEvent::Prompt(input));
    }

    /// Lets a person abort some of the turns that wait for an answer.
    pub fn may_be_aborted(&mut self, session: usize, row: LogRow) {
        if self.has_turns && self.rng.u32(0..ABORTED) == 0 {
            let at = self.now + self.rng.u64(1..11_000);
            let abort = PersonAbort {
                agent: (session, row.agent),
                call: row.call,
            };
            self.at(at, WorldEvent::Abort(abort));
            self.at(at, WorldEvent::AbortSent(abort));
        }
    }

    /// Sends the abort of a person through a random process, until the turn no longer waits.
    pub fn person_aborts(&mut self, abort: PersonAbort) {
        if !self.is_awaiting_answer(abort) {
            return;
        }
        if let Some(process) = self.any_process() {
            let session = abort.agent.0;
            let statement = SqlStatement::ReadSession { session };
            self.query(process, statement, SqlCaller::Abort(abort));
        }
        self.after(PATIENCE, WorldEvent::Abort(abort));
    }

    fn is_awaiting_answer(&self, PersonAbort { agent, call }: PersonAbort) -> bool {
        let wait = self.sql.sessions[agent.0].wait(call);
        wait.is_some_and(super::waits::SimWait::is_live)
    }

    /// Schedules the check of an abort that a person is about to send.
    pub fn await_abort(&mut self, abort: PersonAbort) {
        if self.now >= self.checks.calm_from() && self.is_awaiting_answer(abort) {
            self.after(ABORTS_WITHIN, WorldEvent::AbortDue(abort));
        }
    }

    pub fn check_abort_due(&mut self, abort: PersonAbort) {
        self.checks.report.abort_bounds += 1;
        if self.is_awaiting_answer(abort) {
            let what = format!("{abort:?} has not ended the wait in time");
            self.checks.violate(what);
        }
    }

    /// Handles the acknowledgement of an input, which a turn must consume once the faults are over.
    pub fn input_acknowledged(&mut self, input: SimInput) {
        if !self.checks.settle_input(input.number) {
            return;
        }
        self.trace(|| format!("{input:?} is acknowledged"));
        self.checks.report.inputs += 1;
        let due = self.now.max(self.checks.calm_from()) + READ_WITHIN;
        self.at(due, WorldEvent::InputDue(input));
    }

    pub fn after_inbox_statement(&mut self, statement: &SqlStatement, reply: &SqlReply) {
        let (SqlStatement::Append { row, inboxes, .. }, SqlReply::Appended { .. }) =
            (statement, reply)
        else {
            return;
        };
        if row.kind == LogRowKind::Aborted {
            self.checks.report.aborts += 1;
        }
        if let Some(note) = inboxes.note {
            self.input_acknowledged(note);
        }
    }

    /// Checks that an acknowledged input was read: a turn has consumed it, or its agent is in a turn
    /// and knows it. An input is excused if its agent was stopped for good or its session closed.
    pub fn check_input_due(&mut self, input: SimInput) {
        let (session, agent) = input.agent;
        let stored = &self.sql.sessions[session];
        let is_over = !stored.row.is_open || self.checks.lost.contains(&session);
        if is_over || stored.row.leases[agent].is_stopped {
            return;
        }
        self.checks.report.input_bounds += 1;
        let row = stored.input(input.number);
        let is_unread = row.is_none_or(|row| row.state == InputState::Unread);
        if is_unread && !self.knows(input.agent, input.number) {
            self.checks
                .violate(format!("{input:?} was acknowledged and not read in time"));
        }
    }

    /// Returns whether the host of an agent has an input in its queue while the agent is in a turn.
    fn knows(&self, agent: AgentKey, input: InputNumber) -> bool {
        let epoch = self.sql.row(agent).epoch;
        self.at_holder(agent).is_some_and(|hosted| {
            let is_in_turn = !matches!(hosted.stage, AgentStage::Idle | AgentStage::Parked);
            let is_known = hosted.queue.contains(&input) || hosted.taken.contains(&input);
            hosted.epoch == epoch && is_in_turn && is_known
        })
    }
}
