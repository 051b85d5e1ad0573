//! Plays one seed: the nodes start, clients start sessions and send prompts, faults happen, and when
//! they are over the cluster must come to rest.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fastrand::Rng;
use planck_common::{
    AgentId, InputId, SessionId,
    command::{AgentVerb, Prompt, SessionState, SessionVerb, SessionsVerb, Start, Started},
    event::{EventKind, json},
    reply::{self, Code, ReplyError},
    spec::{Member, OnNodeDeath},
    subject::{Address, Target},
};
use serde::de::DeserializeOwned;
use tokio::{runtime::Builder, sync::mpsc, time::sleep};

use super::{
    bus::SimBus,
    faults::{NODES, faults_of},
    node::{Cluster, Outside, WORKSPACE},
    work::TOOL,
    world::SimWorld,
};
use crate::{bus::Bus, node::Node};
use planck_cluster::clock;

/// The members of each session. The first one is the orchestrator.
const MEMBERS: [&str; 3] = ["lead", "left", "right"];
/// How long a client waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long the cluster may take to come to rest once all faults are over, in milliseconds.
const REST: u64 = 40_000;

/// What a run showed.
pub(super) struct Played {
    pub violation: Option<String>,
    pub trace: Vec<String>,
    /// The number of tool calls that began.
    pub calls: usize,
}

/// A session of the run, with its agents in the order of [`MEMBERS`].
#[derive(Clone)]
struct SimSession {
    id: SessionId,
    agents: Vec<AgentId>,
}

/// A client of the cluster.
#[derive(Clone)]
struct Client {
    world: Arc<SimWorld>,
    bus: Arc<SimBus>,
}

/// Plays a seed on the current thread.
pub(super) fn play(seed: u64, outside: &Outside) -> Played {
    fastrand::seed(seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        clock::count_tokio_time();
        let cluster = Cluster::new(seed, outside);
        run(seed, &cluster).await;
        let world = &cluster.world;
        let calls = world.state().began.len();
        Played {
            violation: world.violation(),
            trace: world.take_trace(),
            calls,
        }
    })
}

