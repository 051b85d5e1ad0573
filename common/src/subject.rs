//! Builds and parses every subject. The tidy test refuses the text of a subject in a module of the
//! runtime. Registry keys are in [`crate::registry`].

use std::fmt;

use crate::{AgentId, NodeId, SessionId, SidecarId};

/// The prefix of every subject of a cluster. It separates several clusters in one account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prefix(String);

/// The error for a text that is not a prefix.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed subject prefix `{0}`: expected words of A-Z a-z 0-9 _ - joined by dots")]
pub struct MalformedPrefix(String);

impl Prefix {
    /// Parses a prefix such as `a.b`. The empty text means no prefix.
    pub fn parse(text: &str) -> Result<Self, MalformedPrefix> {
        match text {
            "" => Ok(Self::default()),
            _ if text.split('.').all(crate::id::is_id) => Ok(Self(format!("{text}."))),
            _ => Err(MalformedPrefix(text.into())),
        }
    }

    /// Returns the prefix without its last dot, or an empty text if there is no prefix.
    pub fn as_str(&self) -> &str {
        self.0.trim_end_matches('.')
    }

    /// Returns a subject with the prefix.
    pub fn on(&self, subject: impl fmt::Display) -> String {
        format!("{}{subject}", self.0)
    }

    /// Removes the prefix from a subject. Returns `None` if the subject does not have it.
    pub fn off<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject.strip_prefix(&self.0)
    }

    /// Returns the name of the registry's KV bucket.
    pub fn registry(&self) -> String {
        match self.as_str() {
            "" => "planck_registry".into(),
            words => format!("{}_planck_registry", words.replace('.', "_")),
        }
    }
}

/// The name of the micro service of which every node is an instance.
pub const NODE_SERVICE: &str = "planck-node";

/// The queue group of the commands that any node answers.
pub const NODE_QUEUE: &str = "planck";

/// The verb that lists nodes, teams, models or sidecars.
pub const LIST: &str = "list";

/// A subject of published messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topic<'a> {
    Agent(&'a AgentId),
    Session(&'a SessionId),
    AllSessions,
    Node(&'a NodeId),
    Cluster(&'a str),
    Sidecar(&'a SidecarId),
    AllSidecars,
    Cancel(&'a SidecarId),
}

impl fmt::Display for Topic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(id) => write!(f, "agent.{id}"),
            Self::Session(id) => write!(f, "session.{id}"),
            Self::AllSessions => f.write_str("session.*"),
            Self::Node(id) => write!(f, "node.{id}"),
            Self::Cluster(kind) => write!(f, "cluster.{kind}"),
            Self::Sidecar(id) => write!(f, "sidecar.{id}"),
            Self::AllSidecars => f.write_str("sidecar.*"),
            Self::Cancel(id) => write!(f, "cancel.{id}"),
        }
    }
}

/// Returns the subject of a sidecar's tool.
pub fn tool(sidecar: &SidecarId, tool: &str) -> String {
    format!("tool.{sidecar}.{tool}")
}

/// Returns the subject of a sidecar's compactor.
pub fn compactor(sidecar: &SidecarId, compactor: &str) -> String {
    format!("compact.{sidecar}.{compactor}")
}

/// Returns the name of a sidecar's tool or compactor from its subject without prefix. Returns
/// `None` if the subject is another one or the name is not an id. `of` is the function [`tool`] or
/// [`compactor`].
pub fn offered<'a>(
    subject: &'a str,
    of: fn(&SidecarId, &str) -> String,
    sidecar: &SidecarId,
) -> Option<&'a str> {
    subject
        .strip_prefix(&of(sidecar, ""))
        .filter(|name| crate::id::is_id(name))
}

/// Returns the subject on which the micro services with a name describe themselves, or all micro
/// services if `name` is `None`. The subject never has the cluster's prefix.
pub fn services(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("$SRV.INFO.{name}"),
        None => "$SRV.INFO".into(),
    }
}

/// Returns the subject on which the micro services with a name report their statistics.
pub fn stats(name: &str) -> String {
    format!("$SRV.STATS.{name}")
}

/// Returns the subjects of the discovery requests that an instance of a micro service answers:
/// requests to all services, to the services with its name, and to the instance.
pub fn discovery(name: &str, instance: &str) -> [String; 3] {
    [
        "$SRV.*".into(),
        format!("$SRV.*.{name}"),
        format!("$SRV.*.{name}.{instance}"),
    ]
}

/// The address of a command, such as `cmd.agent.<agent>.<verb>`. The target of a received command
/// is plain text until it is parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub target: Target,
    pub verb: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Agent(String),
    /// The id or name of a session.
    Session(String),
    Node(String),
    Sessions,
    Nodes,
    Teams,
    Models,
    Sidecars,
}

