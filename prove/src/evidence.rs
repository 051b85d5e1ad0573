//! The evidence that a proof gathers. The judge reads nothing else.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::Value;

/// The evidence of a whole run.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    pub sessions: Vec<SessionEvidence>,
    /// The prompts that a node has accepted.
    pub accepted: Vec<AcceptedPrompt>,
    /// The lines that tools have appended, one for each run.
    pub ledger: Vec<String>,
    pub faults: Vec<FaultEvidence>,
    /// The nodes that the cluster declared dead, by their ids.
    pub declared_dead: Vec<String>,
    pub waits: Vec<WaitEvidence>,
    /// The command lines of the tools that were left when the last prompt was answered, and of the processes
    /// that were left when every node had ended.
    pub left: Vec<String>,
    /// How many requests the model got.
    pub requests: u64,
    /// The requests that a provider would have refused.
    pub refused: Vec<String>,
    /// The longest time by which a timer of this process was late. The machine gave it no time, and so
    /// perhaps none to the nodes.
    pub stall: Duration,
}

/// The log of a session, and what a client printed that was attached from the beginning. A copy shares the
/// events.
#[derive(Debug, Clone)]
pub struct SessionEvidence {
    pub id: String,
    pub log: Arc<Vec<Value>>,
    /// The durable events in the order in which the client printed them, if one was attached.
    pub early: Option<Arc<Vec<Value>>>,
}

#[derive(Debug, Clone)]
pub struct AcceptedPrompt {
    pub session: String,
    pub id: String,
}

/// A fault that was inflicted, and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct FaultEvidence {
    pub kind: FaultKind,
    /// The node that the fault affected, if it affected one.
    pub node: Option<String>,
    /// The session whose node it was.
    pub session: Option<String>,
    /// How long the fault lasted, if it ended by itself.
    #[serde(serialize_with = "millis")]
    pub lasted: Option<Duration>,
    /// The time from the fault until the cluster declared the node dead.
    #[serde(serialize_with = "millis")]
    pub verdict: Option<Duration>,
    /// The time from the fault until another node went on with the session.
    #[serde(serialize_with = "millis")]
    pub went_on: Option<Duration>,
    /// How the process ended that was declared dead or asked to leave, or `None` if it did not end.
    pub exit: Option<i32>,
    /// The end of the team that had to end with the node.
    pub team: Option<TeamEvidence>,
}

impl FaultEvidence {
    /// Returns the evidence of a fault of which nothing has come yet.
    pub fn of(kind: FaultKind) -> Self {
        Self {
            kind,
            node: None,
            session: None,
            lasted: None,
            verdict: None,
            went_on: None,
            exit: None,
            team: None,
        }
    }
}

fn millis<S: serde::Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_millis()).serialize(to)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// SIGKILL to the node that hosts a session's orchestrator.
    Kill,
    /// SIGSTOP to that node, and SIGCONT after another node has gone on.
    Freeze,
    /// SIGSTOP to that node for less time than a suspicion takes. It must not be given up.
    Hiccup,
    /// The node's link to NATS is stalled until another node has gone on, as with a pulled cable.
    Cut,
    /// The node's connections to NATS are closed, and new ones too, as by a firewall, until another node
    /// has gone on.
    Sever,
    /// SIGTERM to that node, which hands its agents over.
    Drain,
    /// SIGKILL to the node of the orchestrator of a team that has to end with it.
    Team,
    /// NATS is away for all nodes.
    NatsAway,
    /// SIGKILL to NATS, which is started again at once.
    NatsKilled,
    /// NATS ends and comes back without its data.
    NatsWiped,
    /// SIGKILL to the one of several servers of NATS that leads the stream of the registry.
    LeaderKilled,
    /// The link of all nodes to Postgres is stalled.
    StoreAway,
    /// The connections of all nodes to Postgres are closed.
    StoreCut,
}

impl FaultKind {
    pub const ALL: [Self; 13] = [
        Self::Kill,
        Self::Freeze,
        Self::Hiccup,
        Self::Cut,
        Self::Sever,
        Self::Drain,
        Self::Team,
        Self::NatsAway,
        Self::NatsKilled,
        Self::NatsWiped,
        Self::LeaderKilled,
        Self::StoreAway,
        Self::StoreCut,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Hiccup => "hiccup",
            Self::Cut => "cut",
            Self::Sever => "sever",
            Self::Drain => "drain",
            Self::Team => "team",
            Self::NatsAway => "nats-away",
            Self::NatsKilled => "nats-killed",
            Self::NatsWiped => "nats-wiped",
            Self::LeaderKilled => "leader-killed",
            Self::StoreAway => "store-away",
            Self::StoreCut => "store-cut",
        }
    }

    /// Returns whether the fault is one of NATS for all nodes.
    pub const fn is_of_nats(self) -> bool {
        matches!(
            self,
            Self::NatsAway | Self::NatsKilled | Self::NatsWiped | Self::LeaderKilled
        )
    }

    /// Returns whether the cluster must declare the node of this fault dead.
    pub const fn is_death(self) -> bool {
        matches!(
            self,
            Self::Kill | Self::Freeze | Self::Cut | Self::Sever | Self::Team
        )
    }
}

/// A team that had to end with the node of its orchestrator.
#[derive(Debug, Clone, Serialize)]
pub struct TeamEvidence {
    /// The number of processes of its members before the node was killed.
    pub processes: usize,
    /// The number of model calls of its members before the node was killed.
    pub model_calls: usize,
    /// The time from the verdict until no process and no model call was left, or `None` if some were left.
    #[serde(serialize_with = "millis")]
    pub stopped: Option<Duration>,
    pub is_closed: bool,
}

/// A call that two people decided about at the same moment.
#[derive(Debug, Clone, Serialize)]
pub struct WaitEvidence {
    pub session: String,
    pub wait: String,
    /// The decisions that they were told. Who came too late may have been refused.
    pub told: Vec<String>,
    /// The line that the call appends to the ledger.
    pub mark: String,
}
