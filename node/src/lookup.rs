//! Finds sessions and agents in the store for request handlers. Unknown names cause a refusal with
//! a message for the client.

use std::sync::Arc;

use planck_common::{
    AgentId, SessionId,
    reply::{Refusal, excerpt},
    similar::did_you_mean,
};

use crate::{actor::SessionContext, workspace::Workspaces};
use planck_store::{AgentRecord, SessionRecord, SessionStore};

/// The number of sessions, the newest ones, among which the error about an unknown name looks for the
/// one that was meant.
const SUGGESTED: u32 = 500;

/// Finds sessions and agents by the ids and names in a request.
#[derive(Clone)]
pub struct Lookup {
    store: Arc<dyn SessionStore>,
    workspaces: Workspaces,
}

impl Lookup {
    pub fn new(store: Arc<dyn SessionStore>, workspaces: Workspaces) -> Self {
        Self { store, workspaces }
    }

    /// Returns the workspaces of this node.
    pub fn workspaces(&self) -> &Workspaces {
        &self.workspaces
    }

    /// Returns the session with this id or name.
    pub async fn session(&self, id_or_name: &str) -> Result<SessionRecord, Refusal> {
        find_session(&*self.store, id_or_name).await
    }

    /// Returns the agent with this id. A stopped agent is not found.
    pub async fn agent(&self, id: &str) -> Result<AgentRecord, Refusal> {
        find_agent(&*self.store, id).await
    }

    /// Returns the agent of a session with this id or name. A stopped agent is not found.
    pub async fn member(
        &self,
        session: &SessionRecord,
        id_or_name: &str,
    ) -> Result<AgentRecord, Refusal> {
        let found = find_named(&*self.store, session, id_or_name).await?;
        found
            .filter(AgentRecord::is_there)
            .ok_or_else(|| no_agent(session, id_or_name))
    }

    /// Returns the orchestrator of a session.
    pub async fn lead(&self, session: &SessionRecord) -> Result<AgentRecord, Refusal> {
        self.member(session, &session.spec.lead).await
    }

    /// Returns the agents of a session that are not stopped.
    pub async fn members(&self, session: &SessionId) -> Result<Vec<AgentRecord>, Refusal> {
        let mut agents = self.store.agents(session).await?;
        agents.retain(AgentRecord::is_there);
        Ok(agents)
    }

    /// Returns the agents of a session to which a text may refer by id, name or type, without the
    /// stopped agents.
    pub async fn members_meant(
        &self,
        session: &SessionId,
        text: &str,
    ) -> Result<Vec<AgentRecord>, Refusal> {
        let mut meant = self.store.agents_matching(session, text).await?;
        meant.retain(AgentRecord::is_there);
        Ok(meant)
    }

    /// Returns the data of a session that its agents need. Fails if the session's workspace is not
    /// on this node.
    pub fn context(
        &self,
        session: &SessionRecord,
        incarnation: i64,
    ) -> Result<SessionContext, Refusal> {
        let place = self
            .workspaces
            .place(&session.spec.workspace, &session.spec.dir)?;
        Ok(SessionContext {
            id: session.id.clone(),
            team: session.spec.team_id.clone(),
            lead: session.spec.lead.clone(),
            workspace: session.spec.workspace.clone(),
            incarnation,
            dir: place.dir,
            root: place.root,
            limits: session.spec.limits,
        })
    }
}

/// Returns the session with this id or name.
pub async fn find_session(
    store: &dyn SessionStore,
    id_or_name: &str,
) -> Result<SessionRecord, Refusal> {
    if !planck_common::id::is_id(id_or_name) {
        return Err(Refusal::bad_request(format!(
            "malformed session id or name `{}`",
            excerpt(id_or_name)
        )));
    }
    if let Some(found) = store.session(id_or_name).await? {
        return Ok(found);
    }
    let names = store.session_names(SUGGESTED).await.unwrap_or_default();
    let meant = did_you_mean(id_or_name, names.iter().map(String::as_str));
    let way_out = meant.unwrap_or_else(|| "`planck session ls` lists them".into());
    Err(Refusal::not_found(format!(
        "no session `{id_or_name}`; {way_out}"
    )))
}

/// Returns the agent with this id. A stopped agent is not found.
pub async fn find_agent(store: &dyn SessionStore, id: &str) -> Result<AgentRecord, Refusal> {
    let id = AgentId::parse(id).map_err(|error| Refusal::bad_request(error.to_string()))?;
    let found = store.find_agent(&id).await?;
    found
        .filter(AgentRecord::is_there)
        .ok_or_else(|| Refusal::not_found(format!("no agent `{id}`")))
}

/// Returns the agent with this id or name, even if it is stopped, because its messages are still in
/// the log.
pub async fn find_in_log(
    store: &dyn SessionStore,
    session: &SessionRecord,
    id_or_name: &str,
) -> Result<AgentRecord, Refusal> {
    find_named(store, session, id_or_name)
        .await?
        .ok_or_else(|| no_agent(session, id_or_name))
}

/// Finds an agent by id or name. If a stopped agent and another one have the same name, returns the
/// one that is not stopped.
async fn find_named(
    store: &dyn SessionStore,
    session: &SessionRecord,
    id_or_name: &str,
) -> Result<Option<AgentRecord>, Refusal> {
    let meant = store
        .agents_matching(&session.id, id_or_name)
        .await?
        .into_iter();
    let named = meant.filter(|agent| *agent.id == *id_or_name || agent.spec.name == id_or_name);
    Ok(named.min_by_key(|agent| !agent.is_there()))
}

fn no_agent(session: &SessionRecord, wanted: &str) -> Refusal {
    Refusal::not_found(format!(
        "session {} has no agent `{}`",
        session.name,
        excerpt(wanted)
    ))
}