impl Address {
    pub fn new(target: Target, verb: impl Into<String>) -> Self {
        Self {
            target,
            verb: verb.into(),
        }
    }

    pub fn agent(agent: &str, verb: &str) -> Self {
        Self::new(Target::Agent(agent.into()), verb)
    }

    pub fn session(session: &str, verb: &str) -> Self {
        Self::new(Target::Session(session.into()), verb)
    }

    pub fn node(node: &str, verb: &str) -> Self {
        Self::new(Target::Node(node.into()), verb)
    }

    /// Parses a subject without prefix. Returns `None` if the subject is not that of a command.
    pub fn parse(subject: &str) -> Option<Self> {
        let words: Vec<&str> = subject.split('.').collect();
        let (target, verb) = match words.as_slice() {
            ["cmd", "agent", id, verb] => (Target::Agent((*id).into()), verb),
            ["cmd", "session", id, verb] => (Target::Session((*id).into()), verb),
            ["cmd", "node", id, verb] => (Target::Node((*id).into()), verb),
            ["cmd", "sessions", verb] => (Target::Sessions, verb),
            ["cmd", "nodes", verb] => (Target::Nodes, verb),
            ["cmd", "teams", verb] => (Target::Teams, verb),
            ["cmd", "models", verb] => (Target::Models, verb),
            ["cmd", "sidecars", verb] => (Target::Sidecars, verb),
            _ => return None,
        };
        Some(Self::new(target, *verb))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, verb } = self;
        match target {
            Target::Agent(id) => write!(f, "cmd.agent.{id}.{verb}"),
            Target::Session(id) => write!(f, "cmd.session.{id}.{verb}"),
            Target::Node(id) => write!(f, "cmd.node.{id}.{verb}"),
            Target::Sessions => write!(f, "cmd.sessions.{verb}"),
            Target::Nodes => write!(f, "cmd.nodes.{verb}"),
            Target::Teams => write!(f, "cmd.teams.{verb}"),
            Target::Models => write!(f, "cmd.models.{verb}"),
            Target::Sidecars => write!(f, "cmd.sidecars.{verb}"),
        }
    }
}

/// The name and the subject pattern of each endpoint that a node serves in the queue group.
pub const SHARED_ENDPOINTS: &[(&str, &str)] = &[
    ("agent", "cmd.agent.*.*"),
    ("session", "cmd.session.*.*"),
    ("sessions", "cmd.sessions.*"),
    ("nodes", "cmd.nodes.*"),
    ("teams", "cmd.teams.*"),
    ("models", "cmd.models.*"),
    ("sidecars", "cmd.sidecars.*"),
];

/// Returns the subject pattern of the commands for one node.
pub fn own_endpoint(node: &NodeId) -> String {
    format!("cmd.node.{node}.*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for subject in [
            "cmd.agent.a1.prompt",
            "cmd.session.bold-oak.events",
            "cmd.node.n1.host",
            "cmd.sessions.start",
            "cmd.nodes.list",
            "cmd.teams.list",
            "cmd.models.list",
            "cmd.sidecars.list",
        ] {
            assert_eq!(Address::parse(subject).unwrap().to_string(), subject);
        }
        for foreign in [
            "agent.a1",
            "cmd",
            "cmd.agent.a1",
            "cmd.agent.a.b.c",
            "cmd.other.list",
        ] {
            assert_eq!(Address::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn name_of_a_tool_is_parsed_from_its_subject() {
        let calculator = SidecarId::parse("calculator").unwrap();
        for (subject, found) in [
            ("tool.calculator.add", Some("add")),
            ("tool.calculator.add.two", None),
            ("tool.calculator.", None),
            ("tool.other.add", None),
            ("compact.calculator.add", None),
        ] {
            assert_eq!(offered(subject, tool, &calculator), found, "{subject}");
        }
        assert_eq!(
            offered("compact.calculator.short", compactor, &calculator),
            Some("short")
        );
    }

    #[test]
    fn prefix_comes_before_every_subject() {
        let prefix = Prefix::parse("eu.test").unwrap();
        assert_eq!(prefix.on("agent.a"), "eu.test.agent.a");
        assert_eq!(prefix.off("eu.test.agent.a"), Some("agent.a"));
        assert_eq!(prefix.off("agent.a"), None);
        assert_eq!(prefix.registry(), "eu_test_planck_registry");
        assert_eq!(Prefix::default().registry(), "planck_registry");
        assert!(Prefix::parse("a..b").is_err());
        assert!(Prefix::parse("a.*").is_err());
    }
}
