//! The search of an agent that has too many tools to list them in each request. A searched tool is
//! listed while the context names it, so the list follows from the history: nothing else is stored,
//! and an agent that is restored or rewound lists the same tools.

use std::{borrow::Cow, collections::BTreeSet};

use planck_common::{
    CallId,
    message::{MessageBody, Part},
};
use serde::{Deserialize, Serialize};

use crate::{Agent, model::ToolSpec};

/// The tool with which a model finds the tools that its requests do not list.
pub const TOOL_SEARCH: &str = "tool_search";

/// A tool that a search found. As JSON it is one line of the search's result.
#[derive(Debug, Serialize, Deserialize)]
pub struct FoundTool<'a> {
    pub name: &'a str,
    #[serde(borrow)]
    pub description: Cow<'a, str>,
}

/// Returns whether a tool is the node's [`TOOL_SEARCH`], and not one of this name from elsewhere.
pub(super) fn is_search(tool: &ToolSpec) -> bool {
    tool.name == TOOL_SEARCH && !tool.is_searched && tool.wait.is_none()
}

/// The names of the tools that messages call, and of those that searches found.
#[derive(Debug, Default)]
pub(super) struct NamedTools(BTreeSet<String>);

impl NamedTools {
    /// Returns the tools that these messages name, which are in order.
    pub(super) fn of<'a>(messages: impl Iterator<Item = &'a MessageBody>) -> Self {
        let (mut named, mut before) = (Self::default(), None);
        for body in messages {
            named.read(body, before);
            before = Some(body);
        }
        named
    }

    /// Adds the tools that a message names. The message `before` has the calls if this one has
    /// results. Returns whether a name was added.
    pub(super) fn read(&mut self, body: &MessageBody, before: Option<&MessageBody>) -> bool {
        let known = self.0.len();
        for part in &body.content {
            match part {
                Part::ToolCall { name, .. } => self.add(name),
                Part::ToolResult {
                    call_id,
                    text,
                    error: false,
                    ..
                } if before.is_some_and(|before| searches(before, call_id)) => {
                    found(text).for_each(|name| self.add(name));
                }
                Part::ToolResult { .. }
                | Part::Text { .. }
                | Part::Thinking { .. }
                | Part::Image { .. }
                | Part::File { .. } => {}
            }
        }
        self.0.len() > known
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn add(&mut self, name: &str) {
        if !self.0.contains(name) {
            self.0.insert(name.to_owned());
        }
    }
}

/// Returns whether the call with this id, if the message has it, is a search.
fn searches(message: &MessageBody, call: &CallId) -> bool {
    message.content.iter().any(|part| {
        matches!(part, Part::ToolCall { call_id, name, .. } if call_id == call && name == TOOL_SEARCH)
    })
}

/// Returns the names in the result of a search. A line that a compaction cut, and a remark of the
/// loop guard, name no tool.
fn found(result: &str) -> impl Iterator<Item = &str> {
    let lines = result.lines();
    lines.filter_map(|line| Some(serde_json::from_str::<FoundTool<'_>>(line).ok()?.name))
}

impl Agent {
    /// Lists the tools for the next request. A list that changes also changes the part of the request
    /// that a provider has cached.
    pub(super) fn list_tools(&mut self) {
        if self.config.list_tools(self.transcript.named()) {
            self.transcript.change_fixed(self.config.tokens());
        }
    }
}
