//! Clients send a request every 10 ms while NATS, the store or both are away, and shortly after
//! their return, when a node does not yet work again. Each request that was acknowledged has its
//! outcome, on a quiet machine within 15 s of the return. The test prints the time that it took.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use async_nats::{ConnectOptions, connection::State};
use planck_common::{
    CallId, InputId, SessionId,
    command::{Aborted, Accepted, Answered, SessionVerb, SessionsVerb, Waits},
    envelope::Envelope,
    event::{Event, TurnOutcome},
    reply::Code,
    wait::WaitDecision,
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    caller::{Caller, session_at, sessions},
    eventually::eventually,
    node::Node,
    world::{Backend, World},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

/// The time between two requests.
const EVERY: Duration = Duration::from_millis(10);
/// How long a client waits for a reply. It does not repeat the request, because a repetition would
/// hide that the first one was lost.
const TRY: Duration = Duration::from_secs(2);
/// How long the clients send requests before the outage and after the return.
const BEFORE: Duration = Duration::from_millis(200);
const AFTER: Duration = Duration::from_secs(2);
/// How long after the return an acknowledged request may be without an outcome. A request that was
/// lost never has one, and a machine with ten times the load is ten times as slow.
const OUTCOME: Duration = Duration::from_secs(90);
/// The number of calls that wait for an approval.
const CALLS: usize = 100;
/// Texts that a node may log in an outage.
const EXCUSED: &[&str] = &[
    "NATS",
    "nats",
    "suspended",
    "registry",
    "store",
    "database",
    "Postgres",
    "sweep",
];

/// What is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    Nats,
    Store,
    Both,
}

fn script() -> Script {
    let calls = (0..CALLS).fold(Reply::new(), |reply, n| {
        let file = format!("out-{n}");
        reply.and_call("write", json!({ "path": file, "content": "x" }))
    });
    let question = json!({ "agent": "helper", "question": "help me" });
    let slowly = Reply::text("word ".repeat(2_000)).pace(Pace::per_second(20.0).chunk(5));
    Script::new()
        .rule(When::any().last("help me"), "Helped.")
        .rule(When::any().result_of("write"), "Written.")
        .rule(When::any().last("write all"), calls)
        .rule(When::any().last("hold"), slowly)
        .rounds(
            When::any().user("ask"),
            [Reply::call("ask_agent", question), Reply::text("Asked.")],
        )
        .always("Talked.")
}

/// The sessions to which the clients send requests, each for another kind of request.
struct Scene {
    caller: Caller,
    /// An agent that answers at once.
    talks: SessionId,
    /// An agent that asks another one.
    asks: SessionId,
    /// An agent whose turns end only if they are aborted.
    holds: SessionId,
    /// An agent whose calls wait for approvals.
    waits: SessionId,
    acknowledged: Mutex<Acknowledged>,
    open: Vec<CallId>,
}

/// What was acknowledged and has no outcome that the test has seen.
#[derive(Default)]
struct Acknowledged {
    prompts: BTreeSet<(SessionId, InputId)>,
    answers: BTreeMap<CallId, WaitDecision>,
    /// All that was acknowledged, with and without an outcome.
    counts: BTreeMap<&'static str, usize>,
    /// Refusals after which a client would give up.
    refusals: Vec<String>,
}

impl Scene {
    async fn set(world: &World) -> Result<Self> {
        let options = ConnectOptions::new()
            .request_timeout(Some(TRY))
            .ping_interval(Duration::from_secs(1))
            // The clients are back before the nodes are.
            .reconnect_delay_callback(|_| Duration::from_millis(5));
        let caller = Caller {
            nats: options.connect(world.nats.url()).await?,
        };
        let lead = json!({ "type": "lead", "tools": ["spawn_agent"] });
        let helper = json!({ "type": "helper", "tools": ["read"] });
        let writer = json!({ "type": "writer", "tools": ["write"] });
        let start = async |members: Value, prompt: Option<&str>| {
            let mut body = json!({
                "dir": world.dir(),
                "members": members,
                "permissions": "careful",
            });
            if let Some(prompt) = prompt {
                body["prompt"] = prompt.into();
            }
            let started = eventually("a session starts", async || {
                world.caller.start(&body).await.ok()
            });
            anyhow::Ok(started.await?.session_id)
        };
        let waits = start(json!([writer]), Some("write all")).await?;
        let filter = json!({ "session": waits, "limit": CALLS });
        let open = eventually("every call waits", async || {
            let to = sessions(SessionsVerb::Waits);
            let page: Waits = world.caller.read(&to, &filter).await.ok()?;
            (page.waits.len() == CALLS).then_some(page.waits)
        });
        Ok(Self {
            talks: start(json!([helper]), None).await?,
            asks: start(json!([lead, helper]), None).await?,
            holds: start(json!([helper]), None).await?,
            open: open.await?.into_iter().map(|wait| wait.id).collect(),
            waits,
            caller,
            acknowledged: Mutex::default(),
        })
    }

