//! Where an agent is placed: of two random nodes that fit, the less loaded one. Pure: randomness is
//! an argument.

use planck_common::NodeId;
use serde_json::{Map, Value};

/// A node as placement sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub id: NodeId,
    pub labels: Map<String, Value>,
    pub workspaces: Vec<String>,
    pub providers: Vec<String>,
    pub capacity: u32,
    pub agents: u32,
    /// Whether it takes anybody in: it neither leaves nor has lost its link.
    pub takes: bool,
}

/// What an agent needs of its node.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub workspace: String,
    /// `None` where the model's address needs no key.
    pub provider: Option<String>,
    pub labels: Map<String, Value>,
    /// This node and no other.
    pub only: Option<NodeId>,
}

/// What no node has.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoPlace {
    #[error("node {0} is not there")]
    Gone(NodeId),
    #[error("no node has workspace `{0}`")]
    Workspace(String),
    #[error("no node with workspace `{workspace}` has provider `{provider}`")]
    Provider { provider: String, workspace: String },
    #[error("no node with labels {0}")]
    Labels(String),
    #[error("all nodes that fit are leaving or have lost NATS")]
    Away,
    #[error("all nodes that fit are full")]
    Full,
    #[error("the orchestrator's node cannot host it: {0}")]
    Near(Box<NoPlace>),
}

impl Candidate {
    /// What it is filled to, for comparison with another.
    fn is_less_loaded_than(&self, other: &Self) -> bool {
        let share = |one: &Self, of: &Self| u64::from(one.agents) * u64::from(of.capacity);
        share(self, other) < share(other, self)
    }

    fn has_labels(&self, wanted: &Map<String, Value>) -> bool {
        wanted
            .iter()
            .all(|(name, value)| self.labels.get(name).is_some_and(|own| is_same(own, value)))
    }

    fn has_provider(&self, wanted: Option<&String>) -> bool {
        wanted.is_none_or(|provider| self.providers.contains(provider))
    }
}

/// A node's labels are texts; a team file may say `true` or `2` for them.
fn is_same(own: &Value, wanted: &Value) -> bool {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
    text(own) == text(wanted)
}

/// The node for an agent. `random` gives a number below its argument.
pub fn choose<'a>(
    candidates: &'a [Candidate],
    wanted: &Wanted,
    mut random: impl FnMut(usize) -> usize,
) -> Result<&'a Candidate, NoPlace> {
    let fitting = fitting(candidates, wanted)?;
    let first = random(fitting.len());
    let second =
        (first + 1 + random(fitting.len().saturating_sub(1).max(1))) % fitting.len().max(1);
    match (fitting.get(first), fitting.get(second)) {
        (Some(first), Some(second)) if second.is_less_loaded_than(first) => Ok(second),
        (Some(first), _) => Ok(first),
        (None, _) => Err(NoPlace::Full),
    }
}

/// The nodes that fit, never none.
fn fitting<'a>(
    candidates: &'a [Candidate],
    wanted: &Wanted,
) -> Result<Vec<&'a Candidate>, NoPlace> {
    match &wanted.only {
        None => narrow(candidates.iter().collect(), wanted),
        Some(only) => {
            let there: Vec<_> = candidates.iter().filter(|node| node.id == *only).collect();
            if there.is_empty() {
                return Err(NoPlace::Near(Box::new(NoPlace::Gone(only.clone()))));
            }
            narrow(there, wanted).map_err(|why| NoPlace::Near(Box::new(why)))
        }
    }
}

/// Leaves out who does not fit, one need after the other: the first that nobody meets is why there
/// is no place.
fn narrow<'a>(nodes: Vec<&'a Candidate>, wanted: &Wanted) -> Result<Vec<&'a Candidate>, NoPlace> {
    let keep = |nodes: Vec<&'a Candidate>, fits: &dyn Fn(&Candidate) -> bool, why: NoPlace| {
        let left: Vec<&Candidate> = nodes.into_iter().filter(|node| fits(node)).collect();
        if left.is_empty() { Err(why) } else { Ok(left) }
    };
    let Wanted {
        workspace,
        provider,
        labels,
        ..
    } = wanted;
    let no_provider = || NoPlace::Provider {
        provider: provider.clone().unwrap_or_default(),
        workspace: workspace.clone(),
    };
    let nodes = keep(
        nodes,
        &|node| node.workspaces.contains(workspace),
        NoPlace::Workspace(workspace.clone()),
    )?;
    let nodes = keep(
        nodes,
        &|node| node.has_provider(provider.as_ref()),
        no_provider(),
    )?;
    let nodes = keep(
        nodes,
        &|node| node.has_labels(labels),
        NoPlace::Labels(Value::Object(labels.clone()).to_string()),
    )?;
    let nodes = keep(nodes, &|node| node.takes, NoPlace::Away)?;
    keep(nodes, &|node| node.agents < node.capacity, NoPlace::Full)
}

#[cfg(test)]
mod tests;
