//! The commands `planck nodes …`.

use std::time::Duration;

use clap::Subcommand;
use planck_common::command::{Drain, NodeInfo, NodeState};

use super::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::{Exit, NotFound, UsageError},
    output::{Output, say, warn},
    render::style::{counted, duration},
};
use planck_client::Client;
use planck_node::config::Period;

/// How long `planck nodes ls` without `--all` still lists a node that left or died. The node's
/// record is kept for a day.
const LATELY: Duration = Duration::from_secs(600);

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  planck nodes ls
  planck nodes ls --all                      # with those that left or died today
  planck nodes drain worker-2 --timeout 5m")]
pub enum Nodes {
    /// List the nodes of the cluster
    #[command(after_help = "Examples:\n  planck nodes ls\n  planck nodes ls --all")]
    Ls {
        /// Also those that left or died more than ten minutes ago
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show a node
    #[command(after_help = "Examples:\n  planck nodes show worker-2")]
    Show {
        /// Its id or its name
        node: String,
        #[command(flatten)]
        output: Output,
    },
    /// Let a node hand over its agents and leave
    #[command(
        after_help = "Examples:\n  planck nodes drain worker-2 --timeout 5m --reason \"a new kernel\""
    )]
    Drain {
        /// Its id or its name
        node: String,
        /// How long running turns may take
        #[arg(long, value_name = "TIME")]
        timeout: Option<Period>,
        /// Why, for the node's log and the decisions of the cluster
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

impl Nodes {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let config = match self {
            Self::Ls { .. } | Self::Show { .. } => global.config()?,
            Self::Drain { .. } => global.config_to_act(None)?,
        };
        if config.nats.url.is_none() {
            return Err(UsageError("there is no cluster without NATS; set NATS_URL".into()).into());
        }
        let link = ConnectedClient::open(&config).await?;
        let done = self.ask(&link.client).await;
        link.close().await;
        done
    }

    async fn ask(self, client: &Client) -> anyhow::Result<Exit> {
        match self {
            Self::Ls { all, output } => {
                let mut nodes = client.nodes().await?.nodes;
                nodes.retain(|node| all || is_current(node));
                output.list(
                    &nodes,
                    &[
                        "name",
                        "state",
                        "agents",
                        "running",
                        "version",
                        "workspaces",
                        "id",
                    ],
                    nodes.iter().map(row).collect(),
                )?;
            }
            Self::Show { node, output } => {
                show(&named(client.nodes().await?.nodes, &node)?, output)?
            }
            Self::Drain {
                node,
                timeout,
                reason,
            } => {
                let nodes = client.nodes().await?.nodes;
                let node = named(nodes.clone(), &node)?;
                warn_of_last(&nodes, &node);
                let timeout_ms =
                    timeout.map(|timeout| u64::try_from(timeout.0.as_millis()).unwrap_or(u64::MAX));
                let drain = Drain { timeout_ms, reason };
                let draining = client.drain(&node.id, &drain).await?;
                say(&format!(
                    "{} is {} with {}\n",
                    node.name,
                    state(draining.state),
                    counted(draining.agents as usize, "agent")
                ))?;
            }
        }
        Ok(Exit::Done)
    }
}

/// Warns if no other node can take over the sessions of a node.
fn warn_of_last(nodes: &[NodeInfo], node: &NodeInfo) {
    let takes_over = |other: &NodeInfo| other.id != node.id && other.state == NodeState::Alive;
    if !nodes.iter().any(takes_over) {
        warn("planck: no other node is in service, so the work stops until one is");
    }
}

/// Returns whether a node is in the cluster or left it recently.
fn is_current(node: &NodeInfo) -> bool {
    !is_gone(node) || u128::from(node.silent_ms) < LATELY.as_millis()
}

fn is_gone(node: &NodeInfo) -> bool {
    matches!(node.state, NodeState::Left | NodeState::Dead)
}

fn state(state: NodeState) -> &'static str {
    match state {
        NodeState::Alive => "alive",
        NodeState::Suspended => "suspended",
        NodeState::Suspect => "suspect",
        NodeState::Draining => "draining",
        NodeState::Left => "left",
        NodeState::Dead => "dead",
    }
}

fn row(node: &NodeInfo) -> Vec<String> {
    vec![
        node.name.clone(),
        state(node.state).into(),
        format!("{}/{}", node.agents, node.capacity),
        node.running.to_string(),
        node.version.clone(),
        node.workspaces.join(" "),
        node.id.to_string(),
    ]
}

/// Finds a node by its id or name. Several records can have the same name, because a restarted node
/// is a new one. A node that is still in the cluster is preferred, and otherwise the one with the
/// latest heartbeat. Fails if no record matches, or if several nodes in the cluster match.
fn named(nodes: Vec<NodeInfo>, name: &str) -> anyhow::Result<NodeInfo> {
    let (gone, there): (Vec<_>, Vec<_>) = nodes
        .into_iter()
        .filter(|node| *node.id == *name || node.name == name)
        .partition(is_gone);
    if there.len() > 1 {
        return Err(UsageError(format!(
            "several nodes are called {name}; name one by its id"
        ))
        .into());
    }
    let last = gone.into_iter().min_by_key(|node| node.silent_ms);
    there
        .into_iter()
        .next()
        .or(last)
        .ok_or_else(|| NotFound(format!("no node {name}; `planck nodes ls` lists them")).into())
}

fn show(node: &NodeInfo, output: Output) -> anyhow::Result<()> {
    let labels = node
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
    output.pairs(
        node,
        &[
            ("name", node.name.clone()),
            ("id", node.id.to_string()),
            ("state", state(node.state).into()),
            ("last heard", format!("{} ago", duration(node.silent_ms))),
            (
                "agents",
                format!(
                    "{} of {}, {} at work",
                    node.agents, node.capacity, node.running
                ),
            ),
            ("workspaces", node.workspaces.join(" ")),
            ("providers", node.providers.join(" ")),
            ("labels", labels.collect::<Vec<_>>().join(" ")),
            ("version", node.version.clone()),
            ("started", node.started_at.to_string()),
        ],
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(id: &str, state: &str, silent_ms: u64) -> NodeInfo {
        let node = json!({
            "id": id, "name": "worker", "state": state, "version": "0.1.0", "labels": {}, "capacity": 1, "agents": 0, "running": 0,
            "workspaces": [], "providers": [], "started_at": "2026-11-23T08:00:00.000Z", "silent_ms": silent_ms
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_name_means_the_node_that_is_present() {
        let (old, older) = (node("old", "left", 9_000), node("older", "dead", 90_000));
        let (now, other) = (node("now", "alive", 100), node("other", "draining", 200));
        let found = |nodes: &[&NodeInfo], name| {
            named(nodes.iter().copied().cloned().collect(), name)
                .map(|node| node.id.to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(found(&[&older, &old, &now], "worker").unwrap(), "now");
        assert_eq!(found(&[&older, &old], "worker").unwrap(), "old");
        assert_eq!(found(&[&older, &old, &now], "older").unwrap(), "older");
        let several = found(&[&old, &now, &other], "worker").unwrap_err();
        assert!(
            several.contains("several nodes are called worker"),
            "{several}"
        );
        let none = found(&[&old, &now], "nobody").unwrap_err();
        assert!(none.contains("no node nobody"), "{none}");
    }
}
