//! The state that an agent starts with: its identity, its settings, and its history from the store.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::value::RawValue;

use planck_common::{
    AgentId, InputId, Seq, SessionId,
    envelope::EventPlace,
    event::EventKind,
    message::Sender,
    spec::{AgentSpec, SessionLimits},
    usage::Usage,
};

pub use super::guard::LoopLimits;
use super::{
    NewInput, StoredInput,
    effect::{Change, Mark},
    phase::TurnEnding,
};
use crate::{
    compact,
    model::{ModelCard, ToolSpec},
    search::{self, NamedTools},
};

/// The identity, the specification and the settings with which an agent starts.
#[derive(Debug, Clone)]
pub struct Setup {
    pub session: SessionId,
    pub agent: AgentId,
    /// The epoch of the lease under which the agent writes.
    pub epoch: i64,
    pub spec: AgentSpec,
    pub card: ModelCard,
    pub tools: Arc<[ToolSpec]>,
    pub arguments: Arc<dyn ArgumentCheck>,
    /// The limits of the session, shared by all its agents.
    pub limits: SessionLimits,
    pub settings: Settings,
    /// The session's working directory, in which permission rules read paths.
    pub dir: Arc<str>,
}

/// Checks the arguments of calls that wait against the schemas of the tools. An implementation has
/// compiled the schemas, and does nothing else than this check. It leaves out what would take long,
/// because the runner checks the arguments of every call that runs.
pub trait ArgumentCheck: fmt::Debug + Send + Sync {
    /// Returns the result of a call whose arguments do not fit, or `None` if they fit or there is
    /// no such tool.
    fn refusal(&self, tool: &str, args: &str) -> Option<String>;
}

/// The check of tools that take any arguments.
impl ArgumentCheck for () {
    fn refusal(&self, _: &str, _: &str) -> Option<String> {
        None
    }
}

/// The settings of the loop.
#[derive(Debug, Clone)]
pub struct Settings {
    pub loop_guard: LoopLimits,
    pub compaction: compact::Rules,
    /// The maximum number of requests in a turn of an agent whose specification sets none.
    pub max_requests_per_turn: u32,
    /// How long a wait is open before it is denied. `None` means without end.
    pub wait_expires: Option<Duration>,
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
            wait_expires: Some(Duration::from_secs(24 * 3_600)),
        }
    }
}

/// A row of the log, as an agent reads it when it is restored.
#[derive(Debug, Clone)]
pub struct LogRow {
    pub seq: Seq,
    pub kind: EventKind,
    pub place: EventPlace,
    pub body: String,
}

/// The stored state from which an agent continues.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The rows of the agent, in order: all after the last one that a checkpoint covers, or those
    /// from the start of the open turn if that is earlier.
    pub rows: Vec<LogRow>,
    /// Inputs without an outcome, in order of acceptance.
    pub inputs: Vec<StoredInput>,
    /// Tasks to which the agent has responded.
    pub responded: Vec<InputId>,
    /// The tokens and the cost that the agent has used.
    pub totals: Usage,
    /// The tokens and the cost that the agent's whole session has used.
    pub session: Usage,
    pub open_turn: OpenTurn,
}

impl Memory {
    /// Returns the state of a new agent, with the task, if there is one, in its inbox. The agent
    /// gets the session's usage with the reply to its first save.
    pub fn of_new_agent(task: Option<NewInput>) -> Self {
        Self {
            rows: Vec::new(),
            // The loop does not read `head`, and this function does not know the log's head.
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

/// The way in which a loaded agent treats a turn that its rows leave open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OpenTurn {
    /// The turn continues where it was.
    #[default]
    Resume,
    /// The turn ends as `aborted`, because its session is being closed or was rewound.
    Close,
    /// The turn ends with `node_lost`: its node died, and the agent does not continue. It opens no
    /// other turn before it is stopped, so its unread inputs wait until the agent is loaded again.
    Lost,
    /// The turn ends with `not_storable`: the store refused the data that the turn had to save.
    Refused(Unstorable),
}

/// A save that the store refused because of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstorable {
    pub why: Arc<str>,
    /// Inputs that the save consumed without ending them. One of them may hold the data that cannot
    /// be stored.
    pub inputs: Vec<InputId>,
}

impl Unstorable {
    /// Creates the description of a refused save. `marks` are the changes to inputs that the save
    /// contained.
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

