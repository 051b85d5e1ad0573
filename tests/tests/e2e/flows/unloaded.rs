//! Every verb does to an agent that is not loaded what it does to a loaded one. Each test sends every
//! verb to idle and to waiting workers, once while they are loaded and once while they are not, and
//! compares the replies and the events.

use std::time::Duration;

use anyhow::{Context as _, Result};
use planck_common::{
    AgentId, CallId, Seq, SessionId,
    command::{AgentState, AgentVerb, SessionVerb},
    envelope::Envelope,
    reply::{Code, Refusal},
    subject::Address,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    caller::{agent_at, session_at},
    eventually::{eventually, within},
    node::Node,
    world::{Backend, World},
};
use serde_json::{Value, json};

use crate::{
    cluster::scene::until_all_see,
    teams::scene::{lead, member},
};

/// How long another node may take to take up the sessions of a node that is gone.
const TAKEN_UP: Duration = Duration::from_secs(60);

const ENVIRONMENT: &[(&str, &str)] = &[
    ("PLANCK_NODE_PARK_AFTER", "1s"),
    ("RUST_LOG", "planck=debug"),
];

/// Why the workers are not loaded.
#[derive(Debug, Clone, Copy)]
enum Situation {
    Parked,
    /// They are parked, and any of two nodes gets each command.
    Elsewhere,
    /// Their node has left, and another one has started since.
    Left,
    /// Their node was killed just before the first command.
    Killed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Agent(AgentVerb),
    Session(SessionVerb),
}

/// What the bodies of commands need to know.
struct Facts {
    wait: Option<CallId>,
    first_message: Seq,
}

/// A verb, and the worker of its own session to which it is sent.
struct Case {
    verb: Verb,
    is_waiting: bool,
    /// Which of the bodies of the verb is sent.
    nth: usize,
    body: Value,
    session: SessionId,
    worker: AgentId,
}

/// What a command did.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// What the reply says of the worker, or the code of the refusal.
    reply: Result<Value, Code>,
    /// The kinds of the events that the worker wrote.
    kinds: Vec<String>,
    state: AgentState,
    waits: usize,
}

fn script() -> Script {
    Script::new()
        .rule(When::any().result("not run"), "Then I leave it.")
        .rule(
            When::any().last("write it"),
            Reply::call("write", json!({ "path": "out.txt", "content": "x" })),
        )
        .always("Quick.")
}

fn verbs() -> Vec<Verb> {
    let agent = AgentVerb::ALL.iter().copied().map(Verb::Agent);
    let session = SessionVerb::ALL.iter().copied().map(Verb::Session);
    agent.chain(session).collect()
}

/// Returns the bodies with which a verb is sent. Each is sent to a session of its own.
fn bodies(verb: Verb, facts: &Facts) -> Vec<Value> {
    match verb {
        Verb::Agent(AgentVerb::Prompt) => vec![
            json!({ "text": "hello" }),
            json!({ "text": "hello", "mode": "reject" }),
        ],
        Verb::Agent(
            AgentVerb::Info
            | AgentVerb::Snapshot
            | AgentVerb::Abort
            | AgentVerb::Stop
            | AgentVerb::Nudge,
        ) => vec![json!({})],
        Verb::Agent(AgentVerb::Checkpoint) => vec![json!({ "summary": "so far" })],
        Verb::Agent(AgentVerb::AddTool) => vec![json!({ "name": "edit" })],
        Verb::Agent(AgentVerb::RemoveTool) => vec![json!({ "name": "read" })],
        Verb::Agent(AgentVerb::ChangeModel) => vec![json!({ "model_id": "other" })],
        Verb::Session(SessionVerb::Prompt) => {
            vec![json!({ "text": "hello", "agent": "worker" })]
        }
        Verb::Session(
            SessionVerb::Info
            | SessionVerb::Outcome
            | SessionVerb::Abort
            | SessionVerb::Resume
            | SessionVerb::Close,
        ) => vec![json!({})],
        Verb::Session(SessionVerb::Rename) => vec![json!({ "title": "another" })],
        Verb::Session(SessionVerb::Rewind) => vec![json!({ "to": facts.first_message })],
        Verb::Session(SessionVerb::Answer) => {
            let deny = |id: &CallId| json!({ "wait": id, "decision": "deny" });
            facts.wait.iter().map(deny).collect()
        }
        // These read only the store, or leave nothing that could be compared.
        Verb::Session(SessionVerb::Events | SessionVerb::Messages | SessionVerb::Delete) => vec![],
    }
}

