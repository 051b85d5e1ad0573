//! The tools of one agent, sorted by name.

use std::{fmt, sync::Arc};

use planck_agent::{ArgumentCheck, model::ToolSpec, outcome::no_such_tool, search::TOOL_SEARCH};
use planck_common::{event::ToolEffect, wait::WaitKind};

use super::{
    Tool,
    catalogue::{BadTool, ToolEntry},
    outside,
    tool_search::ToolSearch,
};

/// An immutable set of tools that is cheap to clone. When the tools of an agent change, the agent
/// gets a new toolbox.
#[derive(Clone)]
pub struct Toolbox {
    entries: Arc<[Arc<ToolEntry>]>,
    specs: Arc<[ToolSpec]>,
}

impl Default for Toolbox {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl ArgumentCheck for Toolbox {
    fn refusal(&self, tool: &str, args: &str) -> Option<String> {
        let entry = self.find(tool)?;
        let refusal = entry.schema.quick_refusal(tool, args);
        refusal.or_else(|| match entry.tool.spec().wait {
            Some(WaitKind::Question) => outside::refused_question(args),
            Some(
                WaitKind::Approval | WaitKind::ClientTool | WaitKind::Budget | WaitKind::Change,
            )
            | None => None,
        })
    }
}

impl Toolbox {
    /// Builds a toolbox. If two tools have the same name, the first one is used.
    pub(super) fn of(mut entries: Vec<Arc<ToolEntry>>) -> Self {
        entries.sort_by(|one, other| one.name().cmp(other.name()));
        entries.dedup_by(|later, earlier| later.name() == earlier.name());
        let specs = entries
            .iter()
            .map(|entry| entry.tool.spec().clone())
            .collect();
        Self {
            entries: entries.into(),
            specs,
        }
    }

    /// Returns a toolbox with additional tools, which only this agent has. They replace tools of
    /// the same name.
    pub fn with(&self, tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Result<Self, BadTool> {
        let mut entries = tools
            .into_iter()
            .map(ToolEntry::new)
            .collect::<Result<Vec<_>, _>>()?;
        entries.extend(self.entries.iter().cloned());
        Ok(Self::of(entries))
    }

    /// Adds the tool that finds the searched tools of this toolbox, if there are any and the toolbox
    /// has more than `listed` tools.
    pub(super) fn with_search(self, listed: usize) -> Self {
        let is_searched =
            |entry: &&Arc<ToolEntry>| entry.tool.spec().is_searched && entry.name() != TOOL_SEARCH;
        let searched: Arc<[_]> = self.entries.iter().filter(is_searched).cloned().collect();
        if self.entries.len() <= listed || searched.is_empty() {
            return self;
        }
        let search: Arc<dyn Tool> = Arc::new(ToolSearch::new(searched));
        self.with([search]).unwrap_or_else(|error| {
            tracing::error!(%error, "an agent lists all its tools");
            self
        })
    }

    /// Returns the specifications of the tools, which the model receives.
    pub fn specs(&self) -> Arc<[ToolSpec]> {
        self.specs.clone()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name())
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Returns the declared effect of a tool, which tells whether it may be run again. Returns
    /// `None` if the toolbox does not have the tool.
    pub fn effect(&self, name: &str) -> Option<ToolEffect> {
        self.specs
            .iter()
            .find(|spec| spec.name == name)
            .map(|spec| spec.effect)
    }

    pub(super) fn find(&self, name: &str) -> Option<&Arc<ToolEntry>> {
        let at = self
            .entries
            .binary_search_by(|entry| entry.name().cmp(name))
            .ok()?;
        self.entries.get(at)
    }

    /// Returns the error message for a model that called a tool it does not have.
    pub(super) fn no_such_tool(&self, name: &str) -> String {
        no_such_tool(name, &self.names().collect::<Vec<_>>())
    }
}
