//! Tests of the decision, against examples and against a model that follows every step of a session.

use planck_common::{InputId, event::TurnOutcome};
use proptest::prelude::*;

use super::*;

fn agent(name: &str) -> AgentId {
    AgentId::parse(name).unwrap()
}

fn is(state: AgentState) -> InputReader {
    InputReader {
        state,
        open_waits: 0,
        answers: 0,
        calls: 0,
    }
}

/// Returns an unread input of an agent that is idle.
fn input(id: &str, to: &str) -> WorkInput {
    WorkInput {
        id: InputId::parse(id).unwrap(),
        agent: agent(to),
        sender: None,
        is_later: true,
        cause: None,
        head: 0,
        turn: None,
        outcome: None,
        waiting: false,
        reader: Some(is(AgentState::Idle)),
    }
}

trait Told: Sized {
    fn sent_in(self, sender: &str, turn: u32) -> Self;
    fn read_in(self, turn: u32) -> Self;
    fn ended(self) -> Self;
    fn rewound(self) -> Self;
    fn awaited(self) -> Self;
    fn by(self, reader: InputReader) -> Self;
}

impl Told for WorkInput {
    fn sent_in(self, sender: &str, turn: u32) -> Self {
        Self {
            sender: Some(agent(sender)),
            cause: Some(turn),
            ..self
        }
    }

    fn read_in(self, turn: u32) -> Self {
        Self {
            turn: Some(turn),
            ..self.by(is(AgentState::Streaming))
        }
    }

    fn ended(self) -> Self {
        Self {
            outcome: Some(InputOutcome::Turn(TurnOutcome::Completed)),
            reader: None,
            ..self
        }
    }

    fn rewound(self) -> Self {
        Self {
            outcome: Some(InputOutcome::Rewound),
            reader: None,
            ..self
        }
    }

    fn awaited(self) -> Self {
        Self {
            waiting: true,
            ..self
        }
    }

    fn by(self, reader: InputReader) -> Self {
        Self {
            reader: Some(reader),
            ..self
        }
    }
}

fn rows(root: WorkInput, rest: impl IntoIterator<Item = WorkInput>) -> WorkRows {
    WorkRows {
        root: Some(root),
        rest: rest.into_iter().collect(),
        is_cut: false,
        head: 0,
        is_shut: false,
    }
}

fn state(root: WorkInput, rest: impl IntoIterator<Item = WorkInput>) -> WorkState {
    CausedWork::of(&rows(root, rest)).state
}

fn turns(root: WorkInput, rest: impl IntoIterator<Item = WorkInput>) -> Vec<u32> {
    CausedWork::of(&rows(root, rest))
        .turns
        .into_keys()
        .collect()
}

/// The lead's first turn read the prompt, and has ended.
fn prompt() -> WorkInput {
    input("p", "lead").read_in(1).ended()
}

/// A task that the first turn sent to the worker.
fn task() -> WorkInput {
    input("t", "worker").sent_in("lead", 1)
}

/// The worker's response to the task.
fn response() -> WorkInput {
    input("r", "lead").sent_in("worker", 1)
}

#[test]
fn work_is_over_when_all_that_the_prompt_caused_has_ended() {
    use WorkState::{Over, Working};
    let done = || task().read_in(1).ended();
    for (expected, root, rest) in [
        (Working, input("p", "lead"), vec![]),
        (Working, input("p", "lead").read_in(1), vec![]),
        (Over, prompt(), vec![]),
        (Working, prompt(), vec![task()]),
        (Working, prompt(), vec![task().read_in(1)]),
        (Working, prompt(), vec![done(), response()]),
        (Working, prompt(), vec![done(), response().read_in(2)]),
        (Over, prompt(), vec![done(), response().read_in(2).ended()]),
        // Another turn of the lead sent this task.
        (
            Over,
            prompt(),
            vec![input("t", "worker").sent_in("lead", 2)],
        ),
        // A client sent this prompt.
        (Over, prompt(), vec![input("q", "lead").read_in(2)]),
        (Over, input("p", "lead").rewound(), vec![]),
    ] {
        assert_eq!(
            state(root.clone(), rest.clone()),
            expected,
            "{root:?} {rest:?}"
        );
    }
}

#[test]
fn prompts_hold_each_other_open_only_if_a_turn_read_both() {
    let (other, of_other) = (
        input("q", "lead").read_in(2),
        input("u", "worker").sent_in("lead", 2),
    );
    let apart = [other.clone().ended(), of_other.clone()];
    assert_eq!(state(prompt(), apart.clone()), WorkState::Over);
    assert_eq!(
        state(other.ended(), [prompt(), of_other]),
        WorkState::Working
    );
    // The worker's turn read a task of each, so its response belongs to both.
    let both = [task().read_in(1).ended(), response()];
    assert_eq!(state(prompt(), both), WorkState::Working);
}

#[test]
fn turns_are_those_of_the_agent_that_read_the_prompt() {
    let done = task().read_in(7).ended();
    let later = input("r", "lead").sent_in("worker", 7).read_in(3).ended();
    let foreign = input("q", "lead").read_in(2).ended();
    assert_eq!(turns(prompt(), [done, foreign, later]), [1, 3]);
    assert_eq!(turns(input("p", "lead"), []), [] as [u32; 0]);
}

