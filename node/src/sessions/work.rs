//! Decides whether the work that a prompt caused is over, from the inputs that were put since.
//!
//! An input is caused by the turn in which its sender put it, and a turn belongs to the work if it
//! consumed an input of the work. What a turn sent before the prompt joined it is not caused by the
//! prompt. An agent's inputs for others are in the store when its turn ends,
//! so the work is over as soon as none of its inputs is without an outcome.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use planck_common::{
    AgentId, InputId, Seq,
    command::{AgentState, WorkState},
};

use planck_store::{InputOutcome, InputReader, WorkInput, WorkRows};

/// The work that a prompt caused, or the open work of a session, as of the moment at which its rows
/// were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CausedWork {
    pub state: WorkState,
    /// The turns of the prompt's agent that belong to the work, each with a row of the log before
    /// its end.
    pub turns: BTreeMap<u32, Seq>,
    /// The agents that the work needs and that have open waits.
    pub waiting: HashSet<AgentId>,
}

type TurnOfAgent<'a> = (&'a AgentId, u32);

impl CausedWork {
    pub fn of(rows: &WorkRows) -> Self {
        let root = rows.root.as_ref();
        let inputs = inputs_of(rows);
        let mut turns = BTreeMap::new();
        for input in &inputs {
            if let Some((agent, turn)) = turn_of(input)
                && root.is_some_and(|root| root.agent == *agent)
            {
                let before_end = turns.entry(turn).or_insert(input.head);
                *before_end = input.head.max(*before_end);
            }
        }
        let open: Vec<_> = inputs.iter().filter(|input| is_open(input)).collect();
        let is_unread = root.is_some_and(|root| root.turn.is_none() && is_open(root));
        if open.is_empty() || (rows.is_shut && !is_unread) {
            return Self {
                state: WorkState::Over,
                turns,
                waiting: HashSet::new(),
            };
        }
        let mut standings = Standings::of(root.into_iter().chain(&rows.rest));
        let found = open
            .iter()
            .map(|input| standings.of_agent(&input.agent))
            .fold(Standing::Asks, Standing::or);
        Self {
            state: match found {
                Standing::Waits => WorkState::Waiting,
                // If all agents ask, an answer is on its way to one of them.
                Standing::Works | Standing::Asks => WorkState::Working,
            },
            turns,
            waiting: standings.waiting,
        }
    }
}

/// The work that an abort ends: that of the prompt which it names, or that of all prompts which
/// agents had read when it came. If the turn of a worker is aborted, the agent that gave it a task is
/// told, and begins another turn, which belongs to the work as well.
#[derive(Debug)]
pub struct AbortedWork {
    /// The prompts whose work ends, or `None` if the abort names a prompt, whose rows are read alone.
    prompts: Option<HashSet<InputId>>,
    /// The turns that read a prompt whose work does not end.
    spared: HashSet<(AgentId, u32)>,
}

impl AbortedWork {
    /// Returns the work that an abort ends, from the rows at the moment when it came.
    pub fn of(rows: &WorkRows) -> Self {
        let read = rows.rest.iter().filter(|input| input.turn.is_some());
        Self {
            prompts: rows
                .root
                .is_none()
                .then(|| read.map(|input| input.id.clone()).collect()),
            spared: HashSet::new(),
        }
    }

    /// Returns the agents whose running turns belong to the work, or `None` if the work is over.
    pub fn running(&mut self, rows: &WorkRows) -> Option<BTreeSet<AgentId>> {
        let mut ours = inputs_of(rows);
        ours.retain(|input| is_open(input));
        // Another turn may have read what a spared turn sent.
        while let Some(other) = ours.iter().position(|input| self.spares(input)) {
            let other = ours.swap_remove(other);
            let turn = other.turn.map(|turn| (other.agent.clone(), turn));
            self.spared.extend(turn);
        }
        if ours.is_empty() || rows.is_shut {
            return None;
        }
        let running = ours.into_iter().filter(|input| input.turn.is_some());
        Some(running.map(|input| input.agent.clone()).collect())
    }

    fn spares(&self, input: &WorkInput) -> bool {
        let Some(prompts) = &self.prompts else {
            return false;
        };
        let is_spared = |agent: &AgentId, turn: Option<u32>| {
            turn.is_some_and(|turn| self.spared.contains(&(agent.clone(), turn)))
        };
        is_spared(&input.agent, input.turn)
            || match &input.sender {
                Some(sender) => is_spared(sender, input.cause),
                None => !prompts.contains(&input.id),
            }
    }
}

