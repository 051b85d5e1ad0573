//! Describes the agents that a program starts in an embedded runtime.

use planck_common::spec::Member;

/// An agent to start, with its prompt, its model and its tools.
///
/// Other properties are set through [`Member`], the protocol's description of an agent:
///
/// ```
/// use planck_node::{Agent, protocol::spec::Member};
///
/// let agent = Agent::new("reviewer").system_prompt("You review pull requests.");
/// let colder = Agent::from(Member {
///     opts: [("temperature".to_owned(), 0.2.into())].into_iter().collect(),
///     ..Member::from(agent)
/// });
/// ```
#[derive(Debug, Clone)]
pub struct Agent {
    member: Member,
}

impl Agent {
    /// Creates an agent of a type. The type is a word for the agent's purpose, and is also the
    /// agent's name.
    pub fn new(r#type: impl Into<String>) -> Self {
        Self {
            member: Member {
                r#type: r#type.into(),
                ..Member::default()
            },
        }
    }

    /// Sets the system prompt, which precedes the conversation.
    #[must_use]
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.member.system_prompt = Some(prompt.into());
        self
    }

    /// Sets the model as `PROVIDER:MODEL`. By default an agent has the runtime's model.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.member.model_id = Some(model.into());
        self
    }

    /// Sets the names of the tools that the agent may use: tools of the program, tools for files,
    /// tools of sidecars, and tools between agents such as `spawn_agent`. By default an agent has
    /// all tools of the program and, if the program gave the runtime a
    /// [workspace](crate::RuntimeBuilder::workspace), the tools for files.
    #[must_use]
    pub fn tools<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.member.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Converts the agent to the protocol's description. `tools` are the tools of an agent that
    /// does not name any.
    pub(super) fn member(self, tools: &[String]) -> Member {
        let mut member = self.member;
        member.tools.get_or_insert_with(|| tools.to_vec());
        member
    }
}

impl From<Member> for Agent {
    fn from(member: Member) -> Self {
        Self { member }
    }
}

impl From<Agent> for Member {
    fn from(agent: Agent) -> Self {
        agent.member
    }
}