fn open(rest: impl IntoIterator<Item = WorkInput>) -> WorkRows {
    WorkRows {
        root: None,
        ..rows(prompt(), rest)
    }
}

#[test]
fn abort_ends_what_its_first_aborts_caused() {
    let named = |names: &[&str]| Some(names.iter().map(|name| agent(name)).collect());
    let mut work = AbortedWork::of(&open([task().read_in(1)]));
    assert_eq!(work.running(&open([task().read_in(1)])), named(&["worker"]));
    assert_eq!(work.running(&open([response()])), named(&[]));
    assert_eq!(
        work.running(&open([response().read_in(2)])),
        named(&["lead"])
    );
    assert_eq!(work.running(&open([])), None);
}

#[test]
fn abort_spares_the_work_of_prompts_that_were_not_read() {
    let begun = || input("p", "lead").read_in(1);
    let later = || input("q", "lead");
    let mut work = AbortedWork::of(&open([begun(), later()]));
    let lead = Some(BTreeSet::from([agent("lead")]));
    assert_eq!(work.running(&open([begun(), later()])), lead);
    // The turn that read it also read the response of an aborted worker, and sends a task.
    let both = || [later().read_in(2), response().read_in(2)];
    assert_eq!(work.running(&open(both())), None);
    let caused = input("t", "worker").sent_in("lead", 2).read_in(1);
    assert_eq!(
        work.running(&open(both().into_iter().chain([caused.clone()]))),
        None
    );
    assert_eq!(work.running(&open([caused.clone()])), None);
    // The abort of a prompt leaves the others alone.
    let rows = || rows(prompt(), [later().read_in(2), caused.clone()]);
    assert_eq!(AbortedWork::of(&rows()).running(&rows()), None);
}

#[test]
fn turns_that_a_rewind_has_hidden_cause_nothing() {
    // The worker's turn 1 was hidden. Its next one has the same number and belongs to other work.
    let (hidden, later) = (task().read_in(1).rewound(), response());
    assert_eq!(state(prompt(), [hidden, later]), WorkState::Over);
}

#[test]
fn work_waits_if_nothing_else_of_it_can_happen() {
    use WorkState::{Waiting, Working};
    let waits = InputReader {
        open_waits: 1,
        ..is(AgentState::Waiting)
    };
    let answered = InputReader {
        open_waits: 1,
        answers: 1,
        ..is(AgentState::Waiting)
    };
    let asks = InputReader {
        calls: 1,
        ..is(AgentState::ExecutingTools)
    };
    let runs_too = InputReader { calls: 2, ..asks };
    let lead = |reader| input("p", "lead").read_in(1).by(reader);
    let question = |reader| task().awaited().by(reader);
    let at_rest = || task().by(is(AgentState::Idle));
    for (expected, root, rest) in [
        (Waiting, lead(waits), vec![]),
        (Working, lead(answered), vec![]),
        (Working, lead(waits), vec![at_rest()]),
        (Waiting, lead(waits), vec![task().by(waits)]),
        // The lead has asked the worker, which waits.
        (
            Waiting,
            lead(asks),
            vec![question(waits).read_in(1).by(waits)],
        ),
        (Working, lead(asks), vec![question(answered)]),
        (Working, lead(runs_too), vec![question(waits)]),
        (
            Working,
            lead(asks),
            vec![question(is(AgentState::Streaming))],
        ),
        (Working, lead(asks), vec![task().awaited().ended()]),
        // The worker has not read the question yet: it waits, for other work.
        (Waiting, lead(asks), vec![question(waits)]),
        // The worker has asked a third agent for other work, and that agent waits.
        (
            Waiting,
            lead(asks),
            vec![
                question(asks),
                input("q", "third").sent_in("worker", 9).awaited().by(waits),
            ],
        ),
        // The lead waits for an answer from outside and for the worker.
        (
            Waiting,
            lead(InputReader {
                open_waits: 1,
                ..asks
            }),
            vec![question(waits)],
        ),
        (
            Working,
            lead(InputReader {
                open_waits: 1,
                ..asks
            }),
            vec![question(is(AgentState::Compacting))],
        ),
    ] {
        assert_eq!(
            state(root.clone(), rest.clone()),
            expected,
            "{root:?} {rest:?}"
        );
    }
    let work = CausedWork::of(&rows(lead(asks), [question(waits)]));
    assert_eq!(work.waiting, HashSet::from([agent("worker")]));
}

#[test]
fn nothing_continues_in_a_session_that_is_shut() {
    let shut = |root| {
        let rows = WorkRows {
            is_shut: true,
            ..rows(root, [task()])
        };
        CausedWork::of(&rows).state
    };
    assert_eq!(shut(prompt()), WorkState::Over);
    assert_eq!(shut(input("p", "lead").read_in(1)), WorkState::Over);
    // A prompt opens the session again.
    assert_eq!(shut(input("p", "lead")), WorkState::Working);
}

