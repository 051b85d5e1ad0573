//! Three nodes that have discovered each other, and a team that spans them.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use planck_common::{
    NodeId,
    command::{NodeState, Nodes, Started},
    subject::Target,
};
use planck_scripted_model::Script;
use planck_tests::{
    caller::list_of,
    eventually::within,
    node::Node,
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::scene::until_all_see;
use crate::teams::scene::{Scene, lead, member};

/// How long nodes may take to discover each other.
const ACQUAINTANCE: std::time::Duration = std::time::Duration::from_secs(60);

/// The values of the nodes' label `place`.
pub const PLACES: [&str; 3] = ["a", "b", "c"];

/// Returns a member that is placed on the node with that label.
pub fn placed(name: &str, place: &str, tools: &[&str]) -> Value {
    at(member(name, tools), place)
}

pub fn lead_at(place: &str, tools: &[&str]) -> Value {
    at(lead(tools), place)
}

pub fn at(mut member: Value, place: &str) -> Value {
    member["labels"] = json!({ "place": place });
    member
}

/// Returns the member with labels that allow node `b` or `c`.
pub fn far(mut member: Value) -> Value {
    member["labels"] = json!({ "side": "far" });
    member
}

pub async fn node_at(world: &World, place: &str, more: &[(&str, &str)]) -> Result<Node> {
    let side = if place == "a" { "near" } else { "far" };
    let own = [
        ("PLANCK_NODE_LABELS_PLACE", place),
        ("PLANCK_NODE_LABELS_SIDE", side),
        ("PLANCK_NODE_NAME", place),
    ];
    world.node_with(&[&own, more].concat()).await
}

/// Nodes `a`, `b` and `c` in a world, or only `a` and `b`.
pub struct ThreeNodes {
    pub world: World,
    pub nodes: Vec<Node>,
}

impl ThreeNodes {
    pub async fn start(backend: Backend, script: Script) -> Result<Self> {
        Self::start_with(backend, script, |_| Vec::new()).await
    }

    /// Starts the nodes with additional environment variables for the node of each place.
    pub async fn start_with(
        backend: Backend,
        script: Script,
        more: impl Fn(&str) -> Vec<(&'static str, String)>,
    ) -> Result<Self> {
        Self::start_in(World::start(backend, script).await?, &PLACES, more).await
    }

    /// Starts the nodes, except the one at `c`.
    pub async fn without_c(world: World) -> Result<Self> {
        Self::start_in(world, &PLACES[..2], |_| Vec::new()).await
    }

    /// Starts nodes `a`, `b` and `c` in an existing world.
    pub async fn start_there(world: World) -> Result<Self> {
        Self::start_in(world, &PLACES, |_| Vec::new()).await
    }

    async fn start_in(
        world: World,
        places: &[&str],
        more: impl Fn(&str) -> Vec<(&'static str, String)>,
    ) -> Result<Self> {
        let mut nodes = Vec::new();
        for place in places {
            let more = more(place);
            let more: Vec<(&str, &str)> = more
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            nodes.push(node_at(&world, place, &more).await?);
        }
        let field = Self { world, nodes };
        field.wait_until_all_known().await?;
        Ok(field)
    }

    /// Waits until each node has answered with a list of all nodes. The node that answers is the
    /// one that the list has as silent for 0 ms. A list with several such nodes is ignored.
    async fn wait_until_all_known(&self) -> Result<()> {
        let mut knowing: BTreeSet<NodeId> = BTreeSet::new();
        within(ACQUAINTANCE, "all nodes know each other", async || {
            let list: Nodes = self
                .world
                .caller
                .read(&list_of(Target::Nodes), &json!({}))
                .await
                .ok()?;
            let mut speaking = list.nodes.iter().filter(|node| node.silent_ms == 0);
            if let (Some(node), None) = (speaking.next(), speaking.next())
                && list
                    .nodes
                    .iter()
                    .filter(|node| node.state == NodeState::Alive)
                    .count()
                    == self.nodes.len()
            {
                knowing.insert(node.id.clone());
            }
            (knowing.len() == self.nodes.len()).then_some(())
        })
        .await
    }

    pub fn id(&self, place: &str) -> &NodeId {
        self.nodes[PLACES.iter().position(|known| *known == place).unwrap()].id()
    }

    /// Starts a team with a prompt. Its lead may be on any node that fits.
    pub async fn team(self, members: &[Value], prompt: &str) -> Result<Team> {
        let body = json!({ "dir": self.world.dir(), "members": members, "prompt": prompt });
        self.started(body).await
    }

    pub async fn started(self, body: Value) -> Result<Team> {
        let recorder = self.world.record().await?;
        let started: Started = self.world.caller.start(&body).await?;
        let Self { world, nodes } = self;
        Ok(Team {
            scene: Scene {
                world,
                node: None,
                recorder,
                started,
            },
            nodes,
        })
    }

    pub async fn end(self) -> Result<()> {
        leave(&self.world, self.nodes, &[]).await
    }
}

/// A running team on the nodes of a field.
pub struct Team {
    pub scene: Scene,
    pub nodes: Vec<Node>,
}

impl Team {
    pub fn node(&self, place: &str) -> &Node {
        &self.nodes[PLACES.iter().position(|known| *known == place).unwrap()]
    }

    /// Returns the place of the node that hosts an agent.
    pub async fn place_of(&self, name: &str) -> Result<&'static str> {
        let id = self.scene.id(name).await?;
        let node = self
            .scene
            .world
            .caller
            .agent(&id)
            .await?
            .node_id
            .context("nobody holds it")?;
        self.place(&node)
    }

    pub fn place(&self, node: &NodeId) -> Result<&'static str> {
        let at = self
            .nodes
            .iter()
            .position(|known| known.id() == node)
            .context("it is on no known node")?;
        Ok(PLACES[at])
    }

    /// Starts node `c`, and waits until all nodes see each other.
    pub async fn join_c(&mut self) -> Result<()> {
        self.nodes.push(node_at(&self.scene.world, "c", &[]).await?);
        until_all_see(&self.scene.world, &self.nodes.iter().collect::<Vec<_>>()).await
    }

    pub async fn end(self) -> Result<()> {
        self.end_despite(&[]).await
    }

    pub async fn end_despite(self, excused: &[&str]) -> Result<()> {
        leave(&self.scene.world, self.nodes, excused).await
    }
}

async fn leave(world: &World, nodes: Vec<Node>, excused: &[&str]) -> Result<()> {
    world.check_model()?;
    for node in nodes {
        node.leave_despite(excused).await?;
    }
    Ok(())
}