    fn acknowledged(&self) -> MutexGuard<'_, Acknowledged> {
        self.acknowledged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request every 10 ms while the client is connected.
    async fn keep_sending(self: Arc<Self>, stop: Arc<AtomicBool>) {
        let (mut ticks, mut tries) = (interval(EVERY), JoinSet::new());
        for number in 0.. {
            ticks.tick().await;
            while tries.try_join_next().is_some() {}
            if stop.load(Ordering::Relaxed) {
                break;
            }
            if self.caller.nats.connection_state() == State::Connected {
                let scene = Arc::clone(&self);
                tries.spawn(async move { scene.send(number).await });
            }
        }
        while tries.join_next().await.is_some() {}
    }

    async fn send(&self, number: usize) {
        match number % 5 {
            0 => self.prompt("talk", &self.talks).await,
            1 => self.prompt("ask", &self.asks).await,
            2 => self.prompt("hold", &self.holds).await,
            3 => self.abort().await,
            _ => self.answer(number).await,
        }
    }

    async fn prompt(&self, text: &'static str, session: &SessionId) {
        let id = InputId::mint();
        let body = json!({ "text": text, "prompt_id": id });
        let accepted = self.request::<Accepted>(session, SessionVerb::Prompt, &body);
        if accepted.await.is_some() {
            let mut acknowledged = self.acknowledged();
            acknowledged.prompts.insert((session.clone(), id));
            *acknowledged.counts.entry(text).or_default() += 1;
        }
    }

    async fn abort(&self) {
        let body = json!({});
        let aborted = self.request::<Aborted>(&self.holds, SessionVerb::Abort, &body);
        if let Some(aborted) = aborted.await {
            let mut acknowledged = self.acknowledged();
            *acknowledged.counts.entry("abort").or_default() += aborted.aborted.len();
        }
    }

    async fn answer(&self, number: usize) {
        let open = {
            let answers = &self.acknowledged().answers;
            let open = self.open.iter().filter(|wait| !answers.contains_key(*wait));
            open.cloned().collect::<Vec<_>>()
        };
        let Some(wait) = number
            .checked_rem(open.len())
            .and_then(|place| open.get(place))
        else {
            return;
        };
        let body = json!({ "wait": wait, "decision": "allow" });
        let answered = self.request::<Answered>(&self.waits, SessionVerb::Answer, &body);
        if let Some(answered) = answered.await {
            let mut acknowledged = self.acknowledged();
            let other = acknowledged
                .answers
                .insert(answered.wait, answered.decision);
            *acknowledged.counts.entry("answer").or_default() += usize::from(other.is_none());
        }
    }

    /// Sends a request once. Returns `None` if there is no reply or a refusal.
    async fn request<T: DeserializeOwned>(
        &self,
        session: &SessionId,
        verb: SessionVerb,
        body: &Value,
    ) -> Option<T> {
        let to = session_at(session, verb);
        let tried = timeout(TRY, self.caller.try_request::<T>(&to, body)).await;
        let replied = tried.ok()?.ok()?;
        if let Err(refusal) = &replied
            && !refusal.retryable
            && refusal.code != Code::OutcomeUnknown
        {
            self.acknowledged()
                .refusals
                .push(format!("{to} {body}: {refusal}"));
        }
        replied.ok()
    }

