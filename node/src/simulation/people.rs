//! The clients of a simulated cluster, which start and close sessions, prompt agents, answer waits and
//! abort turns. A client sends a command until it is answered.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use planck_common::{
    AgentId, CallId, InputId, SessionId,
    command::{AgentVerb, Prompt, SessionVerb, SessionsVerb, Start, Started},
    event::json,
    permission::PermissionMode,
    reply::{self, Code, ReplyError},
    spec::{Member, OnNodeDeath, OutputSpec},
    subject::{Address, Target},
    wait::WaitDecision,
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::sleep};

use super::{
    bus::SimBus,
    node::{WAITS_LAST, WORKSPACE},
    work::{DELEGATE, PROSE, RESPOND, TOOL},
    world::{OpenedWait, SimWorld},
};
use crate::bus::Bus;

/// The members of each session. The first one is the orchestrator.
const MEMBERS: [&str; 3] = ["lead", "left", "right"];
/// The tools of each member.
const TOOLS: &[&str] = &[TOOL, DELEGATE, RESPOND];
/// One in this many prompts makes an agent give another one a task.
const DELEGATED: u32 = 4;
/// One in this many prompts says in which shape it is answered.
const SHAPED: u32 = 4;
/// Until when people leave waits open or answer them late, in milliseconds.
const LAST_LATE: u64 = 18_000;
/// How long a client waits for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Returns the shape of some answers.
fn shape() -> OutputSpec {
    OutputSpec {
        schema: serde_json::json!({
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        }),
        name: None,
    }
}

/// A session of the run, with its agents in the order of [`MEMBERS`].
#[derive(Clone)]
pub(super) struct StartedSession {
    pub id: SessionId,
    agents: Vec<AgentId>,
}

/// A client of the cluster.
#[derive(Clone)]
pub(super) struct Client {
    pub world: Arc<SimWorld>,
    pub bus: Arc<SimBus>,
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

