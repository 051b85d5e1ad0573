//! The session that the cases work on, with functions that make batches and inputs for it.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId, TeamId, Timestamp,
    command::{AgentState, InputMode},
    envelope::EventPlace,
    event::{EventKind, InputKind},
    message::Sender,
    spec::{
        AgentLimits, AgentRole, AgentSpec, Grant, ModelRef, OnNodeDeath, SessionLimits, SessionSpec,
    },
    usage::Usage,
};
use serde_json::json;

use super::World;
use crate::{
    AgentCreation, Batch, BatchOutcome, Created, LeadIncarnation, NewAgent, NewInput, NewMember,
    NewSession, SessionStore,
};
use planck_agent::{Entry, Mark, Save, Ticket, effect::Change};

/// A session in which `node` holds the lease of every agent at epoch 1.
pub struct Team {
    pub store: Arc<dyn SessionStore>,
    pub node: NodeId,
    pub session: SessionId,
    /// The agents. The first one is the orchestrator.
    pub agents: Vec<AgentId>,
}

impl Team {
    pub async fn start(world: &dyn World, size: usize) -> Self {
        Self::start_with(world, size, SessionLimits::default()).await
    }

    pub async fn start_with(world: &dyn World, size: usize, limits: SessionLimits) -> Self {
        let node = NodeId::mint();
        let store = world.open(&node).await;
        let mut session = new_session(size);
        session.spec.limits = limits;
        let agents = session
            .agents
            .iter()
            .map(|agent| agent.id.clone())
            .collect();
        let Created::New(record, _) = store.create(session, &node).await.unwrap() else {
            panic!("it was there before")
        };
        Self {
            store,
            node,
            session: record.id,
            agents,
        }
    }

    pub fn lead(&self) -> &AgentId {
        &self.agents[0]
    }

    pub fn under(&self, incarnation: i64) -> LeadIncarnation {
        LeadIncarnation {
            lead: self.lead().clone(),
            incarnation,
        }
    }

    /// Creates one member without a task.
    pub async fn create_agent(&self, agent: NewAgent, incarnation: i64) -> AgentCreation {
        self.create_agents(vec![NewMember { agent, task: None }], incarnation)
            .await
            .remove(0)
    }

    pub async fn create_agents(
        &self,
        members: Vec<NewMember>,
        incarnation: i64,
    ) -> Vec<AgentCreation> {
        let outcomes = self
            .store
            .create_agents(
                &self.session,
                &members,
                &self.under(incarnation),
                &self.node,
            )
            .await
            .unwrap();
        assert_eq!(outcomes.len(), members.len());
        outcomes
    }

    /// Returns a batch for an agent whose lease has epoch 1.
    pub fn batch(&self, agent: usize, prev: Seq, entries: Vec<Entry>) -> Batch {
        Batch {
            agent: self.agents[agent].clone(),
            epoch: 1,
            prev,
            saves: vec![Arc::new(save(entries))],
        }
    }

    pub async fn append(&self, batch: Batch) -> BatchOutcome {
        let mut done = self
            .store
            .append(&self.session, &self.node, &[batch])
            .await
            .unwrap();
        assert_eq!(done.batches.len(), 1);
        done.batches.remove(0)
    }

    /// Appends a batch, and panics unless it is written. Returns the numbers of its rows.
    pub async fn write(&self, batch: Batch) -> Vec<Seq> {
        match self.append(batch).await {
            BatchOutcome::Written(seqs) => seqs,
            refused @ (BatchOutcome::StaleEpoch
            | BatchOutcome::InputsGone(_)
            | BatchOutcome::Refused(_)) => {
                panic!("not written: {refused:?}")
            }
        }
    }

    /// Appends rows after the last row of an agent, whose lease has epoch 1. Returns the numbers of
    /// the new rows.
    pub async fn log(&self, agent: usize, entries: Vec<Entry>) -> Vec<Seq> {
        let prev = self.record(agent).await.last_seq;
        self.write(self.batch(agent, prev, entries)).await
    }

    pub async fn record(&self, agent: usize) -> crate::AgentRecord {
        self.store
            .find_agent(&self.agents[agent])
            .await
            .unwrap()
            .unwrap()
    }

    pub fn sender(&self, agent: usize) -> Sender {
        Sender {
            id: self.agents[agent].clone(),
            name: format!("agent {agent}"),
        }
    }

    pub fn prompt(&self, to: usize) -> NewInput {
        NewInput {
            id: InputId::mint(),
            agent: self.agents[to].clone(),
            kind: InputKind::Prompt,
            mode: InputMode::Queue,
            sender: None,
            by: None,
            reply_to: None,
            content: json!([{"type": "text", "text": "do it"}]).to_string(),
            fresh: false,
            output: None,
            at: tick(),
        }
    }

