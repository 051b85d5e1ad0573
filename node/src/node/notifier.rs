//! Passes notifications from the agents on this node to the services.

use std::sync::Arc;

use planck_common::{AgentId, InputId, SessionId};

use super::Node;
use crate::{
    actor::{
        Hosting,
        context::{ActorIdentity, PeerNotifier},
    },
    late::Late,
};

pub(super) struct NodeNotifier(Late<Node>);

impl NodeNotifier {
    pub(super) fn new(node: Late<Node>) -> Self {
        Self(node)
    }
}

impl PeerNotifier for NodeNotifier {
    fn settled(&self, identity: &ActorIdentity, inputs: Vec<(InputId, Option<AgentId>)>) {
        let Some(node) = self.0.get() else { return };
        node.services.sessions.some_work_ended(&identity.session.id);
        for (input, asker) in inputs {
            node.services.sessions.waiters().settle(&input);
            if let Some(asker) = asker.filter(|asker| !node.services.host.has(asker)) {
                let (session, sessions) = (
                    identity.session.id.clone(),
                    Arc::clone(&node.services.sessions),
                );
                node.tasks
                    .spawn(async move { sessions.tell_answered(&session, &asker, input).await });
            }
        }
    }

    fn wake(&self, identity: &ActorIdentity, agents: Vec<AgentId>) {
        let Some(node) = self.0.get() else { return };
        let (session, sessions) = (
            identity.session.id.clone(),
            Arc::clone(&node.services.sessions),
        );
        node.tasks.spawn(async move {
            for agent in agents {
                sessions.wake(&session, &agent).await;
            }
        });
    }

    fn arrived(&self, hosting: &Hosting) {
        if let Some(node) = self.0.get() {
            node.services.teams.agent_arrived(hosting);
        }
    }

    fn gave_up(&self, session: &SessionId) {
        if let Some(node) = self.0.get() {
            node.services.takeover.look_for_exits(session);
        }
    }

    fn departed(&self, hosting: &Hosting) {
        if let Some(node) = self.0.get() {
            node.services.teams.agent_departed(hosting);
        }
    }
}