    pub(super) async fn start(&self, number: usize, rng: &mut Rng) -> StartedSession {
        let member = |name: &&str| Member {
            r#type: (*name).to_owned(),
            tools: Some(match *name {
                "lead" => [&["spawn_agent"][..], TOOLS].concat(),
                _ => TOOLS.to_vec(),
            })
            .map(|tools| tools.into_iter().map(str::to_owned).collect()),
            ..Member::default()
        };
        let id = SessionId::mint();
        let stops = number > 0 && rng.u32(..3) == 0;
        let is_careful = rng.u32(..3) == 0;
        if is_careful {
            self.world.state().careful.insert(id.clone());
        }
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
            permissions: is_careful.then_some(PermissionMode::Careful),
            client_tools: Vec::new(),
            on_node_death: Some(match stops {
                true => OnNodeDeath::Stop,
                false => OnNodeDeath::Resume,
            }),
            metadata: serde_json::Map::new(),
            output: None,
        };
        let address = Address::new(Target::Sessions, SessionsVerb::Start.name());
        let started: Started = self.until_answered(&address, &json(&start)).await.unwrap();
        let name = self.world.name("session", &started.session_id);
        self.world.note(&format!(
            "{name} started, stops: {stops}, careful: {is_careful}"
        ));
        let data = self.world.data();
        let agents = &data.find(&id).unwrap().agents;
        StartedSession {
            agents: agents.iter().map(|agent| agent.id.clone()).collect(),
            id,
        }
    }

    pub(super) async fn prompt(
        self,
        number: usize,
        at: u64,
        sessions: Vec<StartedSession>,
        mut rng: Rng,
    ) -> InputId {
        sleep(Duration::from_millis(at)).await;
        let session = &sessions[rng.usize(..sessions.len())];
        let place = rng.usize(..session.agents.len());
        let agent = &session.agents[place];
        let id = InputId::mint();
        let text = if rng.u32(..DELEGATED) == 0 {
            let other = (place + rng.usize(1..MEMBERS.len())) % MEMBERS.len();
            let task = if rng.bool() { "work" } else { "respond" };
            format!("delegate {task} {}", MEMBERS[other])
        } else {
            format!("work {}", rng.u32(0..4))
        };
        let is_shaped = rng.u32(..SHAPED) == 0;
        let (text, output) = match is_shaped {
            true => (
                format!("shape {} {text}", rng.usize(..=PROSE)),
                Some(shape()),
            ),
            false => (text, None),
        };
        let prompt = Prompt {
            prompt_id: Some(id.clone()),
            output,
            ..Prompt::from(text.as_str())
        };
        let address = Address::agent(agent, AgentVerb::Prompt.name());
        let answer: Result<serde_json::Value, Code> =
            self.until_answered(&address, &json(&prompt)).await;
        let to = self.world.name("agent", agent);
        self.world.note(&format!(
            "prompt {number} to {to}: {:?}",
            answer.as_ref().err()
        ));
        if answer.is_ok() {
            if is_shaped {
                self.world.state().shaped.insert(id.clone());
            }
            let (world, session, id) = (Arc::clone(&self.world), session.id.clone(), id.clone());
            tokio::spawn(async move { world.expect_read(&session, &id).await });
        }
        id
    }

    pub(super) async fn close(self, session: StartedSession, at: u64) {
        sleep(Duration::from_millis(at)).await;
        let address = Address::session(&session.id, SessionVerb::Close.name());
        let name = self.world.name("session", &session.id);
        self.world.note(&format!("a client closes {name}"));
        let closed: Option<Result<serde_json::Value, Code>> =
            self.ask(&address, "{}".to_owned()).await;
        self.world.note(&format!("{name} closed: {closed:?}"));
        if matches!(closed, Some(Ok(_))) {
            self.world.closed(&session.id);
        }
    }

    /// Answers the waits that agents open, sometimes twice, and aborts some of the turns that wait.
    pub(super) async fn answer_waits(self, mut opened: mpsc::UnboundedReceiver<OpenedWait>) {
        while let Some(wait) = opened.recv().await {
            let mut rng = self.world.state().rng.fork();
            let decision = match rng.u32(..4) {
                0 => WaitDecision::Deny,
                _ => WaitDecision::Allow,
            };
            let other = match decision {
                WaitDecision::Allow => WaitDecision::Deny,
                _ => WaitDecision::Allow,
            };
            let may_be_late = self.world.millis() < LAST_LATE;
            let at = match may_be_late && rng.u32(..4) == 0 {
                true => rng.u64(50..9_000),
                false => rng.u64(50..3_000),
            };
            if may_be_late && rng.u32(..6) == 0 {
                let OpenedWait { session, wait, .. } = wait;
                let world = Arc::clone(&self.world);
                tokio::spawn(async move { world.expect_expiry(&session, &wait, WAITS_LAST).await });
                continue;
            }
            if rng.u32(..6) == 0 {
                let abort = self.clone().abort(wait.clone(), rng.u64(1..4_000));
                tokio::spawn(abort);
            }
            if rng.u32(..4) == 0 {
                let second = at + rng.u64(0..100);
                tokio::spawn(self.clone().answer(wait.clone(), other, second));
            }
            tokio::spawn(self.clone().answer(wait, decision, at));
        }
    }

    async fn answer(self, opened: OpenedWait, decision: WaitDecision, at: u64) {
        sleep(Duration::from_millis(at)).await;
        let OpenedWait { session, wait, .. } = opened;
        let is_late = self.world.has_expired(&session, &wait);
        let address = Address::session(&session, SessionVerb::Answer.name());
        let body = serde_json::json!({ "wait": wait, "decision": decision }).to_string();
        let answered: Result<serde_json::Value, Code> = self.until_answered(&address, &body).await;
        self.note_answer(&wait, decision, answered.as_ref().err());
        if answered.is_ok() {
            if is_late {
                let call = self.world.name("call", &wait);
                self.world
                    .violated(format!("{call} was answered after it had expired"));
            }
            self.world.expect_answer(&session, &wait, decision).await;
        }
    }

    fn note_answer(&self, wait: &CallId, decision: WaitDecision, error: Option<&Code>) {
        let call = self.world.name("call", wait);
        self.world
            .note(&format!("{decision:?} for {call}: {error:?}"));
    }

    async fn abort(self, opened: OpenedWait, at: u64) {
        sleep(Duration::from_millis(at)).await;
        let OpenedWait { session, agent, .. } = opened;
        let turn = {
            let data = self.world.data();
            let session = data.sessions.get(&session);
            session.and_then(|session| session.open_turn(&agent))
        };
        let Some(turn) = turn else { return };
        let address = Address::agent(&agent, AgentVerb::Abort.name());
        let aborted: Option<Result<serde_json::Value, Code>> =
            self.ask(&address, "{}".to_owned()).await;
        let name = self.world.name("agent", &agent);
        self.world
            .note(&format!("abort of turn {turn} of {name}: {aborted:?}"));
        if matches!(aborted, Some(Ok(_))) {
            self.world.expect_abort(&session, &agent, turn).await;
        }
    }
}