    pub fn said_by(&self, from: usize, to: usize, kind: InputKind) -> NewInput {
        NewInput {
            kind,
            sender: Some(self.sender(from)),
            ..self.prompt(to)
        }
    }

    pub async fn put(&self, input: &NewInput) {
        self.store.put(&self.session, input.clone()).await.unwrap();
    }
}

impl Batch {
    /// Changes the first save of the batch.
    pub fn with(mut self, change: impl FnOnce(&mut Save)) -> Self {
        change(Arc::make_mut(&mut self.saves[0]));
        self
    }
}

/// Returns a save of a running agent that only adds rows to its log.
pub fn save(entries: Vec<Entry>) -> Save {
    Save {
        ticket: Ticket(0),
        entries,
        marks: vec![],
        puts: vec![],
        usage: Usage::default(),
        state: AgentState::Streaming,
        beside: false,
    }
}

pub fn new_session(size: usize) -> NewSession {
    let id = SessionId::mint();
    let agents: Vec<_> = (0..size)
        .map(|n| new_agent(&id, &format!("agent {n}")))
        .collect();
    NewSession {
        id,
        name: None,
        spec: SessionSpec {
            team_id: TeamId::mint(),
            lead: agents[0].id.clone(),
            workspace: "here".into(),
            dir: ".".into(),
            team: None,
            limits: SessionLimits::default(),
            on_node_death: OnNodeDeath::Resume,
        },
        metadata: serde_json::Map::from_iter([("by".to_owned(), json!("a test"))]),
        agents,
        at: tick(),
        prompt: None,
    }
}

pub fn new_agent(session: &SessionId, name: &str) -> NewAgent {
    NewAgent {
        session: session.clone(),
        id: AgentId::mint(),
        spec: AgentSpec {
            r#type: "worker".into(),
            name: name.into(),
            description: String::new(),
            role: AgentRole::Worker,
            model: ModelRef {
                provider: "scripted".into(),
                id: "one".into(),
                base_url: None,
            },
            system_prompt: "You are \"it\".".into(),
            opts: serde_json::Map::new(),
            tools: vec!["read".into()],
            skills: vec![],
            grant: Grant::default(),
            compactor: None,
            listed_tools: None,
            limits: AgentLimits::default(),
            labels: serde_json::Map::new(),
            permissions: Vec::new(),
            client_tools: Vec::new(),
            spawned_by: None,
            output: None,
        },
    }
}

/// Returns a timestamp that is later than every timestamp that it returned before.
pub fn tick() -> Timestamp {
    static TICKS: AtomicI64 = AtomicI64::new(1_767_268_800_000);
    Timestamp::from_millis(TICKS.fetch_add(1, Ordering::Relaxed))
}

pub fn entry(kind: EventKind, turn: u32, body: impl Into<String>) -> Entry {
    Entry {
        kind,
        place: EventPlace {
            turn,
            request: 1,
            at: tick(),
        },
        body: body.into(),
    }
}

pub fn warning(text: &str) -> Entry {
    entry(
        EventKind::Warning,
        1,
        json!({"code": "test", "message": text}).to_string(),
    )
}

pub fn warnings(count: usize) -> Vec<Entry> {
    (0..count)
        .map(|n| warning(&format!("number {n}")))
        .collect()
}

pub fn turn_start(turn: u32) -> Entry {
    entry(
        EventKind::TurnStart,
        turn,
        json!({"index": turn, "inputs": []}).to_string(),
    )
}

pub fn turn_end(turn: u32) -> Entry {
    let body = json!({"outcome": "completed", "message": null, "usage": {}, "inputs": []});
    entry(EventKind::TurnEnd, turn, body.to_string())
}

pub fn message(text: &str) -> Entry {
    entry(
        EventKind::Message,
        1,
        json!({"role": "user", "content": [{"type": "text", "text": text}]}).to_string(),
    )
}

/// Returns a summary that replaces all messages up to `covers`, and the checkpoint that belongs to
/// it.
pub fn checkpoint(covers: Seq) -> Vec<Entry> {
    let content = json!([{"type": "text", "text": "in short"}]);
    let summary = json!({"role": "custom", "custom": "summary", "content": content, "metadata": {"covers": covers}});
    vec![
        entry(EventKind::Message, 1, summary.to_string()),
        entry(
            EventKind::Checkpoint,
            1,
            json!({"covers": covers}).to_string(),
        ),
    ]
}

pub fn consumed(input: &NewInput, turn: u32) -> Mark {
    Mark {
        input: input.id.clone(),
        change: Change::Consumed { turn },
    }
}

pub fn ended(input: &NewInput, outcome: &str, answer: Option<&str>) -> Mark {
    Mark {
        input: input.id.clone(),
        change: Change::Ended {
            outcome: outcome.into(),
            answer: answer.map(Into::into),
        },
    }
}
