//! Chooses the node for an agent, and asks that node to host it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, future, stream};
use planck_common::{
    AgentId, NodeId,
    command::{HostAgent, Hosted, NodeInfo, NodeState},
    reply::{Code, Refusal},
    spec::{AgentSpec, LOCAL},
};
use serde_json::Map;
use tokio::time::timeout;

use super::Placement;
use planck_cluster::placement::{self, NoPlace, NodeNeeds};
use planck_store::{AgentRecord, NewAgent, SessionRecord};

/// The maximum number of nodes that are asked before a spawn fails.
pub(crate) const TRIES: usize = 4;

/// How long the nodes may take to tell their load for the list of nodes.
const LISTING: Duration = Duration::from_secs(1);

/// The maximum number of nodes that are asked for their load at once.
const ASKED_AT_ONCE: usize = 64;

/// The chosen node of each agent of a new session.
pub(crate) type AgentNodes = BTreeMap<AgentId, NodeId>;

/// Returns whether the reason for a refusal applies only to the node that refused, so that another
/// node may accept.
pub(crate) fn is_of_that_node(refusal: &Refusal) -> bool {
    refusal.retryable || refusal.code == Code::Limit
}

/// Returns what an agent with this spec requires of a node. If its model has its own address, the
/// node needs no key for the provider.
pub fn wanted(workspace: &str, spec: &AgentSpec) -> NodeNeeds {
    NodeNeeds {
        workspace: workspace.to_owned(),
        provider: spec
            .model
            .base_url
            .is_none()
            .then(|| spec.model.provider.clone()),
        labels: spec.labels.clone(),
        only: None,
    }
}

fn random(below: usize) -> usize {
    fastrand::usize(..below)
}

impl Placement {
    /// Draws two random nodes that meet the requirements, and returns the less loaded one. Asks
    /// those of the two whose load is not known, and writes the answers to `candidates`. If only one
    /// of them answers, returns that one. If none of those that were drawn answers, returns one of
    /// them, which then decides itself whether it has room.
    pub async fn choose(
        &self,
        candidates: &mut [NodeInfo],
        wanted: &NodeNeeds,
    ) -> Result<NodeId, NoPlace> {
        let mut silent = None;
        for _ in 0..TRIES {
            let drawn = match placement::draw(candidates, wanted, random) {
                Ok((first, Some(second))) => [first.id.clone(), second.id.clone()],
                Ok((only, None)) => return Ok(only.id.clone()),
                Err(why) => return silent.ok_or(why),
            };
            let mut unknown = self.handles.view.of_unknown_load();
            unknown.retain(|node| drawn.contains(node));
            let answers = unknown.iter().map(|node| self.load_of(node));
            let answers = future::join_all(answers).await;
            for (node, answer) in unknown.into_iter().zip(answers) {
                let asked = candidates.iter_mut().find(|one| one.id == node);
                match (asked, answer) {
                    (Some(asked), Some(info)) => *asked = info,
                    (Some(asked), None) => {
                        asked.state = NodeState::Suspended;
                        silent.get_or_insert(node);
                    }
                    (None, _) => {}
                }
            }
            let pair: Vec<NodeInfo> = candidates
                .iter()
                .filter(|one| drawn.contains(&one.id))
                .cloned()
                .collect();
            if let Ok(chosen) = placement::choose(&pair, wanted, random) {
                return Ok(chosen.id.clone());
            }
        }
        silent.ok_or(NoPlace::Full)
    }

    /// Asks a node for its load, and returns its entry in the list of nodes.
    async fn load_of(&self, node: &NodeId) -> Option<NodeInfo> {
        match self.handles.peers.info(node).await {
            Ok(info) => {
                self.handles.view.answered(&info);
                Some(info)
            }
            Err(refusal) => {
                tracing::debug!(%node, %refusal, "the node does not tell its load");
                None
            }
        }
    }

