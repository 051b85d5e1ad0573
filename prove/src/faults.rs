//! Inflicts the faults, and gathers what comes of each.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_nats::jetstream::stream::ClusterInfo;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Answer, text},
    evidence::{AcceptedPrompt, FaultEvidence, FaultKind, TeamEvidence, WaitEvidence},
    link::LinkState,
    load::{self, Load},
    nats_server::NatsServer,
    processes::{LEAVES, processes_with},
    stage::{Node, Stage},
};

/// How long a cluster may take to go on before the proof itself gives up.
const GOES_ON: Duration = Duration::from_secs(60);
/// How long a request may take while no fault is inflicted.
const CALM: Duration = Duration::from_secs(30);
/// How long a team may take until all of it is at work, and until it is closed. It may be large.
const TEAM: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(5);

/// Inflicts a fault. `number` chooses the session whose node it affects.
pub async fn inflict(
    kind: FaultKind,
    lasts: Duration,
    number: usize,
    stage: &mut Stage,
    load: &Load,
) -> Result<FaultEvidence> {
    match kind {
        FaultKind::Kill
        | FaultKind::Freeze
        | FaultKind::Cut
        | FaultKind::Sever
        | FaultKind::Drain => end_a_node(kind, stage, session_of(load, number)?).await,
        FaultKind::Hiccup => hiccup(lasts, stage, session_of(load, number)?).await,
        FaultKind::Team => end_a_team(stage).await,
        FaultKind::NatsAway | FaultKind::NatsKilled | FaultKind::NatsWiped => {
            nats_away(kind, lasts, stage).await?;
            after_outage(kind, lasts, stage, load).await
        }
        FaultKind::LeaderKilled => lose_the_leader(lasts, stage, load).await,
        FaultKind::StoreAway | FaultKind::StoreCut => {
            let store = stage.store.as_ref().context("SQLite is never away")?;
            store.set(match kind == FaultKind::StoreCut {
                true => LinkState::Cut,
                false => LinkState::Stalled,
            });
            sleep(lasts).await;
            store.set(LinkState::Up);
            after_outage(kind, lasts, stage, load).await
        }
    }
}

/// Ends all servers of the proof's own NATS and starts them again, or cuts the links of all nodes to the
/// user's.
async fn nats_away(kind: FaultKind, lasts: Duration, stage: &mut Stage) -> Result<()> {
    let is_of_user = stage.nats.own.is_empty();
    if is_of_user {
        let nodes = stage.nodes.iter();
        nodes.for_each(|node| node.set_links(LinkState::Cut));
    }
    for server in &mut stage.nats.own {
        match kind == FaultKind::NatsKilled {
            true => server.kill().await?,
            false => server.stop().await,
        }
    }
    for server in &stage.nats.own {
        if kind == FaultKind::NatsWiped {
            server.wipe()?;
        }
    }
    sleep(lasts).await;
    for server in &mut stage.nats.own {
        server.restart().await?;
    }
    if is_of_user {
        let nodes = stage.nodes.iter();
        nodes.for_each(|node| node.set_links(LinkState::Up));
    }
    Ok(())
}

/// Kills the server of NATS that leads the stream of the registry. Starts it again after every session has
/// answered without it, and waits until each server has the whole registry.
async fn lose_the_leader(lasts: Duration, stage: &mut Stage, load: &Load) -> Result<FaultEvidence> {
    let leader = registry_until(stage, |cluster| cluster.leader.clone()).await?;
    let began = Instant::now();
    server(stage, &leader)?.kill().await?;
    let went_on = all_answer(load).await;
    sleep(lasts.saturating_sub(began.elapsed())).await;
    let lasted = began.elapsed();
    server(stage, &leader)?.restart().await?;
    let is_whole = |cluster: &ClusterInfo| {
        let mut others = cluster.replicas.iter();
        (cluster.leader.is_some() && others.all(|other| other.current)).then_some(())
    };
    registry_until(stage, is_whole).await?;
    until_all_serve(stage).await;
    Ok(FaultEvidence {
        lasted: Some(lasted),
        went_on,
        ..FaultEvidence::of(FaultKind::LeaderKilled)
    })
}

