//! Sessions: started, prompted, claimed, resumed, rewound and closed. What any node does for a
//! client or a peer.

pub mod workspace;

mod place;
mod prompt;
mod start;

mod deliver;
mod elsewhere;

pub mod births;
mod claim;
pub mod door;
mod drain;
mod host;

mod close;
mod exits;
mod failover;
mod leave;
mod rewind;
mod stop_team;

pub mod chores;
mod sweep;

#[cfg(test)]
mod tests;

pub(crate) use claim::IfClosed;
pub(crate) use elsewhere::Hop;
pub(crate) use place::wanted;

use planck_common::{AgentId, SessionId, reply::Refusal};

use crate::{
    node::Node,
    store::{AgentRecord, SessionRecord, SessionStore},
};

impl Node {
    /// The session of that id or name.
    pub async fn find_session(&self, id_or_name: &str) -> Result<SessionRecord, Refusal> {
        found(&**self.store(), id_or_name).await
    }

    /// The agent of that id, stopped ones not among them.
    pub async fn find_agent(&self, id: &str) -> Result<AgentRecord, Refusal> {
        let id = AgentId::parse(id).map_err(|error| Refusal::bad_request(error.to_string()))?;
        let found = self
            .store()
            .find_agent(&id)
            .await?
            .filter(AgentRecord::is_there);
        found.ok_or_else(|| Refusal::not_found(format!("no agent `{id}`")))
    }

    /// A session's agent by id or name; its lead for `None`.
    pub async fn find_member(
        &self,
        session: &SessionRecord,
        agent: Option<&str>,
    ) -> Result<AgentRecord, Refusal> {
        found_member(&**self.store(), session, agent).await
    }

    /// The lead of a session.
    pub async fn find_lead(&self, session: &SessionRecord) -> Result<AgentRecord, Refusal> {
        self.find_member(session, None).await
    }

    /// The agents of a session that are not stopped and that a text may mean.
    pub(crate) async fn members_meant(
        &self,
        session: &SessionId,
        text: &str,
    ) -> Result<Vec<AgentRecord>, Refusal> {
        let mut meant = self.store().meant(session, text).await?;
        meant.retain(AgentRecord::is_there);
        Ok(meant)
    }

    /// The agents of a session that are not stopped.
    pub async fn members(&self, session: &SessionId) -> Result<Vec<AgentRecord>, Refusal> {
        let mut agents = self.store().agents(session).await?;
        agents.retain(AgentRecord::is_there);
        Ok(agents)
    }
}

/// The session of that id or name.
pub(crate) async fn found(
    store: &dyn SessionStore,
    id_or_name: &str,
) -> Result<SessionRecord, Refusal> {
    if !planck_common::id::is_id(id_or_name) {
        return Err(Refusal::bad_request(format!(
            "malformed session id or name `{}`",
            excerpt(id_or_name)
        )));
    }
    let found = store.session(id_or_name).await?;
    found.ok_or_else(|| {
        Refusal::not_found(format!(
            "no session `{id_or_name}`; `planck session ls` lists them"
        ))
    })
}

/// A session's agent by id or name; its lead for `None`.
pub(crate) async fn found_member(
    store: &dyn SessionStore,
    session: &SessionRecord,
    agent: Option<&str>,
) -> Result<AgentRecord, Refusal> {
    let wanted = agent.unwrap_or(&session.spec.lead);
    let found = named(store, session, wanted)
        .await?
        .filter(AgentRecord::is_there);
    found.ok_or_else(|| no_agent(session, wanted))
}

/// The same of an agent that is only read about, which may be stopped.
pub(crate) async fn found_in_log(
    store: &dyn SessionStore,
    session: &SessionRecord,
    agent: &str,
) -> Result<AgentRecord, Refusal> {
    named(store, session, agent)
        .await?
        .ok_or_else(|| no_agent(session, agent))
}

/// The agent of that id or name, one that is there before one that is stopped.
async fn named(
    store: &dyn SessionStore,
    session: &SessionRecord,
    wanted: &str,
) -> Result<Option<AgentRecord>, Refusal> {
    let meant = store.meant(&session.id, wanted).await?.into_iter();
    let named = meant.filter(|one| *one.id == *wanted || one.spec.name == wanted);
    Ok(named.min_by_key(|one| !one.is_there()))
}

fn no_agent(session: &SessionRecord, wanted: &str) -> Refusal {
    Refusal::not_found(format!(
        "session {} has no agent `{}`",
        session.name,
        excerpt(wanted)
    ))
}

/// The beginning of a text that somebody sent, for a message about it.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(80).collect()
}