    /// Returns the entries of all nodes in the list of nodes. Asks those that this node does not
    /// watch for their load, for at most `LISTING` together. A node that does not answer has the
    /// load that it told last.
    pub async fn all_nodes(&self) -> Vec<NodeInfo> {
        let unknown = self.handles.view.of_unknown_load();
        let asked = stream::iter(&unknown)
            .for_each_concurrent(ASKED_AT_ONCE, async |node| drop(self.load_of(node).await));
        if timeout(LISTING, asked).await.is_err() {
            tracing::debug!("not all nodes told their load in time");
        }
        let mut nodes = vec![self.local.info()];
        nodes.extend(self.handles.view.other_nodes());
        nodes
    }

    /// Starts an agent on a suitable node. If that node does not answer, or refuses for a reason
    /// that applies only to it, tries others. No agent is created twice, because the agent's row in
    /// SQL shows whether a node that did not answer created it.
    pub async fn place(
        self: &Arc<Self>,
        wanted: &NodeNeeds,
        request: HostAgent,
    ) -> Result<Hosted, Refusal> {
        let mut candidates = self.candidates();
        let mut refused = None;
        for _ in 0..TRIES {
            let chosen = match self.choose(&mut candidates, wanted).await {
                Ok(chosen) => chosen,
                // Every suitable node is full. Nodes that refused before had room according to
                // outdated heartbeats.
                Err(NoPlace::Full) => {
                    refused = Some(NoPlace::Full.into());
                    break;
                }
                Err(why) => {
                    refused.get_or_insert_with(|| why.into());
                    break;
                }
            };
            match self.host_on(&chosen, &request).await {
                Ok(hosted) => return Ok(hosted),
                Err(refusal) if is_of_that_node(&refusal) => {
                    tracing::debug!(node = %chosen, agent = %request.agent_id, %refusal, "the node does not take the agent; trying another one");
                    refused = Some(refusal);
                }
                Err(refusal) => return Err(refusal),
            }
            if let Some(hosted) = self.recorded(&request.agent_id).await? {
                return Ok(hosted);
            }
            candidates.retain(|candidate| candidate.id != chosen);
        }
        match self.recorded(&request.agent_id).await? {
            Some(hosted) => Ok(hosted),
            None => Err(refused.unwrap_or_else(|| NoPlace::Full.into())),
        }
    }

    /// Asks a node, possibly this one, to host an agent.
    pub async fn host_on(
        self: &Arc<Self>,
        node: &NodeId,
        request: &HostAgent,
    ) -> Result<Hosted, Refusal> {
        if node == self.handles.view.id() {
            return Box::pin(self.host_agent(request.clone())).await;
        }
        self.handles.view.placed(node);
        self.handles.peers.host(node, request).await
    }

    /// Asks another node to claim and start an existing agent. Returns whether that node accepted.
    pub async fn hand_over(self: &Arc<Self>, node: &NodeId, request: &HostAgent) -> bool {
        match self.host_on(node, request).await {
            Ok(_) => true,
            Err(refusal) => {
                tracing::debug!(%node, agent = %request.agent_id, %refusal, "the member stays here");
                false
            }
        }
    }

    /// Returns a suitable node for an agent, possibly this one, or `None` if no node is suitable.
    pub async fn node_for(&self, workspace: &str, spec: &AgentSpec) -> Option<NodeId> {
        let mut candidates = self.candidates();
        let wanted = wanted(workspace, spec);
        self.choose(&mut candidates, &wanted).await.ok()
    }

    /// Returns a suitable node other than this one, or `None` if there is none.
    pub async fn other_node_for(&self, workspace: &str, spec: &AgentSpec) -> Option<NodeId> {
        let mut others = self.handles.view.other_candidates();
        let wanted = wanted(workspace, spec);
        self.choose(&mut others, &wanted).await.ok()
    }

    /// Chooses the nodes of a new session's agents. The orchestrator, which is the first agent, is
    /// always assigned to this node.
    pub async fn assign(
        &self,
        workspace: &str,
        agents: &[NewAgent],
    ) -> Result<AgentNodes, Refusal> {
        let mut nodes = AgentNodes::new();
        let mut candidates = self.candidates();
        for agent in agents {
            let node = if nodes.is_empty() || self.handles.view.is_alone() {
                self.handles.view.id().clone()
            } else {
                let wanted = wanted(workspace, &agent.spec);
                self.choose(&mut candidates, &wanted).await?
            };
            for chosen in candidates.iter_mut().filter(|one| one.id == node) {
                chosen.agents += 1;
            }
            nodes.insert(agent.id.clone(), node);
        }
        Ok(nodes)
    }