fn server<'a>(stage: &'a mut Stage, name: &str) -> Result<&'a mut NatsServer> {
    let mut servers = stage.nats.own.iter_mut();
    let server = servers.find(|server| server.name == name);
    server.with_context(|| format!("{name} is no server of ours"))
}

/// Reads which servers have the registry until `of` returns something of it.
async fn registry_until<T>(stage: &Stage, of: impl Fn(&ClusterInfo) -> Option<T>) -> Result<T> {
    let until = Instant::now() + GOES_ON;
    while Instant::now() < until {
        let registry = stage.registry().await.ok();
        if let Some(found) = registry.and_then(|info| of(info.cluster.as_ref()?)) {
            return Ok(found);
        }
        sleep(LOOK * 20).await;
    }
    bail!("the servers of NATS do not agree about the registry within {GOES_ON:?}")
}

fn session_of(load: &Load, number: usize) -> Result<String> {
    let session = load.sessions.get(number % load.sessions.len().max(1));
    session.cloned().context("there is no session")
}

/// Stops the node of a session for a moment.
async fn hiccup(lasts: Duration, stage: &Stage, session: String) -> Result<FaultEvidence> {
    let victim = host_of(stage, &session).await?;
    let mut nodes = stage.nodes.iter();
    let node = nodes.find(|node| node.id == victim);
    let node = node.context("the victim is no node of ours")?;
    node.process.freeze().await?;
    sleep(lasts).await;
    node.process.signal(Signal::SIGCONT)?;
    Ok(FaultEvidence {
        node: Some(victim),
        session: Some(session),
        lasted: Some(lasts),
        ..FaultEvidence::of(FaultKind::Hiccup)
    })
}

/// Waits until every session has answered another prompt.
async fn after_outage(
    kind: FaultKind,
    lasted: Duration,
    stage: &Stage,
    load: &Load,
) -> Result<FaultEvidence> {
    let went_on = all_answer(load).await;
    until_all_serve(stage).await;
    Ok(FaultEvidence {
        lasted: Some(lasted),
        went_on,
        ..FaultEvidence::of(kind)
    })
}

/// Waits until every session has answered another prompt, and returns how long that took.
async fn all_answer(load: &Load) -> Option<Duration> {
    let began = Instant::now();
    // Each client waits for one answer, so that many more answers are those of all.
    let wanted = load.answered() + load.sessions.len() + 1;
    let mut went_on = None;
    while went_on.is_none() && began.elapsed() < GOES_ON {
        sleep(LOOK).await;
        went_on = (load.answered() >= wanted).then(|| began.elapsed());
    }
    went_on
}

/// Waits until every node is in service. A node that never is appears in other checks.
async fn until_all_serve(stage: &Stage) {
    let until = Instant::now() + CALM;
    while Instant::now() < until {
        if let Answer::Ok(listed) = stage.caller.try_ask("cmd.nodes.list", &json!({})).await
            && let Some(nodes) = listed.get("nodes").and_then(Value::as_array)
        {
            let serves = |id: &str| {
                let mut nodes = nodes.iter();
                nodes.any(|node| text(node, "id") == id && text(node, "state") == "alive")
            };
            if stage.nodes.iter().all(|node| serves(&node.id)) {
                return;
            }
        }
        sleep(LOOK * 20).await;
    }
}