#[test]
fn any_open_input_may_belong_to_work_whose_inputs_are_not_all_known() {
    let cut = |rest: Vec<WorkInput>| {
        let rows = WorkRows {
            is_cut: true,
            ..rows(prompt(), rest)
        };
        CausedWork::of(&rows)
    };
    let foreign = input("q", "lead").read_in(8);
    assert_eq!(cut(vec![foreign.clone()]).state, WorkState::Working);
    let over = cut(vec![foreign.ended()]);
    assert_eq!((over.state, over.turns.len()), (WorkState::Over, 2));
}

#[test]
fn work_of_a_session_is_all_that_is_open() {
    let all = |rest: Vec<WorkInput>| {
        let rows = WorkRows {
            root: None,
            ..rows(prompt(), rest)
        };
        CausedWork::of(&rows).state
    };
    assert_eq!(all(vec![]), WorkState::Over);
    assert_eq!(all(vec![prompt()]), WorkState::Over);
    assert_eq!(all(vec![task()]), WorkState::Working);
}

/// A step of a session of three agents.
#[derive(Debug, Clone)]
enum Step {
    Prompt {
        to: usize,
    },
    /// The agent opens a turn for its unread inputs, or takes them into its open turn.
    Read {
        agent: usize,
    },
    /// The agent sends an input in its open turn.
    Send {
        from: usize,
        to: usize,
    },
    End {
        agent: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0..3_usize;
    prop_oneof![
        1 => agent().prop_map(|to| Step::Prompt { to }),
        3 => agent().prop_map(|agent| Step::Read { agent }),
        3 => (agent(), agent()).prop_map(|(from, to)| Step::Send { from, to }),
        2 => agent().prop_map(|agent| Step::End { agent }),
    ]
}

/// A session that records which turn put which input.
#[derive(Default)]
struct Session {
    inputs: Vec<WorkInput>,
    turns: [u32; 3],
    open: [bool; 3],
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Session {
    fn take(&mut self, step: &Step) {
        let id = format!("i{}", self.inputs.len());
        match *step {
            Step::Prompt { to } => self.inputs.push(input(&id, NAMES[to])),
            Step::Send { from, to } if self.open[from] => {
                let sent = input(&id, NAMES[to]);
                self.inputs
                    .push(sent.sent_in(NAMES[from], self.turns[from]));
            }
            Step::Read { agent } => {
                let unread = |input: &WorkInput| {
                    input.agent.as_str() == NAMES[agent] && input.turn.is_none()
                };
                if self.inputs.iter().any(unread) && !self.open[agent] {
                    self.open[agent] = true;
                    self.turns[agent] += 1;
                }
                for input in self.inputs.iter_mut().filter(|input| unread(input)) {
                    *input = input.clone().read_in(self.turns[agent]);
                }
            }
            Step::End { agent } => {
                self.open[agent] = false;
                let read = |input: &&mut WorkInput| {
                    input.agent.as_str() == NAMES[agent] && input.turn.is_some()
                };
                for input in self.inputs.iter_mut().filter(read) {
                    *input = input.clone().ended();
                }
            }
            Step::Send { .. } => {}
        }
    }

    /// Returns whether each input belongs to the work of the input at `root`, by going over all of
    /// them until nothing is added.
    fn belonging(&self, root: usize) -> Vec<bool> {
        let mut belongs: Vec<bool> = (0..self.inputs.len()).map(|at| at == root).collect();
        loop {
            let before = belongs.clone();
            for (at, input) in self.inputs.iter().enumerate() {
                let is_cause = |(other, is_in): (&WorkInput, &bool)| {
                    *is_in
                        && Some(&other.agent) == input.sender.as_ref()
                        && other.turn.is_some()
                        && other.turn == input.cause
                };
                belongs[at] |= at > root && self.inputs.iter().zip(&before).any(is_cause);
            }
            if belongs == before {
                return belongs;
            }
        }
    }
}

proptest! {
    /// After every step, the work of every prompt is over if and only if none of its inputs is open,
    /// and its turns are those that read one of them.
    #[test]
    fn work_is_that_of_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut session = Session::default();
        for step in &steps {
            session.take(step);
            let roots = session.inputs.iter().enumerate();
            for (root, prompt) in roots.filter(|(_, input)| input.sender.is_none()) {
                let belongs = session.belonging(root);
                let of_work = || session.inputs.iter().zip(&belongs).filter_map(|(input, is_in)| is_in.then_some(input));
                let rest = session.inputs.iter().enumerate().filter(|(at, input)| *at > root || *at != root && is_open(input));
                let work = CausedWork::of(&rows(prompt.clone(), rest.map(|(at, input)| WorkInput { is_later: at > root, ..input.clone() })));
                prop_assert_eq!(work.state == WorkState::Over, of_work().all(|input| !is_open(input)));
                let read = of_work().filter(|input| input.agent == prompt.agent).filter_map(|input| input.turn);
                let read: std::collections::BTreeSet<u32> = read.collect();
                prop_assert_eq!(work.turns.into_keys().collect::<std::collections::BTreeSet<u32>>(), read);
            }
        }
    }
}
