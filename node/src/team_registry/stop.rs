//! Stops the members on this node of a team that ended.

use futures_util::future;
use planck_common::{
    AgentId,
    command::{StopTeam, StoppedTeam},
    registry::TeamEnd,
};

use super::{TeamRegistry, incarnation};
use crate::{actor::AT_ONCE, agent::Command};
use planck_cluster::cascade::TeamIncarnation;

impl TeamRegistry {
    /// Stops the agents on this node of a team's incarnation and of earlier ones. Returns how many
    /// agents there were, once none of their model calls and processes runs any more.
    pub async fn stop_here(&self, order: &StopTeam) -> StoppedTeam {
        let ended = TeamIncarnation {
            team: order.team_id.clone(),
            incarnation: order.incarnation,
        };
        let mut hosted = self.host.hostings();
        hosted.retain(|hosting| ended.ends_with_it(&incarnation(&hosting.session)));
        if order.reason == TeamEnd::NodeDead {
            // Nothing is written, so this node keeps their leases until another node claims them.
            // If none does, a sweep of this node finds them.
            for hosting in &hosted {
                self.host.may_miss_agents_of(&hosting.session.id);
            }
        }
        let members: Vec<AgentId> = hosted.into_iter().map(|hosting| hosting.agent).collect();
        match order.reason {
            TeamEnd::NodeDead => self.host.drop_agents(&members).await,
            TeamEnd::Stopped | TeamEnd::Closed => self.end(&members, order).await,
        }
        StoppedTeam {
            agents: u32::try_from(members.len()).unwrap_or(u32::MAX),
        }
    }

    async fn end(&self, members: &[AgentId], order: &StopTeam) {
        let reason = order
            .log_reason
            .clone()
            .unwrap_or_else(|| match order.reason {
                TeamEnd::NodeDead | TeamEnd::Stopped => "stopped".into(),
                TeamEnd::Closed => "closed".into(),
            });
        for some in members.chunks(AT_ONCE) {
            let stops = some.iter().map(|agent| {
                let stop = Command::Stop {
                    reason: reason.clone(),
                    for_good: false,
                    last: Vec::new(),
                };
                self.host.command(agent, stop)
            });
            future::join_all(stops).await;
        }
    }
}