/// Returns what a reply says of the worker.
fn said(verb: Verb, reply: &Value) -> Value {
    let count = |list: &Value| list.as_array().map(Vec::len);
    match verb {
        // The store does not have the rest of the description.
        Verb::Agent(AgentVerb::Info) => reply["state"].clone(),
        Verb::Agent(AgentVerb::Snapshot) => json!({
            "state": reply["info"]["state"],
            "runs": !reply["running"].is_null(),
            "waits": count(&reply["running"]["waits"]),
        }),
        Verb::Session(SessionVerb::Abort) => json!(count(&reply["aborted"])),
        Verb::Session(SessionVerb::Info) => json!(count(&reply["waits"])),
        Verb::Session(SessionVerb::Outcome) => json!([reply["state"], count(&reply["waits"])]),
        Verb::Session(SessionVerb::Answer) => reply["decision"].clone(),
        // These replies have only ids and numbers.
        Verb::Agent(AgentVerb::Prompt | AgentVerb::Checkpoint)
        | Verb::Session(SessionVerb::Prompt | SessionVerb::Rewind | SessionVerb::Resume) => {
            Value::Null
        }
        Verb::Agent(_) | Verb::Session(_) => reply.clone(),
    }
}

/// Starts a session, and prompts its worker.
async fn begin(world: &World, is_waiting: bool) -> Result<SessionId> {
    let members = [lead(&[]), member("worker", &["read", "write"])];
    let body = json!({ "dir": world.dir(), "members": members, "permissions": "careful" });
    let session = world.caller.start(&body).await?.session_id;
    let text = if is_waiting { "write it" } else { "hello" };
    let prompt = json!({ "text": text, "agent": "worker" });
    let to = session_at(&session, SessionVerb::Prompt);
    let _accepted: Value = world.caller.ask(&to, &prompt).await?;
    Ok(session)
}

/// Waits until the worker of a session waits or has ended its first turn.
async fn ready(world: &World, session: &SessionId, is_waiting: bool) -> Result<(AgentId, Facts)> {
    let caller = &world.caller;
    let wanted = match is_waiting {
        true => AgentState::Waiting,
        false => AgentState::Idle,
    };
    let (worker, wait) = eventually("the worker is as the test needs it", async || {
        let info = caller.session(session).await.ok()?;
        let worker = info.agents.iter().find(|agent| agent.name == "worker")?;
        let log = caller.log(session, 1).await.ok()?;
        let has_begun = log.iter().any(|event| event.kind == "message");
        let is_ready = has_begun && worker.state == wanted;
        is_ready.then(|| (worker.id.clone(), info.waits.first().cloned()))
    })
    .await?;
    let messages = caller.messages(session, Some("worker")).await?;
    let facts = Facts {
        wait,
        first_message: messages.first().context("a message")?.id,
    };
    Ok((worker, facts))
}

impl Case {
    /// Starts a session for each body of each verb, whose worker is idle or waits.
    async fn start_all(world: &World) -> Result<Vec<Self>> {
        let mut begun = Vec::new();
        for is_waiting in [false, true] {
            let some = Facts {
                wait: is_waiting.then(|| CallId::parse("none").unwrap()),
                first_message: 1,
            };
            for verb in verbs() {
                for nth in 0..bodies(verb, &some).len() {
                    let session = begin(world, is_waiting).await?;
                    begun.push((session, verb, nth, is_waiting));
                }
            }
        }
        let mut cases = Vec::new();
        for (session, verb, nth, is_waiting) in begun {
            let (worker, facts) = ready(world, &session, is_waiting).await?;
            let mut bodies = bodies(verb, &facts).into_iter();
            cases.push(Self {
                verb,
                is_waiting,
                nth,
                body: bodies.nth(nth).context("a body")?,
                session,
                worker,
            });
        }
        Ok(cases)
    }