    /// Waits until everything that was acknowledged has its outcome.
    async fn settled(&self, returned: Instant) -> Result<()> {
        let mut logs = [&self.talks, &self.asks, &self.holds, &self.waits]
            .map(|session| (session, Vec::<Envelope>::new()));
        loop {
            // Turns end only if they are aborted.
            self.abort().await;
            for (session, log) in &mut logs {
                let from = log.last().and_then(|event| event.seq).unwrap_or_default();
                if let Ok(Ok(more)) = timeout(TRY, self.caller.log(session, from + 1)).await {
                    log.extend(more);
                }
            }
            let left = self.without_outcome(&logs);
            if left.is_empty() {
                break;
            }
            if returned.elapsed() > OUTCOME {
                let some: Vec<&String> = left.iter().take(10).collect();
                bail!(
                    "{} have no outcome {OUTCOME:?} after the return, for example {some:?}",
                    left.len()
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
        let acknowledged = self.acknowledged();
        println!(
            "acknowledged: {:?}, the last outcome came {:?} after the return",
            acknowledged.counts,
            returned.elapsed()
        );
        let refusals = &acknowledged.refusals;
        ensure!(refusals.is_empty(), "refused for good: {refusals:?}");
        let has_aborted = |event: &Envelope| matches!(event.event(), Some(Ok(Event::TurnEnd(end))) if end.outcome == TurnOutcome::Aborted);
        let was_aborted = acknowledged
            .counts
            .get("abort")
            .is_some_and(|agents| *agents > 0);
        let holds = &logs[2].1;
        ensure!(
            !was_aborted || holds.iter().any(has_aborted),
            "no turn was aborted"
        );
        Ok(())
    }

    fn without_outcome(&self, logs: &[(&SessionId, Vec<Envelope>)]) -> Vec<String> {
        let mut acknowledged = self.acknowledged();
        for (session, log) in logs {
            for event in log {
                let inputs = match event.event() {
                    Some(Ok(Event::TurnEnd(end))) => end.inputs,
                    Some(Ok(Event::Error(error))) => error.inputs,
                    _ => continue,
                };
                for input in inputs {
                    acknowledged.prompts.remove(&((*session).clone(), input));
                }
            }
        }
        let log = &logs[3].1;
        let mut left: Vec<String> = Vec::new();
        for (session, input) in &acknowledged.prompts {
            left.push(format!("prompt {input} of {session}"));
        }
        let decided: BTreeMap<CallId, WaitDecision> = log
            .iter()
            .filter_map(|event| match event.event() {
                Some(Ok(Event::WaitClosed(wait))) => Some((wait.id, wait.decision)),
                _ => None,
            })
            .collect();
        let ended: BTreeSet<CallId> = log
            .iter()
            .filter_map(|event| match event.event() {
                Some(Ok(Event::ToolEnd(end))) => Some(end.call_id),
                _ => None,
            })
            .collect();
        for (wait, decision) in &acknowledged.answers {
            if decided.get(wait) != Some(decision) || !ended.contains(wait) {
                left.push(format!("answer {decision:?} to {wait}"));
            }
        }
        left
    }
}

/// Lets the cluster go through an outage of each length, in milliseconds.
async fn outages(backend: Backend, nodes: usize, away: Away, lengths: &[u64]) -> Result<()> {
    let mut world = match backend {
        Backend::Sqlite => World::start(backend, script()).await?,
        Backend::Postgres => World::start_alone(script()).await?,
    };
    let mut hosts: Vec<Node> = Vec::new();
    // A late prompt may open a closed session again, whose turn then does not end.
    let short = [("PLANCK_NODE_DRAIN_TIMEOUT", "5s")];
    for _ in 0..nodes {
        hosts.push(world.node_with(&short).await?);
    }
    for length in lengths {
        let length = Duration::from_millis(*length);
        outage(&mut world, away, length).await.with_context(|| {
            format!("{away:?} away for {length:?} from {nodes} nodes on {backend:?}")
        })?;
    }
    world.check_model()?;
    for node in hosts {
        node.leave_despite(EXCUSED).await?;
    }
    Ok(())
}

async fn outage(world: &mut World, away: Away, length: Duration) -> Result<()> {
    let scene = Arc::new(Scene::set(world).await?);
    let stop = Arc::<AtomicBool>::default();
    let sending = tokio::spawn(Arc::clone(&scene).keep_sending(Arc::clone(&stop)));
    sleep(BEFORE).await;
    let frozen = match away {
        Away::Nats => None,
        Away::Store | Away::Both => Some(world.pause_database()?),
    };
    if away != Away::Store {
        world.nats.kill()?;
    }
    sleep(length).await;
    drop(frozen);
    if away != Away::Store {
        world.nats.restart()?;
    }
    let returned = Instant::now();
    sleep(AFTER).await;
    stop.store(true, Ordering::Relaxed);
    sending.await?;
    scene.settled(returned).await?;
    // A prompt whose reply came too late may have begun another turn that does not end.
    let close = session_at(&scene.holds, SessionVerb::Close);
    world.caller.read::<Value>(&close, &json!({})).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_around_an_outage_of_nats_have_their_outcome() -> Result<()> {
    outages(Backend::Sqlite, 1, Away::Nats, &[100, 2_500]).await
}

/// The lengths of outages up to the longest that is promised.
const LENGTHS: &[u64] = &[100, 700, 2_500, 5_000, 30_000];

macro_rules! outages_of_all_lengths {
    ($($name:ident: $backend:ident, $nodes:literal, $away:ident;)+) => {$(
        #[tokio::test(flavor = "multi_thread")]
        #[ignore = "takes more than a minute: make test-all"]
        async fn $name() -> Result<()> {
            outages(Backend::$backend, $nodes, Away::$away, LENGTHS).await
        }
    )+};
}

outages_of_all_lengths! {
    requests_to_one_node_outlive_outages_of_nats_on_sqlite: Sqlite, 1, Nats;
    requests_to_three_nodes_outlive_outages_of_nats_on_sqlite: Sqlite, 3, Nats;
    requests_to_three_nodes_outlive_outages_of_nats_on_postgres: Postgres, 3, Nats;
    requests_to_one_node_outlive_outages_of_postgres: Postgres, 1, Store;
    requests_to_three_nodes_outlive_outages_of_postgres: Postgres, 3, Store;
    requests_to_one_node_outlive_outages_of_nats_and_postgres: Postgres, 1, Both;
    requests_to_three_nodes_outlive_outages_of_nats_and_postgres: Postgres, 3, Both;
}
