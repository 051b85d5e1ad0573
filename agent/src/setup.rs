//! What an agent is made of: who it is, how it is set, and what it remembers from the store.

use std::sync::Arc;

use planck_common::{
    AgentId, InputId, SessionId,
    message::Sender,
    spec::{AgentSpec, SessionLimits},
    usage::Usage,
};

use super::{
    NewInput, StoredInput,
    effect::{Change, Mark},
    turn::Ending,
};
use crate::{
    compact,
    log::LogRow,
    model::{ModelCard, ToolSpec},
};

/// Everything an agent is started with.
#[derive(Debug, Clone)]
pub struct Setup {
    pub session: SessionId,
    pub agent: AgentId,
    /// Of the lease it writes under.
    pub epoch: i64,
    pub spec: AgentSpec,
    pub card: ModelCard,
    pub tools: Arc<[ToolSpec]>,
    /// Of the session, over all its agents.
    pub limits: SessionLimits,
    pub settings: Settings,
}

/// The numbers of the loop.
#[derive(Debug, Clone)]
pub struct Settings {
    pub loop_guard: LoopLimits,
    pub compaction: compact::Rules,
    /// For agents whose spec names none.
    pub max_requests_per_turn: u32,
}

/// When the same call over and over is remarked on, and when it is refused.
#[derive(Debug, Clone, Copy)]
pub struct LoopLimits {
    pub note_from: u32,
    pub refuse_from: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            loop_guard: LoopLimits {
                note_from: 3,
                refuse_from: 10,
            },
            compaction: compact::Rules::default(),
            max_requests_per_turn: 200,
        }
    }
}

/// What the store knows of an agent that goes on.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Its rows, in order: all after what the latest checkpoint covers, or from the open turn's
    /// start if that is earlier.
    pub rows: Vec<LogRow>,
    /// Inputs without an outcome, in order of acceptance.
    pub inputs: Vec<StoredInput>,
    /// Tasks it has responded to.
    pub responded: Vec<InputId>,
    /// What the agent consumed.
    pub totals: Usage,
    /// What its whole session consumed.
    pub session: Usage,
    pub open_turn: OpenTurn,
}

impl Memory {
    /// Of an agent that was just born, with the task in its inbox. What its session consumed it
    /// hears with its first save.
    pub fn of_newborn(task: Option<NewInput>) -> Self {
        Self {
            rows: Vec::new(),
            // The loop reads no `head`, and the log's is not known here.
            inputs: task
                .into_iter()
                .map(|task| StoredInput::unread(task, 0))
                .collect(),
            responded: Vec::new(),
            totals: Usage::default(),
            session: Usage::default(),
            open_turn: OpenTurn::Resume,
        }
    }
}

/// What is done with a turn that the rows leave open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OpenTurn {
    /// It goes on where it was.
    #[default]
    Resume,
    /// It ends as `aborted`: its session is being closed.
    Close,
    /// Its node died and nobody is to go on: it ends with `node_lost`.
    Lost,
    /// The store refused for its data what it had to save: it ends with `not_storable`.
    Refused(Unstorable),
}

/// A save that the store refused for its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstorable {
    pub why: Arc<str>,
    /// Inputs that the save consumed and did not end: one of them may hold what cannot be stored.
    pub inputs: Vec<InputId>,
}

impl Unstorable {
    /// Of a save with these marks.
    pub fn new(why: &str, marks: &[Mark]) -> Self {
        let ends = |id: &InputId| {
            marks
                .iter()
                .any(|mark| mark.input == *id && matches!(mark.change, Change::Ended { .. }))
        };
        let consumed = marks
            .iter()
            .filter(|mark| matches!(mark.change, Change::Consumed { .. }) && !ends(&mark.input));
        Self {
            why: why.into(),
            inputs: consumed.map(|mark| mark.input.clone()).collect(),
        }
    }

    pub(super) fn ending(&self) -> Ending {
        let reason = format!("what this turn had to save cannot be stored: {}", self.why);
        Ending::Failed {
            for_agents: reason.clone(),
            reason,
            code: "not_storable",
            retryable: false,
        }
    }
}

/// What stands before the messages of every request, and what the model can do.
#[derive(Debug)]
pub(super) struct Charter {
    pub spec: AgentSpec,
    pub card: ModelCard,
    /// Sorted by name.
    pub tools: Arc<[ToolSpec]>,
}

impl Charter {
    pub(super) fn new(spec: AgentSpec, card: ModelCard, tools: Arc<[ToolSpec]>) -> Self {
        let mut charter = Self {
            spec,
            card,
            tools: Arc::default(),
        };
        charter.set_tools(tools);
        charter
    }

    pub(super) fn set_tools(&mut self, mut tools: Arc<[ToolSpec]>) {
        if !tools.is_sorted_by(|a, b| a.name <= b.name) {
            Arc::make_mut(&mut tools).sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.tools = tools;
    }

    pub(super) fn tool(&self, name: &str) -> Option<&ToolSpec> {
        let at = self
            .tools
            .binary_search_by(|tool| tool.name.as_str().cmp(name))
            .ok()?;
        self.tools.get(at)
    }

    /// Estimated tokens of system prompt and tools.
    pub(super) fn tokens(&self) -> u64 {
        let tools = self
            .tools
            .iter()
            .map(|tool| tool.name.len() + tool.description.len() + tool.parameters.get().len());
        compact::tokens(self.spec.system_prompt.chars().count() + tools.sum::<usize>())
    }

    pub(super) fn sender(&self, id: &AgentId) -> Sender {
        Sender {
            id: id.clone(),
            name: self.spec.name.clone(),
        }
    }
}