    fn name(&self) -> String {
        let state = if self.is_waiting { "waits" } else { "is idle" };
        format!("{:?} {} to a worker that {state}", self.verb, self.nth)
    }

    fn address(&self) -> Address {
        match self.verb {
            Verb::Agent(verb) => agent_at(&self.worker, verb),
            Verb::Session(verb) => session_at(&self.session, verb),
        }
    }

    /// Returns whether the verb makes the worker begin or end a turn.
    fn moves_a_turn(&self) -> bool {
        match self.verb {
            Verb::Agent(AgentVerb::Prompt | AgentVerb::Nudge)
            | Verb::Session(SessionVerb::Prompt) => !self.is_waiting,
            Verb::Session(SessionVerb::Answer) => true,
            Verb::Agent(AgentVerb::Abort | AgentVerb::Stop)
            | Verb::Session(SessionVerb::Abort | SessionVerb::Close | SessionVerb::Rewind) => {
                self.is_waiting
            }
            Verb::Agent(_) | Verb::Session(_) => false,
        }
    }

    /// Checks what must be true of the outcome, whether the worker is loaded or not.
    fn check(&self, outcome: &Outcome) {
        let is_abort = matches!(
            self.verb,
            Verb::Agent(AgentVerb::Abort) | Verb::Session(SessionVerb::Abort)
        );
        if is_abort && self.is_waiting {
            let name = self.name();
            let left = (outcome.waits, outcome.state);
            assert_eq!(left, (0, AgentState::Idle), "{name}");
            let mut kinds = outcome.kinds.iter();
            assert!(kinds.any(|kind| kind == "wait_closed"), "{name}");
        }
    }

    async fn written(&self, world: &World) -> Result<Vec<Envelope>> {
        let mut log = world.caller.log(&self.session, 1).await?;
        log.retain(|event| event.agent_id == self.worker);
        Ok(log)
    }

    /// Sends the command, as often as the reply says that it was not executed, and waits until the
    /// worker has done what follows from it.
    async fn perform(&self, world: &World) -> Result<Outcome> {
        let before = self.written(world).await?.len();
        let reply = within(TAKEN_UP, "a final reply", async || {
            let sent = world.caller.try_request(&self.address(), &self.body).await;
            let reply: Result<Value, Refusal> = sent.ok()?;
            let is_moving = reply
                .as_ref()
                .is_err_and(|refusal| matches!(refusal.code, Code::Unavailable | Code::StaleEpoch));
            (!is_moving).then_some(reply)
        });
        let reply = reply.await.with_context(|| self.name())?;
        let moves = reply.is_ok() && self.moves_a_turn();
        let kinds = within(TAKEN_UP, "the worker has settled", async || {
            let log = self.written(world).await.ok()?;
            let new = log.get(before..)?;
            let is_over = log
                .iter()
                .rfind(|event| event.kind == "turn_start" || ends_a_turn(event));
            let is_still = is_over.is_some_and(ends_a_turn) || !moves;
            let has_moved = !moves || new.iter().any(ends_a_turn);
            (is_still && has_moved).then(|| {
                new.iter()
                    .map(|event| event.kind.clone())
                    .collect::<Vec<_>>()
            })
        });
        let kinds = kinds
            .await
            .with_context(|| format!("{}: {reply:?}", self.name()))?;
        let info = world.caller.session(&self.session).await?;
        let worker = info.agents.iter().find(|agent| agent.id == self.worker);
        Ok(Outcome {
            reply: reply
                .map(|reply| said(self.verb, &reply))
                .map_err(|refusal| refusal.code),
            kinds,
            state: worker.context("the worker")?.state,
            waits: info.waits.len(),
        })
    }
}

