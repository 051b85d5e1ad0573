//! **Pure**: chooses the node that hosts an agent, which is the less loaded of two random suitable
//! nodes. The caller supplies the random numbers, and asks the two for their load if it is not known.

use planck_common::{
    NodeId,
    command::{NodeInfo, NodeState},
    reply::{Code, Refusal},
};
use serde_json::{Map, Value};

/// What an agent needs of its node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeNeeds {
    pub workspace: String,
    /// The provider whose key the node must have, or `None` if the model's address needs no key.
    pub provider: Option<String>,
    pub labels: Map<String, Value>,
    /// The only node that may host the agent, or `None` if any may.
    pub only: Option<NodeId>,
}

/// Why no node fits.
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

impl From<NoPlace> for Refusal {
    fn from(why: NoPlace) -> Self {
        let code = match &why {
            NoPlace::Workspace(_)
            | NoPlace::Provider { .. }
            | NoPlace::Labels(_)
            | NoPlace::Near(_) => Code::NotFound,
            NoPlace::Gone(_) | NoPlace::Away => Code::Unavailable,
            NoPlace::Full => Code::Limit,
        };
        Self::new(code, why.to_string())
    }
}

/// Returns whether `node` uses a smaller share of its capacity than `other`.
fn is_less_loaded(node: &NodeInfo, other: &NodeInfo) -> bool {
    let share = |one: &NodeInfo, of: &NodeInfo| u64::from(one.agents) * u64::from(of.capacity);
    share(node, other) < share(other, node)
}

fn has_labels(node: &NodeInfo, wanted: &Map<String, Value>) -> bool {
    wanted
        .iter()
        .all(|(name, value)| node.labels.get(name).is_some_and(|own| is_same(own, value)))
}

/// Returns whether a node accepts agents. A suspended or draining one does not.
fn accepts_agents(node: &NodeInfo) -> bool {
    matches!(node.state, NodeState::Alive | NodeState::Suspect)
}

/// Returns whether a node's label equals a label of a team file. The former is a text, and the
/// latter may also be a value such as `true` or `2`.
fn is_same(own: &Value, wanted: &Value) -> bool {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), Into::into);
    text(own) == text(wanted)
}

/// Chooses the node for an agent among those that neither left nor died. `random` returns a number below its argument.
pub fn choose<'a>(
    candidates: &'a [NodeInfo],
    wanted: &NodeNeeds,
    mut random: impl FnMut(usize) -> usize,
) -> Result<&'a NodeInfo, NoPlace> {
    match draw(candidates, wanted, &mut random)? {
        (first, Some(second)) if is_less_loaded(second, first) => Ok(second),
        (first, _) => Ok(first),
    }
}

/// Draws two of the nodes that fit, or one if no other fits.
pub fn draw<'a>(
    candidates: &'a [NodeInfo],
    wanted: &NodeNeeds,
    mut random: impl FnMut(usize) -> usize,
) -> Result<(&'a NodeInfo, Option<&'a NodeInfo>), NoPlace> {
    let fitting = fitting(candidates, wanted)?;
    let first = random(fitting.len());
    let second =
        (first + 1 + random(fitting.len().saturating_sub(1).max(1))) % fitting.len().max(1);
    let second = fitting.get(second).filter(|_| second != first).copied();
    let first = fitting.get(first).copied().ok_or(NoPlace::Full)?;
    Ok((first, second))
}

/// Returns the nodes that fit, or an error if there is none.
fn fitting<'a>(
    candidates: &'a [NodeInfo],
    wanted: &NodeNeeds,
) -> Result<Vec<&'a NodeInfo>, NoPlace> {
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

/// Returns the nodes that meet all needs, which are checked one after the other. The first need
/// that no remaining node meets is the error.
fn narrow<'a>(nodes: Vec<&'a NodeInfo>, wanted: &NodeNeeds) -> Result<Vec<&'a NodeInfo>, NoPlace> {
    let keep = |nodes: Vec<&'a NodeInfo>, fits: &dyn Fn(&NodeInfo) -> bool, why: NoPlace| {
        let left: Vec<&NodeInfo> = nodes.into_iter().filter(|node| fits(node)).collect();
        if left.is_empty() { Err(why) } else { Ok(left) }
    };
    let NodeNeeds {
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
        &|node| {
            let mut wanted = provider.iter();
            wanted.all(|provider| node.providers.contains(provider))
        },
        no_provider(),
    )?;
    let nodes = keep(
        nodes,
        &|node| has_labels(node, labels),
        NoPlace::Labels(Value::Object(labels.clone()).to_string()),
    )?;
    let nodes = keep(nodes, &accepts_agents, NoPlace::Away)?;
    keep(nodes, &|node| node.agents < node.capacity, NoPlace::Full)
}

#[cfg(test)]
mod tests;
