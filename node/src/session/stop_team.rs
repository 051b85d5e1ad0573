//! Ends what this node hosts of a team that ended elsewhere.

use futures_util::future;
use planck_common::{
    AgentId,
    command::{StopTeam, StoppedTeam},
    registry::TeamEnd,
    reply::Refusal,
};

use super::close::AT_ONCE;
use crate::{agent::Command, node::Node};

impl Node {
    /// Answers how many they were when all are gone, with their model calls and processes.
    pub(crate) async fn stop_team(&self, order: StopTeam) -> Result<StoppedTeam, Refusal> {
        let members = self.hosted_of(&order);
        match order.reason {
            TeamEnd::NodeDead => {
                // Their leases stay in this node's name until somebody claims them: if nobody does,
                // this node.
                self.host().may_miss_agents();
                self.host().drop_agents(&members).await;
            }
            TeamEnd::Stopped | TeamEnd::Closed => self.end_here(&members, &order).await,
        }
        Ok(StoppedTeam {
            agents: u32::try_from(members.len()).unwrap_or(u32::MAX),
        })
    }

    fn hosted_of(&self, order: &StopTeam) -> Vec<AgentId> {
        let hosted = self
            .host()
            .agents(None)
            .into_iter()
            .filter_map(|agent| self.host().hosting(&agent));
        let is_meant = |session: &crate::actor::parts::Facts| {
            session.team == order.team_id && session.incarnation <= order.incarnation
        };
        hosted
            .filter(|hosting| is_meant(&hosting.session))
            .map(|hosting| hosting.agent)
            .collect()
    }

    async fn end_here(&self, members: &[AgentId], order: &StopTeam) {
        let reason = order.said.clone().unwrap_or_else(|| match order.reason {
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
                self.host().command(agent, stop)
            });
            future::join_all(stops).await;
        }
    }
}
