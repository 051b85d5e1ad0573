//! How agents of this node reach others: in this process, or by a word to the node that hosts them.

use std::sync::{Arc, Weak};

use planck_common::{AgentId, InputId, SessionId};

use super::Node;
use crate::actor::{
    Hosting,
    parts::{Identity, Links},
};

pub(super) struct NodeLinks(Weak<Node>);

impl NodeLinks {
    pub(super) fn new(node: Weak<Node>) -> Self {
        Self(node)
    }
}

impl Links for NodeLinks {
    fn settled(&self, identity: &Identity, inputs: Vec<(InputId, Option<AgentId>)>) {
        let Some(node) = self.0.upgrade() else { return };
        for (input, asker) in inputs {
            node.waiters().settle(&input);
            if let Some(asker) = asker.filter(|asker| !node.host().has(asker)) {
                let (session, tasks) = (identity.session.id.clone(), node.tasks().clone());
                let node = Arc::clone(&node);
                tasks.spawn(async move { node.tell_answered(&session, &asker, input).await });
            }
        }
    }

    fn wake(&self, identity: &Identity, agents: Vec<AgentId>) {
        let Some(node) = self.0.upgrade() else { return };
        let session = identity.session.id.clone();
        let tasks = node.tasks().clone();
        tasks.spawn(async move {
            for agent in agents {
                node.wake(&session, &agent).await;
            }
        });
    }

    fn arrived(&self, hosting: &Hosting) {
        if let Some(node) = self.0.upgrade() {
            node.agent_is_here(hosting);
        }
    }

    fn gave_up(&self, session: &SessionId) {
        if let Some(node) = self.0.upgrade() {
            node.chores().look_for_exits(session);
        }
    }

    fn departed(&self, hosting: &Hosting) {
        if let Some(node) = self.0.upgrade() {
            node.agent_is_gone(hosting);
        }
    }
}