fn ends_a_turn(event: &Envelope) -> bool {
    matches!(event.kind.as_str(), "turn_end" | "error")
}

/// Waits until the node has unloaded the workers, which it loads before that.
async fn unloaded(world: &World, node: &Node, cases: &[Case]) -> Result<()> {
    let from = node.log().len();
    for case in cases {
        world.caller.agent(&case.worker).await?;
    }
    let is_gone = |log: &str, case: &Case| {
        let mut lines = log
            .lines()
            .filter(|line| line.contains(case.worker.as_str()));
        lines.any(|line| line.contains("\"parked\""))
    };
    eventually("the workers are unloaded", async || {
        let log = node.log();
        let log = log.get(from..)?;
        cases.iter().all(|case| is_gone(log, case)).then_some(())
    })
    .await
}

impl Situation {
    /// Brings the workers of a node, which are unloaded, into the situation. Returns the nodes that
    /// run then.
    async fn arise(self, world: &World, mut node: Node) -> Result<Vec<Node>> {
        let other = || world.node_with(ENVIRONMENT);
        Ok(match self {
            Self::Parked => vec![node],
            Self::Elsewhere => {
                let other = other().await?;
                until_all_see(world, &[&node, &other]).await?;
                vec![node, other]
            }
            Self::Left => {
                node.leave().await?;
                vec![other().await?]
            }
            Self::Killed => {
                let other = other().await?;
                until_all_see(world, &[&node, &other]).await?;
                node.kill().await?;
                vec![other]
            }
        })
    }
}

/// Performs every case with loaded workers, and with workers in the situation, and checks that the
/// outcomes are the same.
async fn is_as_loaded(backend: Backend, situation: Situation) -> Result<()> {
    let world = World::start(backend, script()).await?;
    let node = world.node_with(ENVIRONMENT).await?;
    let mut wanted = Vec::new();
    for case in Case::start_all(&world).await? {
        world.caller.agent(&case.worker).await?;
        let outcome = case.perform(&world).await?;
        case.check(&outcome);
        wanted.push((case.name(), outcome));
    }
    let cases = Case::start_all(&world).await?;
    unloaded(&world, &node, &cases).await?;
    let nodes = situation.arise(&world, node).await?;
    let mut differing = Vec::new();
    for (case, (name, wanted)) in cases.iter().zip(&wanted) {
        assert_eq!(case.name(), *name);
        let found = case.perform(&world).await?;
        if found != *wanted {
            differing.push(format!(
                "{name}\n  loaded: {wanted:?}\n  {situation:?}: {found:?}"
            ));
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    world.check_model()?;
    let excused: &[&str] = match situation {
        Situation::Killed => &[""],
        // The other node may take the agents of a node that leaves before it has released all.
        Situation::Elsewhere => &["cannot release the lease"],
        Situation::Parked | Situation::Left => &[],
    };
    for node in nodes {
        node.leave_despite(excused).await?;
    }
    Ok(())
}

macro_rules! situations {
    ($($(#[$attribute:meta])* $name:ident: $situation:ident on $backend:ident;)+) => {$(
        #[tokio::test(flavor = "multi_thread")]
        $(#[$attribute])*
        async fn $name() -> Result<()> {
            is_as_loaded(Backend::$backend, Situation::$situation).await
        }
    )+};
}

situations! {
    verbs_reach_a_parked_agent_on_sqlite: Parked on Sqlite;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_an_agent_whose_node_left_on_sqlite: Left on Sqlite;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_a_parked_agent_of_another_node_on_sqlite: Elsewhere on Sqlite;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_an_agent_whose_node_was_killed_on_sqlite: Killed on Sqlite;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_a_parked_agent_on_postgres: Parked on Postgres;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_an_agent_whose_node_left_on_postgres: Left on Postgres;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_a_parked_agent_of_another_node_on_postgres: Elsewhere on Postgres;
    #[ignore = "takes ten seconds of CPU time: make test-all"]
    verbs_reach_an_agent_whose_node_was_killed_on_postgres: Killed on Postgres;
}
