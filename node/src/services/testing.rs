//! Complete nodes for the tests of the services. The nodes of a test share a bus in memory and a
//! SQLite store.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use planck_common::{
    AgentId, InputId, NodeId, Timestamp,
    command::{InputMode, Start, Started},
    event::{InputKind, json},
    message::Part,
    reply::{self, Refusal, ReplyError},
    spec::Member,
    subject::Address,
};
use planck_scripted_model::{Reply, Script, Server};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use super::Services;
use crate::{
    bus::{MemoryBus, MemoryHub},
    config::{self, Config, Period},
    node::{self, RunningNode},
    sessions::CommandOrigin,
};
use planck_store::{AgentRecord, NewInput, PutResult, SessionRecord};

/// How long a test waits for an expected state.
const PATIENCE: Duration = Duration::from_secs(20);

/// The resources that the nodes of a test share.
pub(crate) struct World {
    folder: TempDir,
    hub: Arc<MemoryHub>,
    model: Server,
}

/// A node of a test.
pub(crate) struct TestNode {
    running: RunningNode,
}

impl World {
    /// Creates a world in which each model answers every request with `hello`.
    pub(crate) async fn new() -> Self {
        Self::with(Script::new().always(Reply::text("hello"))).await
    }

    /// Creates a world in which the models answer as the script says.
    pub(crate) async fn with(script: Script) -> Self {
        Self {
            folder: TempDir::new().unwrap(),
            hub: Arc::default(),
            model: Server::start(script.without_auth()).await.unwrap(),
        }
    }

    /// Starts a node that can reach the others.
    pub(crate) async fn node(&self) -> TestNode {
        self.node_with(|_| {}).await
    }

    /// Starts a node that can reach the others, with a configuration from the test.
    pub(crate) async fn node_with(&self, configure: impl FnOnce(&mut Config)) -> TestNode {
        let mut config = Config::default();
        let store = self.folder.path().join("sessions");
        config.store.url = config::ConfiguredUrl::new(format!("sqlite:{}", store.display()));
        // The bus of the test is in memory, but only a configured address makes the node expect
        // other nodes.
        config.nats.url = Some(config::ConfiguredUrl::new("nats://unused:4222".to_owned()));
        // Without a registry a node believes that all others are dead, so a sweep would take their
        // agents away. Tests call for the sweeps that they need.
        config.cluster.sweep = Period::seconds(60 * 60);
        config.node.absolute_dirs = Some(true);
        config.models.default = Some("scripted:test".into());
        config.providers.entry("scripted").base_url =
            Some(config::ConfiguredUrl::new(self.model.openai_url()));
        configure(&mut config);
        let bus = Arc::new(MemoryBus::new(Arc::clone(&self.hub)));
        TestNode {
            running: node::open_on(&config, bus).await.unwrap(),
        }
    }

    /// Makes the file of a session refuse its removal.
    pub(crate) async fn refuse_removal(&self, session: &Started) {
        let refused = planck_tests::sqlite::refuse_removal(&self.file(session)).await;
        refused.unwrap();
    }

    /// Makes the file of a session refuse to record the session as closed.
    pub(crate) async fn refuse_close(&self, session: &Started) {
        let refused = planck_tests::sqlite::refuse_close(&self.file(session)).await;
        refused.unwrap();
    }

    fn file(&self, session: &Started) -> PathBuf {
        let name = format!("sessions/{}_{}.db", session.session_id, session.name);
        self.folder.path().join(name)
    }

    /// Returns a request for a session with these members. The member `lead` is the orchestrator.
    pub(crate) fn request(&self, members: &[&str]) -> Start {
        // The orchestrator is the member that has the tool `spawn_agent`.
        let member = |name: &&str| Member {
            r#type: (*name).to_owned(),
            tools: (*name == "lead").then(|| vec!["spawn_agent".to_owned()]),
            ..Member::default()
        };
        Start {
            session_id: None,
            name: None,
            team: None,
            members: Some(members.iter().map(member).collect()),
            workspace: None,
            dir: Some(self.folder.path().display().to_string()),
            prompt: None,
            prompt_id: None,
            by: None,
            limits: None,
            permissions: None,
            client_tools: Vec::new(),
            output: None,
            on_node_death: None,
            metadata: serde_json::Map::new(),
        }
    }
}

