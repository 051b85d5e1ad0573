//! Places agents: on this node or a peer, whichever fits and has less to do.

use std::collections::BTreeMap;

use planck_common::{
    AgentId, NodeId,
    command::{HostAgent, Hosted},
    reply::{Code, Refusal},
    spec::AgentSpec,
};
use serde_json::Map;

use crate::{
    cluster::placement::{self, Candidate, NoPlace, Wanted},
    node::Node,
    store::{NewAgent, SessionRecord},
};

/// Nodes that are tried before a spawn is given up.
pub(super) const TRIES: usize = 4;

/// Where the agents of a new session go.
pub(super) type Homes = BTreeMap<AgentId, NodeId>;

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

/// Whether another node may say otherwise.
pub(super) fn is_of_that_node(refusal: &Refusal) -> bool {
    refusal.retryable || refusal.code == Code::Limit
}

/// What an agent of this spec needs. A model with an address of its own needs no key of its
/// provider.
pub(crate) fn wanted(workspace: &str, spec: &AgentSpec) -> Wanted {
    Wanted {
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

/// Of two random nodes that fit the less loaded.
pub(super) fn choose(candidates: &[Candidate], wanted: &Wanted) -> Result<NodeId, NoPlace> {
    let chosen = placement::choose(candidates, wanted, |below| fastrand::usize(..below))?;
    Ok(chosen.id.clone())
}

impl Node {
    /// This node as placement sees it.
    pub(super) fn as_candidate(&self) -> Candidate {
        let info = self.info();
        Candidate {
            id: info.id,
            labels: info.labels,
            workspaces: info.workspaces,
            providers: info.providers,
            capacity: info.capacity,
            agents: info.agents,
            takes: !self.host().is_closed(),
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = self.other_candidates();
        candidates.push(self.as_candidate());
        candidates
    }

    /// Starts an agent on a node that fits, trying others where that one refuses or is silent.
    /// Birth is idempotent by the agent's id, so of a silent node the row in SQL tells what it did.
    pub(crate) async fn place(
        &self,
        wanted: &Wanted,
        request: HostAgent,
    ) -> Result<Hosted, Refusal> {
        let mut candidates = self.candidates();
        let mut refused = None;
        for _ in 0..TRIES {
            let chosen = match choose(&candidates, wanted) {
                Ok(chosen) => chosen,
                // What was just refused may have been for room that was there by older figures.
                Err(NoPlace::Full) => {
                    refused = Some(NoPlace::Full.into());
                    break;
                }
                Err(why) => {
                    refused.get_or_insert_with(|| why.into());
                    break;
                }
            };
            match self.host_at(&chosen, &request).await {
                Ok(hosted) => return Ok(hosted),
                Err(refusal) if is_of_that_node(&refusal) => {
                    tracing::debug!(node = %chosen, agent = %request.agent_id, %refusal, "another node is tried");
                    refused = Some(refusal);
                }
                Err(refusal) => return Err(refusal),
            }
            if let Some(born) = self.born(&request.agent_id).await? {
                return Ok(born);
            }
            candidates.retain(|candidate| candidate.id != chosen);
        }
        match self.born(&request.agent_id).await? {
            Some(born) => Ok(born),
            None => Err(refused.unwrap_or_else(|| NoPlace::Full.into())),
        }
    }

    /// A peer that sees a workspace.
    pub(super) fn peer_for(&self, workspace: &str) -> Result<NodeId, Refusal> {
        let wanted = Wanted {
            workspace: workspace.to_owned(),
            provider: None,
            labels: Map::new(),
            only: None,
        };
        Ok(choose(&self.other_candidates(), &wanted)?)
    }

    pub(super) async fn host_at(
        &self,
        node: &NodeId,
        request: &HostAgent,
    ) -> Result<Hosted, Refusal> {
        if node == self.id() {
            return Box::pin(self.host_agent(request.clone())).await;
        }
        self.placed(node);
        self.peers().host(node, request).await
    }

    async fn born(&self, agent: &AgentId) -> Result<Option<Hosted>, Refusal> {
        let record = self.store().find_agent(agent).await?;
        Ok(record.map(|record| Hosted {
            node_id: record.node.unwrap_or_else(|| self.id().clone()),
            epoch: record.epoch,
            name: record.spec.name,
            has_task: false,
        }))
    }

    /// A peer that an agent could go on at.
    pub(super) fn peer_of(&self, workspace: &str, spec: &AgentSpec) -> Option<NodeId> {
        choose(&self.other_candidates(), &wanted(workspace, spec)).ok()
    }

    /// A peer that a session's lead fits, where it does not fit here.
    pub(super) async fn better_home(
        &self,
        session: &SessionRecord,
    ) -> Result<Option<NodeId>, Refusal> {
        let lead = self.find_lead(session).await?;
        let here = [self.as_candidate()];
        match placement::choose(&here, &wanted(&session.spec.workspace, &lead.spec), |_| 0) {
            Ok(_) => Ok(None),
            Err(_) => Ok(self.peer_of(&session.spec.workspace, &lead.spec)),
        }
    }

    /// Where a member goes whose node is gone; `None` where no node fits it.
    pub(super) fn home_of(&self, workspace: &str, spec: &AgentSpec) -> Option<NodeId> {
        choose(&self.candidates(), &wanted(workspace, spec)).ok()
    }

    /// Where each agent of a new session goes, its lead to this node.
    pub(super) fn homes(&self, workspace: &str, agents: &[NewAgent]) -> Result<Homes, Refusal> {
        let mut homes = Homes::new();
        let mut candidates = self.candidates();
        for agent in agents {
            let home = match homes.is_empty() || self.settings().alone {
                true => self.id().clone(),
                false => choose(&candidates, &wanted(workspace, &agent.spec))?,
            };
            for candidate in candidates
                .iter_mut()
                .filter(|candidate| candidate.id == home)
            {
                candidate.agents += 1;
            }
            homes.insert(agent.id.clone(), home);
        }
        Ok(homes)
    }

    /// Hands a member of a new session, whose lease this node has, to the node it is to be on;
    /// whether that took it.
    pub(super) async fn hand_over(&self, node: &NodeId, request: &HostAgent) -> bool {
        match self.host_at(node, request).await {
            Ok(_) => true,
            Err(refusal) => {
                tracing::debug!(%node, agent = %request.agent_id, %refusal, "the member stays here");
                false
            }
        }
    }
}