    pub(super) fn ending(&self) -> TurnEnding {
        let reason = format!("what this turn had to save cannot be stored: {}", self.why);
        TurnEnding::Failed {
            for_agents: reason.clone(),
            reason,
            code: "not_storable",
            retryable: false,
        }
    }
}

/// The parts of a request that do not depend on the history: the specification with the system
/// prompt, the model and the tools.
#[derive(Debug)]
pub(super) struct AgentConfig {
    pub spec: AgentSpec,
    pub card: ModelCard,
    /// The tools that a request lists, sorted by name.
    pub tools: Arc<[ToolSpec]>,
    own_tools: Arc<[ToolSpec]>,
    /// Whether requests list the searched tools of the agent only after they were found.
    searches: bool,
    /// The tool that takes the answer of the open turn.
    output: Option<ToolSpec>,
    pub arguments: Arc<dyn ArgumentCheck>,
    /// The session's working directory.
    pub dir: Arc<str>,
}

impl AgentConfig {
    pub(super) fn new(
        spec: AgentSpec,
        card: ModelCard,
        (tools, arguments): (Arc<[ToolSpec]>, Arc<dyn ArgumentCheck>),
        dir: Arc<str>,
    ) -> Self {
        let mut config = Self {
            spec,
            card,
            tools: Arc::default(),
            own_tools: Arc::default(),
            searches: false,
            output: None,
            arguments: Arc::clone(&arguments),
            dir,
        };
        config.set_tools(tools, arguments);
        config.list_tools(&NamedTools::default());
        config
    }

    /// Sets the tools of the agent. [`Self::list_tools`] has to follow.
    pub(super) fn set_tools(
        &mut self,
        mut tools: Arc<[ToolSpec]>,
        arguments: Arc<dyn ArgumentCheck>,
    ) {
        if !tools.is_sorted_by(|a, b| a.name <= b.name) {
            Arc::make_mut(&mut tools).sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.searches = tools.iter().any(search::is_search);
        self.own_tools = tools;
        self.arguments = arguments;
    }

    /// Sets the tool that takes the answer of the open turn. [`Self::list_tools`] has to follow.
    pub(super) fn set_output(&mut self, output: Option<ToolSpec>) {
        self.output = output;
    }

    /// Returns the schema of the open turn's answer, if `name` is the tool that takes it.
    pub(super) fn output_schema(&self, name: &str) -> Option<&Arc<RawValue>> {
        let output = self.output.as_ref().filter(|output| output.name == name);
        output.map(|output| &output.parameters)
    }

    /// Lists the tools of the agent and `output` for the next request, without the searched tools
    /// that the context does not name. A tool of the agent with the name of `output` is left out.
    /// Returns whether that changes the list.
    pub(super) fn list_tools(&mut self, named: &NamedTools) -> bool {
        let output = self.output.as_ref();
        let is_listed = |tool: &&ToolSpec| {
            let is_hidden = self.searches && tool.is_searched && !named.contains(&tool.name);
            !is_hidden && output.is_none_or(|output| output.name != tool.name)
        };
        let mut listed: Vec<&ToolSpec> = self.own_tools.iter().filter(is_listed).collect();
        if let Some(output) = output {
            let at = listed.partition_point(|tool| tool.name < output.name);
            listed.insert(at, output);
        }
        if listed.iter().copied().eq(self.tools.iter()) {
            return false;
        }
        self.tools = match output.is_none() && listed.len() == self.own_tools.len() {
            true => Arc::clone(&self.own_tools),
            false => listed.into_iter().cloned().collect(),
        };
        true
    }

    /// Returns the tool of the agent with this name, listed or not, or `output`.
    pub(super) fn tool(&self, name: &str) -> Option<&ToolSpec> {
        let output = self.output.as_ref().filter(|output| output.name == name);
        output.or_else(|| {
            let at = self
                .own_tools
                .binary_search_by(|tool| tool.name.as_str().cmp(name))
                .ok()?;
            self.own_tools.get(at)
        })
    }

    /// Returns whether a call of this tool only finds tools that the agent has.
    pub(super) fn is_search(&self, name: &str) -> bool {
        self.searches && name == search::TOOL_SEARCH
    }

    /// Returns the names of the agent's tools, listed or not, and of `output`.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let tools = self.own_tools.iter().chain(&self.output);
        tools.map(|tool| tool.name.as_str())
    }

    /// Returns the estimated number of tokens in the system prompt and the listed tools.
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
