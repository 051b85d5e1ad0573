//! Passes notifications from the agents on this node to the services.

use std::sync::{Arc, Weak};

use planck_common::{AgentId, InputId, SessionId};

use crate::{
    actor::{
        Hosting,
        context::{ActorIdentity, PeerNotifier},
    },
    services::Services,
};

pub(super) struct NodeNotifier(pub(super) Weak<Services>);

impl PeerNotifier for NodeNotifier {
    fn settled(&self, identity: &ActorIdentity, inputs: Vec<(InputId, Option<AgentId>)>) {
        let Some(services) = self.0.upgrade() else {
            return;
        };
        services.sessions.some_work_ended(&identity.session.id);
        for (input, asker) in inputs {
            services.sessions.waiters().settle(&input);
            if let Some(asker) = asker.filter(|asker| !services.base.host.has(asker)) {
                let (session, sessions) =
                    (identity.session.id.clone(), Arc::clone(&services.sessions));
                services
                    .base
                    .tasks
                    .spawn(async move { sessions.tell_answered(&session, &asker, input).await });
            }
        }
    }

    fn wake(&self, identity: &ActorIdentity, agents: Vec<AgentId>) {
        let Some(services) = self.0.upgrade() else {
            return;
        };
        let (session, sessions) = (identity.session.id.clone(), Arc::clone(&services.sessions));
        services.base.tasks.spawn(async move {
            for agent in agents {
                sessions.wake(&session, &agent).await;
            }
        });
    }

    fn started(&self, hosting: &Hosting) {
        if let Some(services) = self.0.upgrade() {
            services.teams.agent_started(hosting);
        }
    }

    fn gave_up(&self, session: &SessionId) {
        if let Some(services) = self.0.upgrade() {
            services.takeover.look_for_exits(session);
        }
    }

    fn gone(&self, hosting: &Hosting) {
        if let Some(services) = self.0.upgrade() {
            services.teams.agent_gone(hosting);
        }
    }
}