/// Starts another node, so that as many survive as there were. Then ends the node of a session.
async fn end_a_node(kind: FaultKind, stage: &mut Stage, session: String) -> Result<FaultEvidence> {
    let victim = host_of(stage, &session).await?;
    stage.add().await?;
    let mut node = stage
        .take(&victim)
        .context("the victim is no node of ours")?;
    let began = Instant::now();
    match kind {
        FaultKind::Kill => node.process.kill().await?,
        FaultKind::Freeze => node.process.freeze().await?,
        FaultKind::Drain => node.process.signal(Signal::SIGTERM)?,
        FaultKind::Sever => node.set_links(LinkState::Cut),
        FaultKind::Cut
        | FaultKind::Hiccup
        | FaultKind::Team
        | FaultKind::NatsAway
        | FaultKind::NatsKilled
        | FaultKind::NatsWiped
        | FaultKind::LeaderKilled
        | FaultKind::StoreAway
        | FaultKind::StoreCut => node.set_links(LinkState::Stalled),
    }
    // A node that leaves may first release the lease, and then another one takes it from no node.
    let went_on = match kind == FaultKind::Drain {
        true => moved(stage, &session, began, &victim).await,
        false => gone_on(stage, &session, began, &victim).await,
    };
    // A session may go on before the verdict: SQLite knows the processes of its machine.
    while kind.is_death() && began.elapsed() < GOES_ON && stage.timeline.death(&victim).is_none() {
        sleep(LOOK).await;
    }
    let exit = match kind == FaultKind::Kill {
        true => None,
        false => ended(&mut node).await?,
    };
    let verdict = stage.timeline.death(&victim);
    Ok(FaultEvidence {
        node: Some(victim),
        session: Some(session),
        verdict: verdict.map(|at| at.duration_since(began)),
        went_on,
        exit,
        ..FaultEvidence::of(kind)
    })
}

/// Lets a node run again, and waits for its end. A node that goes on is killed.
async fn ended(node: &mut Node) -> Result<Option<i32>> {
    // A node that drains was never stopped.
    node.process.signal(Signal::SIGCONT)?;
    node.set_links(LinkState::Up);
    let exit = node.process.ended(LEAVES).await?;
    if exit.is_none() {
        node.process.kill().await?;
    }
    Ok(exit)
}

async fn gone_on(stage: &Stage, session: &str, began: Instant, gone: &str) -> Option<Duration> {
    while began.elapsed() < GOES_ON {
        if let Some(at) = stage.timeline.resumed(session, began, gone) {
            return Some(at.duration_since(began));
        }
        sleep(LOOK).await;
    }
    None
}

/// Asks for the state of a session until `of` returns something of it. Returns `None` if it never does.
async fn session_until<T>(
    stage: &Stage,
    session: &str,
    patience: Duration,
    of: impl Fn(&Value) -> Option<T>,
) -> Option<T> {
    let words = format!("cmd.session.{session}.info");
    let until = Instant::now() + patience;
    while Instant::now() < until {
        if let Answer::Ok(info) = stage.caller.try_ask(&words, &json!({})).await
            && let Some(found) = of(&info)
        {
            return Some(found);
        }
        sleep(LOOK).await;
    }
    None
}

/// Waits until another node hosts the orchestrator of a session.
async fn moved(stage: &Stage, session: &str, began: Instant, from: &str) -> Option<Duration> {
    let moved = |info: &Value| (!["", from].contains(&text(info, "owner"))).then_some(());
    session_until(stage, session, GOES_ON, moved).await?;
    Some(began.elapsed())
}

/// Waits until one of the stage's nodes hosts the orchestrator of a session, and returns its id.
async fn host_of(stage: &Stage, session: &str) -> Result<String> {
    let host = |info: &Value| {
        let owner = text(info, "owner");
        let mut nodes = stage.nodes.iter();
        nodes
            .find(|node| node.id == owner)
            .map(|node| node.id.clone())
    };
    let host = session_until(stage, session, GOES_ON, host).await;
    host.with_context(|| format!("no node hosts session {session} after {GOES_ON:?}"))
}