async fn run(seed: u64, cluster: &Cluster) {
    let mut rng = Rng::with_seed(!seed);
    let world = &cluster.world;
    let mut places = Vec::new();
    for _ in 0..NODES {
        let (orders, ordered) = mpsc::channel(4);
        places.push(orders);
        tokio::spawn(cluster.clone().keep_node(ordered));
    }
    let client = Client {
        world: Arc::clone(world),
        bus: Arc::new(SimBus::new(
            world,
            &cluster.hub,
            &planck_common::NodeId::parse("client").unwrap(),
        )),
    };
    while serving(world).len() < NODES {
        sleep(Duration::from_millis(100)).await;
    }
    let count = rng.usize(2..4);
    let mut sessions = Vec::new();
    for number in 0..count {
        sessions.push(client.start(cluster, number, &mut rng).await);
    }
    let faults = faults_of(&mut rng);
    let prompts: Vec<_> = (0..rng.usize(6..13))
        .map(|number| tokio::spawn(client.clone().prompt(number, sessions.clone(), rng.fork())))
        .collect();
    if rng.u32(..4) == 0 {
        let closing = client
            .clone()
            .close(sessions[0].clone(), rng.u64(2_000..25_000));
        tokio::spawn(closing);
    }
    world.suffer(faults, &places).await;
    for prompt in prompts {
        let _ = prompt.await;
    }
    let until = world.millis() + REST;
    loop {
        let left = left(cluster, &sessions);
        if world.violation().is_some() || left.is_none() {
            return;
        }
        if world.millis() > until {
            return world.violated(format!("not at rest: {}", left.unwrap()));
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// Returns the nodes that run and may begin work.
fn serving(world: &SimWorld) -> Vec<Arc<Node>> {
    let living = world.living();
    let nodes = living.iter().filter_map(|id| world.link(id).node.upgrade());
    let serves = |node: &Arc<Node>| !node.services().base.view.is_suspended();
    nodes.filter(serves).collect()
}

/// Returns what keeps the cluster from being at rest.
fn left(cluster: &Cluster, sessions: &[SimSession]) -> Option<String> {
    let world = &cluster.world;
    let nodes = serving(world);
    if nodes.len() < NODES {
        return Some(format!("{} nodes serve", nodes.len()));
    }
    let data = cluster.data.lock().unwrap();
    for id in sessions.iter().map(|session| &session.id) {
        let session = data.find(id)?;
        let is_open = session.record().state == SessionState::Open;
        let mut rows = session.log.iter().map(|row| row.row.kind);
        if world.state().must_close.contains(id)
            && !rows.any(|kind| kind == EventKind::SessionClosed)
        {
            return Some("a session that stops with its node was not closed".into());
        }
        for agent in &session.agents {
            let name = world.name("agent", &agent.id);
            let hosts: BTreeSet<_> = nodes
                .iter()
                .filter(|node| node.services().base.host.has(&agent.id))
                .map(|node| node.id().clone())
                .collect();
            let holder: BTreeSet<_> = agent.node.iter().cloned().collect();
            if hosts != holder {
                let hosts = hosts.iter().map(|node| world.name("node", node));
                let hosts: Vec<_> = hosts.collect();
                let holder = holder.iter().map(|node| world.name("node", node));
                let holder: Vec<_> = holder.collect();
                return Some(format!("{name} is on {hosts:?} and {holder:?} hold it"));
            }
            if !is_open && agent.node.is_some() {
                return Some(format!("{name} is held in a closed session"));
            }
        }
        let mut waits = session.inputs.iter().filter(|row| row.outcome.is_none());
        if is_open && let Some(row) = waits.next() {
            let name = world.name("agent", &row.input.agent);
            return Some(format!("an input of {name} has no outcome"));
        }
        if let Some((call, _)) = session.calls().into_iter().find(|(_, ended)| !ended) {
            return Some(format!("{} has no end", world.name("call", &call)));
        }
    }
    None
}

impl Client {
    /// Sends a command. `None` means that no answer came, or that it may be sent again.
    async fn ask<T: DeserializeOwned>(
        &self,
        address: &Address,
        body: String,
    ) -> Option<Result<T, Code>> {
        let answer = self.bus.request(address, body.into(), ANSWER).await.ok()?;
        match reply::decode(&answer) {
            Ok(done) => Some(Ok(done)),
            Err(ReplyError::Refused(refusal)) if refusal.retryable => None,
            Err(ReplyError::Refused(refusal)) => {
                let code = refusal.code;
                self.world
                    .note(&format!("refused {}: {code:?}", address.verb));
                Some(Err(code))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Sends a command until it is answered.
    async fn until_answered<T: DeserializeOwned>(
        &self,
        address: &Address,
        body: &str,
    ) -> Result<T, Code> {
        loop {
            if let Some(answer) = self.ask(address, body.to_owned()).await {
                return answer;
            }
            self.world.pause(100..1_000).await;
        }
    }

    async fn start(&self, cluster: &Cluster, number: usize, rng: &mut Rng) -> SimSession {
        let member = |name: &&str| Member {
            r#type: (*name).to_owned(),
            tools: Some(match *name {
                "lead" => vec!["spawn_agent".to_owned(), TOOL.to_owned()],
                _ => vec![TOOL.to_owned()],
            }),
            ..Member::default()
        };
        let id = SessionId::mint();
        let stops = number > 0 && rng.u32(..3) == 0;
        let start = Start {
            session_id: Some(id.clone()),
            name: None,
            team: None,
            members: Some(MEMBERS.iter().map(member).collect()),
            workspace: Some(WORKSPACE.into()),
            dir: None,
            prompt: Some(format!("work {}", rng.u32(1..5))),
            prompt_id: None,
            by: None,
            limits: None,
            permissions: None,
            client_tools: Vec::new(),
            on_node_death: Some(match stops {
                true => OnNodeDeath::Stop,
                false => OnNodeDeath::Resume,
            }),
            metadata: serde_json::Map::new(),
        };
        let address = Address::new(Target::Sessions, SessionsVerb::Start.name());
        let started: Started = self.until_answered(&address, &json(&start)).await.unwrap();
        let name = self.world.name("session", &started.session_id);
        self.world.note(&format!("{name} started, stops: {stops}"));
        let data = cluster.data.lock().unwrap();
        let agents = &data.find(&id).unwrap().agents;
        SimSession {
            agents: agents.iter().map(|agent| agent.id.clone()).collect(),
            id,
        }
    }

    async fn prompt(self, number: usize, sessions: Vec<SimSession>, mut rng: Rng) {
        sleep(Duration::from_millis(rng.u64(0..28_000))).await;
        let session = &sessions[rng.usize(..sessions.len())];
        let agent = &session.agents[rng.usize(..session.agents.len())];
        let prompt = Prompt {
            prompt_id: Some(InputId::mint()),
            ..Prompt::from(format!("work {}", rng.u32(0..4)).as_str())
        };
        let address = Address::agent(agent, AgentVerb::Prompt.name());
        let answer: Result<serde_json::Value, Code> =
            self.until_answered(&address, &json(&prompt)).await;
        let to = self.world.name("agent", agent);
        self.world
            .note(&format!("prompt {number} to {to}: {:?}", answer.err()));
    }

    async fn close(self, session: SimSession, at: u64) {
        sleep(Duration::from_millis(at)).await;
        let address = Address::session(&session.id, SessionVerb::Close.name());
        let name = self.world.name("session", &session.id);
        self.world.note(&format!("a client closes {name}"));
        let closed: Option<Result<serde_json::Value, Code>> =
            self.ask(&address, "{}".to_owned()).await;
        self.world.note(&format!("{name} closed: {closed:?}"));
    }
}
