//! Inflicts the faults, and gathers what comes of each.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    client::{Answer, text},
    evidence::{AcceptedPrompt, FaultEvidence, FaultKind, TeamEvidence, WaitEvidence},
    link::{Link, LinkState},
    load::{self, Load, WORKERS},
    processes::processes_with,
    stage::{LEAVES, Node, Stage},
};

/// How long a cluster may take to go on before the proof itself gives up.
const GOES_ON: Duration = Duration::from_secs(60);
/// How long a request may take while no fault is inflicted.
const CALM: Duration = Duration::from_secs(30);
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
        FaultKind::NatsAway | FaultKind::NatsWiped => {
            match &mut stage.nats.own {
                Some(own) => {
                    own.stop().await;
                    if kind == FaultKind::NatsWiped {
                        own.wipe()?;
                    }
                    sleep(lasts).await;
                    own.restart().await?;
                }
                None => away(stage.nodes.iter().map(|node| &node.link), lasts).await,
            }
            after_outage(kind, lasts, stage, load).await
        }
        FaultKind::StoreAway => {
            let store = stage.store.as_ref().context("SQLite is never away")?;
            store.set(LinkState::Stalled);
            sleep(lasts).await;
            store.set(LinkState::Up);
            after_outage(kind, lasts, stage, load).await
        }
    }
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

async fn away(links: impl Iterator<Item = &Link> + Clone, lasts: Duration) {
    links.clone().for_each(|link| link.set(LinkState::Cut));
    sleep(lasts).await;
    links.for_each(|link| link.set(LinkState::Up));
}

/// Waits until every session has answered another prompt.
async fn after_outage(
    kind: FaultKind,
    lasted: Duration,
    stage: &Stage,
    load: &Load,
) -> Result<FaultEvidence> {
    let began = Instant::now();
    // Each client waits for one answer, so that many more answers are those of all.
    let wanted = load.answered() + load.sessions.len() + 1;
    let mut went_on = None;
    while went_on.is_none() && began.elapsed() < GOES_ON {
        sleep(LOOK).await;
        went_on = (load.answered() >= wanted).then(|| began.elapsed());
    }
    until_all_serve(stage).await;
    Ok(FaultEvidence {
        lasted: Some(lasted),
        went_on,
        ..FaultEvidence::of(kind)
    })
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
        FaultKind::Sever => node.link.set(LinkState::Cut),
        FaultKind::Cut
        | FaultKind::Hiccup
        | FaultKind::Team
        | FaultKind::NatsAway
        | FaultKind::NatsWiped
        | FaultKind::StoreAway => node.link.set(LinkState::Stalled),
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
    node.link.set(LinkState::Up);
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
/// and waits for the end of the team's processes.
async fn end_a_team(stage: &mut Stage) -> Result<FaultEvidence> {
    let start = json!({
        "workspace": "prove", "prompt": "Hold all.", "on_node_death": "stop",
        "members": [{"type": "lead", "tools": ["bash", "spawn_agent"]}],
    });
    let session = load::start_session(&stage.caller, start).await?;
    let mark = format!("HELD=\"{}\"", stage.ledger().display());
    let until = Instant::now() + CALM;
    while shells(&mark) < WORKERS {
        if Instant::now() > until {
            bail!("the team of session {session} does not begin its work within {CALM:?}");
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
        gone = gone.or_else(|| processes_with(&mark).is_empty().then(Instant::now));
    }
    let closed = |info: &Value| (text(info, "state") == "closed").then_some(());
    let closed = session_until(stage, &session, CALM, closed).await;
    let team = TeamEvidence {
        processes,
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
