//! An agent as a program describes it.

use planck_common::spec::Member;

/// An agent that a program starts: its prompt, its model and its tools.
///
/// What is not set here is set through [`Member`], the protocol's description of an agent:
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
    /// An agent of a type: a word that says what it is for, which is also its name.
    pub fn new(r#type: impl Into<String>) -> Self {
        Self {
            member: Member {
                r#type: r#type.into(),
                ..Member::default()
            },
        }
    }

    /// What the model is told before the conversation.
    #[must_use]
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.member.system_prompt = Some(prompt.into());
        self
    }

    /// The model as `PROVIDER:MODEL`, in place of the runtime's.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.member.model_id = Some(model.into());
        self
    }

    /// The names of the tools that the agent may use: the program's, a sidecar's, or those between
    /// agents such as `spawn_agent`. An agent has all of the runtime's own tools by default.
    #[must_use]
    pub fn tools<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.member.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// The protocol's description, with these tools if the agent names none.
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