/// Starts a team that spans the nodes and has to end with the node of its orchestrator, kills that node,
/// and waits for the end of the team's processes and model calls.
async fn end_a_team(stage: &mut Stage) -> Result<FaultEvidence> {
    let start = json!({
        "workspace": "prove", "prompt": "Hold all.", "on_node_death": "stop",
        "members": [{"type": "lead", "tools": ["bash", "spawn_agent"]}],
    });
    let session = load::start_session(&stage.caller, start).await?;
    let mark = format!("HELD=\"{}\"", stage.ledger().display());
    let until = Instant::now() + TEAM;
    let (runners, talkers) = load::work_of_team(stage.workers());
    while shells(&mark) < runners || stage.model.streams() < talkers {
        if Instant::now() > until {
            bail!("the team of session {session} does not begin its work within {TEAM:?}");
        }
        sleep(LOOK * 4).await;
    }
    let processes = shells(&mark);
    let victim = host_of(stage, &session).await?;
    stage.add().await?;
    let mut node = stage
        .take(&victim)
        .context("the victim is no node of ours")?;
    let began = Instant::now();
    node.process.kill().await?;
    let (mut dead, mut gone) = (None, None);
    while began.elapsed() < GOES_ON && (dead.is_none() || gone.is_none()) {
        sleep(LOOK * 2).await;
        dead = stage.timeline.death(&victim);
        // The calls of other sessions are short, so that now and then there is none.
        let is_gone = || stage.model.streams() == 0 && processes_with(&mark).is_empty();
        gone = gone.or_else(|| is_gone().then(Instant::now));
    }
    let closed = |info: &Value| {
        let agents = info.get("agents").and_then(Value::as_array);
        let is_held = |agent: &Value| agent.get("node_id").is_some_and(|node| !node.is_null());
        let is_closed = text(info, "state") == "closed" && !agents?.iter().any(is_held);
        is_closed.then_some(())
    };
    let closed = session_until(stage, &session, TEAM, closed).await;
    let team = TeamEvidence {
        processes,
        model_calls: talkers,
        stopped: dead.and_then(|dead| Some(gone?.saturating_duration_since(dead))),
        is_closed: closed.is_some(),
    };
    Ok(FaultEvidence {
        node: Some(victim),
        session: Some(session),
        verdict: dead.map(|dead| dead.duration_since(began)),
        team: Some(team),
        ..FaultEvidence::of(FaultKind::Team)
    })
}

/// Returns how many shells have these words on their command line. What confines a tool has its command on
/// its own command line, too.
fn shells(words: &str) -> usize {
    let lines = processes_with(words);
    let is_shell = |line: &&String| {
        let program = line.split(' ').next().unwrap_or_default();
        program.ends_with("bash") || program.ends_with("/sh") || program == "sh"
    };
    lines.iter().filter(is_shell).count()
}

/// Lets a call wait for a decision, and has two people decide at the same moment, each in another way.
/// Returns the prompt of the call, too.
pub async fn decide_twice(stage: &Stage, number: usize) -> Result<(WaitEvidence, AcceptedPrompt)> {
    let caller = &stage.caller;
    let start = json!({
        "workspace": "prove", "permissions": "careful",
        "members": [{"type": "lead", "tools": ["bash"]}],
    });
    let session = load::start_session(caller, start).await?;
    let mark = format!("decided-{number}");
    load::prompt(caller, &session, &mark, &format!("asked {mark}")).await?;
    let waits = json!({"session": session});
    let until = Instant::now() + CALM;
    let wait = loop {
        let listed = caller.ask("cmd.sessions.waits", &waits, CALM).await?;
        let first = listed.pointer("/waits/0/id").and_then(Value::as_str);
        if let Some(wait) = first {
            break wait.to_owned();
        }
        if Instant::now() > until {
            bail!("no call of session {session} waits within {CALM:?}");
        }
        sleep(LOOK * 4).await;
    };
    let words = format!("cmd.session.{session}.answer");
    let answer = |decision: &str| {
        let body = json!({"wait": wait, "decision": decision, "by": format!("prove-{decision}")});
        let (words, caller) = (words.clone(), caller.clone());
        async move { caller.ask_or_be_refused(&words, &body, CALM).await }
    };
    let (one, other) = tokio::join!(answer("allow"), answer("deny"));
    // The later answer is refused, or gets the decision of the earlier one.
    let told = [one?, other?].into_iter().flatten();
    let wait = WaitEvidence {
        wait,
        told: told
            .map(|told| text(&told, "decision").to_owned())
            .collect(),
        mark: mark.clone(),
        session: session.clone(),
    };
    Ok((wait, AcceptedPrompt { session, id: mark }))
}
