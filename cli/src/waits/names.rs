//! The names of the sessions and agents that wait.

use std::collections::{BTreeSet, HashMap};

use futures_util::StreamExt as _;
use planck_common::{
    SessionId,
    command::{SessionInfo, WaitRow},
};

use planck_client::Client;

/// The number of sessions whose names are requested at once.
const AT_ONCE: usize = 16;

#[derive(Debug, Default)]
pub struct WaiterNames(HashMap<SessionId, SessionInfo>);

impl WaiterNames {
    /// Requests the names that are not known yet. Those that cannot be had are shown as ids.
    pub async fn learn(&mut self, client: &Client, waits: &[WaitRow]) {
        let sessions: BTreeSet<&SessionId> = waits.iter().map(|wait| &wait.session_id).collect();
        let unknown = sessions.into_iter().filter(|id| !self.0.contains_key(*id));
        let asked = unknown.map(|id| async move { client.session(id).await.ok() });
        let asked: Vec<_> = asked.collect();
        let found: Vec<Option<SessionInfo>> = futures_util::stream::iter(asked)
            .buffered(AT_ONCE)
            .collect()
            .await;
        let found = found.into_iter().flatten();
        self.0.extend(found.map(|info| (info.id.clone(), info)));
    }

    pub fn session(&self, wait: &WaitRow) -> String {
        let info = self.0.get(&wait.session_id);
        info.map_or_else(|| wait.session_id.to_string(), |info| info.name.to_string())
    }

    /// Returns the name of the session, with that of the agent if the session has several.
    pub fn of(&self, wait: &WaitRow) -> String {
        let session = self.session(wait);
        let agents = self
            .0
            .get(&wait.session_id)
            .map(|info| info.agents.as_slice());
        let agents = agents.filter(|agents| agents.len() > 1).unwrap_or_default();
        match agents.iter().find(|agent| agent.id == wait.agent_id) {
            Some(agent) => format!("{session}/{}", agent.name),
            None => session,
        }
    }
}