impl TestNode {
    pub(crate) fn running(&self) -> &RunningNode {
        &self.running
    }

    pub(crate) fn services(&self) -> &Services {
        self.running.node().services()
    }

    pub(crate) fn id(&self) -> &NodeId {
        self.running.node().id()
    }

    /// Starts a session on this node. Its agents are idle unless the request has a prompt.
    pub(crate) async fn start(&self, request: Start) -> Started {
        let sessions = &self.services().sessions;
        sessions.start(request, CommandOrigin::Peer).await.unwrap()
    }

    /// Returns the current records of the session's agents.
    pub(crate) async fn members(&self, of: &Started) -> Vec<AgentRecord> {
        let lookup = &self.services().handles.lookup;
        lookup.members(&of.session_id).await.unwrap()
    }

    /// Returns the current record of the session.
    pub(crate) async fn session(&self, of: &Started) -> SessionRecord {
        self.services()
            .handles
            .lookup
            .session(&of.session_id)
            .await
            .unwrap()
    }

    /// Returns the current record of the agent.
    pub(crate) async fn agent(&self, id: &AgentId) -> AgentRecord {
        let found = self.services().handles.store.find_agent(id).await.unwrap();
        found.unwrap()
    }

    /// Puts a prompt into the agent's inbox without a notification of its host, as if that had been
    /// lost.
    pub(crate) async fn put_prompt(&self, to: &AgentRecord, text: &str) -> InputId {
        let id = InputId::mint();
        let prompt = NewInput {
            id: id.clone(),
            agent: to.id.clone(),
            kind: InputKind::Prompt,
            mode: InputMode::Queue,
            sender: None,
            by: None,
            reply_to: None,
            content: json(&[Part::text(text)]),
            fresh: false,
            output: None,
            at: Timestamp::now(),
        };
        let put = self.services().handles.store.put(&to.session, prompt).await;
        assert!(matches!(put.unwrap(), PutResult::Put { .. }));
        id
    }

    /// Waits until the agent has read the input.
    pub(crate) async fn until_read(&self, agent: &AgentRecord, input: &InputId) {
        self.until("the input is read", async |services| {
            let row = services
                .handles
                .store
                .input(&agent.session, input)
                .await
                .unwrap();
            row.is_some_and(|row| !row.is_unread())
        })
        .await;
    }

    /// Sends a command over this node's bus, as a client does. Only a command for a node is sure to
    /// reach that node. Any node of the test may get another command.
    pub(crate) async fn command<T: DeserializeOwned>(
        &self,
        address: &Address,
        body: &Value,
    ) -> Result<T, Refusal> {
        let body = Bytes::from(body.to_string());
        let bus = &self.services().handles.bus;
        let answer = bus.request(address, body, PATIENCE).await.unwrap();
        reply::decode(&answer).map_err(|error| match error {
            ReplyError::Refused(refusal) => refusal,
            ReplyError::Foreign | ReplyError::Malformed(_) => panic!("{error}"),
        })
    }

    /// Waits until the condition holds. Panics if the condition does not hold within [`PATIENCE`].
    pub(crate) async fn until(&self, what: &str, mut is_so: impl AsyncFnMut(&Services) -> bool) {
        let waited = async {
            while !is_so(self.services()).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, waited).await;
        assert!(waited.is_ok(), "not in time: {what}");
    }

    /// Shuts the node down normally.
    pub(crate) async fn leave(self) {
        self.running.shut_down(Duration::ZERO).await;
    }
}