fn is_open(input: &WorkInput) -> bool {
    input.outcome.is_none()
}

/// Returns the turn that an input belongs to. A turn that a rewind has hidden causes nothing any
/// more, and its number may be that of a later turn.
fn turn_of(input: &WorkInput) -> Option<TurnOfAgent<'_>> {
    let is_hidden = input.outcome == Some(InputOutcome::Rewound);
    Some((&input.agent, input.turn.filter(|_| !is_hidden)?))
}

/// Returns the inputs of the work: the root and what it caused, or all of them without a root.
fn inputs_of(rows: &WorkRows) -> Vec<&WorkInput> {
    match &rows.root {
        Some(root) if !rows.is_cut => caused_by(root, &rows.rest),
        // If not all inputs are known, any of them may belong to the work.
        root => root.iter().chain(&rows.rest).collect(),
    }
}

/// Returns the root and all inputs that it caused, directly or not.
fn caused_by<'a>(root: &'a WorkInput, rest: &'a [WorkInput]) -> Vec<&'a WorkInput> {
    let mut sent: HashMap<TurnOfAgent<'_>, Vec<&WorkInput>> = HashMap::new();
    for input in rest.iter().filter(|input| input.is_later) {
        if let (Some(sender), Some(turn)) = (&input.sender, input.cause) {
            sent.entry((sender, turn)).or_default().push(input);
        }
    }
    let (mut found, mut next) = (vec![root], 0);
    while let Some(input) = found.get(next) {
        next += 1;
        // The inputs that a turn sent are found once, with the first of its own that is found.
        if let Some(caused) = turn_of(input).and_then(|turn| sent.remove(&turn)) {
            found.extend(caused);
        }
    }
    found
}

/// What an agent does, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Works,
    /// It continues when it gets an answer from outside or from an agent that it asked.
    Waits,
    /// It continues when the agents that it asked do.
    Asks,
}

impl Standing {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Works, _) | (_, Self::Works) => Self::Works,
            (Self::Waits, _) | (_, Self::Waits) => Self::Waits,
            (Self::Asks, Self::Asks) => Self::Asks,
        }
    }
}

/// What the agents do that have open inputs.
struct Standings<'a> {
    readers: HashMap<&'a AgentId, InputReader>,
    /// The agents that an agent has asked, and for whose answers it waits.
    asked: HashMap<&'a AgentId, Vec<&'a AgentId>>,
    /// The standings that are known, and `Asks` for those that are being looked for.
    known: HashMap<&'a AgentId, Standing>,
    /// The agents with open waits among those that were looked for.
    waiting: HashSet<AgentId>,
}

impl<'a> Standings<'a> {
    fn of(inputs: impl Iterator<Item = &'a WorkInput>) -> Self {
        let (mut readers, mut asked) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for input in inputs {
            if let Some(reader) = input.reader {
                readers.insert(&input.agent, reader);
            }
            if let Some(sender) = input.sender.as_ref().filter(|_| input.waiting) {
                asked.entry(sender).or_default().push(&input.agent);
            }
        }
        Self {
            readers,
            asked,
            known: HashMap::new(),
            waiting: HashSet::new(),
        }
    }

    fn of_agent(&mut self, agent: &'a AgentId) -> Standing {
        if let Some(known) = self.known.get(agent) {
            return *known;
        }
        let Some(reader) = self.readers.get(agent).copied() else {
            return Standing::Works;
        };
        let asked = self.asked.remove(agent).unwrap_or_default();
        self.known.insert(agent, Standing::Asks);
        let mut found = own_standing(reader, asked.len());
        if reader.open_waits > 0 {
            self.waiting.insert(agent.clone());
        }
        for other in asked {
            found = found.or(self.of_agent(other));
        }
        self.known.insert(agent, found);
        found
    }
}

/// Returns what an agent does that waits for the answers of `asked` agents, if these stand still.
fn own_standing(reader: InputReader, asked: usize) -> Standing {
    let only_asks = reader.calls > 0 && usize::try_from(reader.calls) == Ok(asked);
    let stands_still = match reader.state {
        AgentState::Waiting => reader.open_waits > 0,
        AgentState::ExecutingTools => only_asks,
        AgentState::Idle | AgentState::Streaming | AgentState::Compacting | AgentState::Stopped => {
            false
        }
    };
    match (stands_still && reader.answers == 0, reader.open_waits) {
        (false, _) => Standing::Works,
        (true, 0) => Standing::Asks,
        (true, _) => Standing::Waits,
    }
}

#[cfg(test)]
mod tests;
