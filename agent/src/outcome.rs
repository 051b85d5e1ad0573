//! The outcome of a tool call.

use std::borrow::Cow;

use planck_common::{
    InputId,
    event::Event,
    sidecar::ToolQuestion,
    similar::{did_you_mean, similar},
    wait::ProtectedChange,
};

use crate::search::TOOL_SEARCH;

/// The reason for stopping a call if its agent was aborted without a reason.
pub const ABORTED: &str = "aborted by request";

/// The result of a call that did not run because of changes of protected files.
const NOT_RUN: &str =
    "not run: protected files were changed, and a person has not decided yet whether that is kept";

/// The result of a call whose question no person gets.
const NOT_ASKED: &str = "the tool asked a question, which no person was asked; the call may or may not have taken effect";

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEnd {
    Done,
    Failed,
    /// The call was cancelled before it was done. The agent adds the reason to the result, because
    /// the tool does not get it.
    Stopped,
    /// The call did not run, because changes of protected files are not decided yet. It runs when a
    /// person keeps them.
    NotRun,
}

/// The result of a tool call.
#[derive(Debug, Clone)]
pub struct ToolOutcome {
    pub end: CallEnd,
    /// The output for the model. For a stopped call this is the output so far, which may be empty.
    pub text: String,
    /// Durable events of the agent, saved together with the call's end.
    pub events: Vec<Event>,
    /// The task to which this call sent the response.
    pub responded: Option<InputId>,
    /// The changes about which a person has to decide before the agent continues.
    pub changes: Vec<ProtectedChange>,
    /// The question that a person has to answer before the call goes on.
    pub question: Option<Box<ToolQuestion>>,
}

impl ToolOutcome {
    pub fn ok(text: impl Into<String>) -> Self {
        Self::new(CallEnd::Done, text)
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::new(CallEnd::Failed, text)
    }

    pub fn stopped(text: impl Into<String>) -> Self {
        Self::new(CallEnd::Stopped, text)
    }

    fn new(end: CallEnd, text: impl Into<String>) -> Self {
        Self {
            end,
            text: text.into(),
            events: Vec::new(),
            responded: None,
            changes: Vec::new(),
            question: None,
        }
    }

    /// Returns the outcome of a call that runs again when a person has answered a question.
    pub fn asks(question: ToolQuestion) -> Self {
        Self {
            question: Some(Box::new(question)),
            ..Self::error(NOT_ASKED)
        }
    }

    /// Returns the outcome of a call that did not run because of these changes.
    pub fn not_run(changes: Vec<ProtectedChange>) -> Self {
        Self {
            changes,
            ..Self::new(CallEnd::NotRun, NOT_RUN)
        }
    }

    /// Returns whether the model sees the call as failed.
    pub fn is_error(&self) -> bool {
        match self.end {
            CallEnd::Done => false,
            CallEnd::Failed | CallEnd::Stopped | CallEnd::NotRun => true,
        }
    }

    /// Returns the text that the model reads. The text of a stopped call begins with `why_stopped`.
    pub fn text_for_model(&self, why_stopped: &str) -> Cow<'_, str> {
        match self.end {
            CallEnd::Done | CallEnd::Failed | CallEnd::NotRun => Cow::Borrowed(&self.text),
            CallEnd::Stopped if self.text.is_empty() => Cow::Owned(why_stopped.into()),
            CallEnd::Stopped => Cow::Owned(format!("{why_stopped}\n{}", self.text)),
        }
    }
}

// The result of a call of a tool that the agent does not have. It helps the model to choose another
// one.

/// The maximum number of tools that a result lists. If there are more, it lists the similar ones.
const MOST_LISTED: usize = 40;

/// The maximum number of similar tools that a result lists.
const MOST_SIMILAR: usize = 5;

/// Returns the result of a call of the tool `name` by an agent that has the tools `there_are`.
pub fn no_such_tool(name: &str, there_are: &[&str]) -> String {
    let list = match there_are.len() {
        0 => "you have no tools".to_owned(),
        1..=MOST_LISTED => format!("your tools are: {}", there_are.join(", ")),
        count => some_of(name, there_are, count),
    };
    let searching = match there_are.contains(&TOOL_SEARCH) {
        true => "; find a tool by its purpose with `tool_search`",
        false => "",
    };
    match did_you_mean(name, there_are.iter().copied()) {
        Some(question) => format!("there is no tool `{name}`; {question} {list}{searching}"),
        None => format!("there is no tool `{name}`; {list}{searching}"),
    }
}

fn some_of(name: &str, there_are: &[&str], count: usize) -> String {
    let mut similar = similar(name, there_are.iter().copied());
    similar.truncate(MOST_SIMILAR);
    match similar.is_empty() {
        true => format!("you have {count} tools, none with a similar name"),
        false => format!(
            "of your {count} tools, the most similar are: {}",
            similar.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_tools_only_the_similar_ones_are_listed() {
        let names: Vec<String> = (0..200).map(|at| format!("zone_{at}_list")).collect();
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.push(TOOL_SEARCH);
        let told = no_such_tool("zone_7_lits", &names);
        let begin = "there is no tool `zone_7_lits`; did you mean `zone_7_list`? of your 201 tools, the most similar are: zone_7_list, ";
        assert!(told.starts_with(begin), "{told}");
        assert!(told.ends_with("; find a tool by its purpose with `tool_search`"));
        assert_eq!(told.matches("zone_").count(), 2 + MOST_SIMILAR, "{told}");
        let told = no_such_tool("create_issue", &names);
        let end = "you have 201 tools, none with a similar name; find a tool by its purpose with `tool_search`";
        assert_eq!(told, format!("there is no tool `create_issue`; {end}"));
    }
}
