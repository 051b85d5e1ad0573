//! Stops the members of a team on any node before the team's next incarnation begins.

use std::{sync::Arc, time::Duration};

use planck_common::{NodeId, command::StopTeam, registry::TeamEnd};

use crate::{peers::Peers, team_registry::TeamRegistry};
use planck_cluster::{claiming::ClaimInput, view::ClusterView};
use planck_store::SessionRecord;

/// How long another node may take to stop its members of a team.
const STOPPING: Duration = Duration::from_millis(1_500);

/// The services that make a node, possibly this one, stop its members of a team.
pub(super) struct TeamStopper {
    pub view: Arc<ClusterView>,
    pub peers: Arc<Peers>,
    pub teams: Arc<TeamRegistry>,
}

impl TeamStopper {
    /// Makes a node stop its members of a team. Returns `None` if the node does not confirm this.
    /// The claim then delays tools, because those of the members may still be running.
    pub async fn stop_team(
        &self,
        session: &SessionRecord,
        node: NodeId,
        incarnation: i64,
    ) -> Option<ClaimInput> {
        let order = StopTeam {
            team_id: session.spec.team_id.clone(),
            incarnation,
            reason: TeamEnd::NodeDead,
            log_reason: None,
        };
        if node == *self.view.id() {
            self.teams.stop_here(&order).await;
        } else if let Err(refusal) = self.peers.stop_team(&node, &order, STOPPING).await {
            if self.view.is_alive(&node).await {
                tracing::warn!(session = %session.id, %node, %refusal, "a node does not confirm that it stopped the team's members; tools start later");
            }
            return None;
        }
        Some(ClaimInput::Stopped { node })
    }
}