    /// Returns whether this node meets an agent's requirements and has room.
    pub fn fits_here(&self, wanted: &NodeNeeds) -> bool {
        placement::choose(&[self.local.candidate()], wanted, |_| 0).is_ok()
    }

    /// Returns a more suitable node for a session's orchestrator, or `None` if this node is
    /// suitable or no other one is.
    pub async fn better_node(&self, session: &SessionRecord) -> Result<Option<NodeId>, Refusal> {
        let lead = self.handles.lookup.lead(session).await?;
        let workspace = &session.spec.workspace;
        if self.fits_here(&wanted(workspace, &lead.spec)) {
            return Ok(None);
        }
        Ok(self.other_node_for(workspace, &lead.spec).await)
    }

    /// Returns the node that must perform an operation reserved for the session's host, or `None`
    /// if it is this node. The session's host is the live node that hosts the orchestrator. Without
    /// such a node, it is this node, unless the orchestrator fits another node and not this one.
    /// In a cluster, fails if the workspace does not exist here and no other node that has it takes
    /// another agent.
    pub async fn session_host(&self, session: &SessionRecord) -> Result<Option<NodeId>, Refusal> {
        if let Some(owner) = &session.owner {
            if owner == self.handles.view.id() {
                return Ok(None);
            }
            if self.handles.view.is_alive(owner).await {
                return Ok(Some(owner.clone()));
            }
        }
        if self.handles.view.is_alone() {
            return Ok(None);
        }
        if self.sees(session) {
            return self.better_node(session).await;
        }
        let wanted = NodeNeeds {
            workspace: session.spec.workspace.clone(),
            provider: None,
            labels: Map::new(),
            only: None,
        };
        let mut others = self.handles.view.other_candidates();
        Ok(Some(self.choose(&mut others, &wanted).await?))
    }

    /// Returns the node that hosts an agent according to its record, or `None` if that is this
    /// node, the agent runs here in spite of its record, or it has no host.
    pub fn other_host<'a>(&self, agent: &'a AgentRecord) -> Option<&'a NodeId> {
        agent
            .node
            .as_ref()
            .filter(|node| *node != self.handles.view.id() && !self.handles.host.has(&agent.id))
    }

    /// Returns whether the session's workspace exists on this node.
    pub fn sees(&self, session: &SessionRecord) -> bool {
        self.handles.lookup.context(session, 0).is_ok()
    }

    /// Returns the workspace of a request that names neither a workspace nor a path, if the nodes of
    /// the cluster have one name between them.
    pub fn only_workspace(&self) -> Option<String> {
        let candidates = self.candidates();
        only_name(candidates.iter().flat_map(|node| &node.workspaces))
    }

    /// Returns whether a living node has the session's workspace.
    pub fn has_workspace(&self, session: &SessionRecord) -> bool {
        let workspace = &session.spec.workspace;
        let others = self.handles.view.other_candidates();
        self.sees(session)
            || others
                .iter()
                .any(|node| node.workspaces.contains(workspace))
    }

    fn candidates(&self) -> Vec<NodeInfo> {
        let mut candidates = self.handles.view.other_candidates();
        candidates.push(self.local.candidate());
        candidates
    }

    /// Returns where an agent runs according to its row in SQL, or `None` if it has no row.
    async fn recorded(&self, agent: &AgentId) -> Result<Option<Hosted>, Refusal> {
        let record = self.handles.store.find_agent(agent).await?;
        Ok(record.map(|record| Hosted {
            node_id: record
                .node
                .unwrap_or_else(|| self.handles.view.id().clone()),
            epoch: record.epoch,
            name: record.spec.name,
            has_task: false,
        }))
    }
}

/// Returns the only name of some workspaces, or `None` if there are several or none. The workspaces
/// of paths do not count.
pub(super) fn only_name<'a>(workspaces: impl Iterator<Item = &'a String>) -> Option<String> {
    let named: BTreeSet<&String> = workspaces.filter(|name| !name.starts_with(LOCAL)).collect();
    let mut named = named.into_iter();
    named.next().filter(|_| named.next().is_none()).cloned()
}
