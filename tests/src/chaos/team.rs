//! Runs teams that span all nodes, kills the node of each orchestrator, and measures how long the
//! teams take to spawn and to stop.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use planck_common::{
    NodeId, SessionId,
    command::{Events, SessionState, SessionVerb, Started},
    envelope::Envelope,
    subject::Address,
};
use planck_scripted_model::{Pace, Reply, Script, When};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{Plan, stage::Stage};
use crate::{caller::session_at, eventually::within, node::count};

/// How many of a team's workers run an endless process. The others have an endless model stream.
const RUNNERS: usize = 12;
/// How many workers one answer spawns at most: the default of `limits.answer.max_calls`.
const OF_ONE_ANSWER: usize = 128;
/// The longest wait for any condition.
const LONG: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(5);

/// The measured times of one team.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// The time from the first `spawn_agent` until the last one has its result, according to the
    /// log.
    pub spawned: Duration,
    /// The time from the kill until a peer declared the node dead.
    pub detected: Duration,
    /// The time from the death record until no model call and no process of the team is left on any
    /// node.
    pub stopped: Duration,
}

pub fn script(workers: usize) -> Script {
    let worker = |n: usize| json!({ "type": "worker", "name": format!("w{n}"), "system_prompt": kind(n), "tools": ["bash"], "task": "{{last_user}}" });
    let numbers: Vec<usize> = (0..workers).collect();
    let spawned = |some: &[usize]| {
        some.iter().fold(Reply::new(), |reply, n| {
            reply.and_call("spawn_agent", worker(*n))
        })
    };
    let answers: Vec<Reply> = numbers
        .chunks(OF_ONE_ANSWER)
        .map(spawned)
        .chain([Reply::text("All are made.")])
        .collect();
    let hold = json!({ "command": "export HELD={{word_after:hold }}; sleep 1000; true", "timeout": 600_000 });
    Script::new()
        .rounds(When::any().tool("spawn_agent"), answers)
        .rule(When::any().system("You hold."), Reply::call("bash", hold))
        .always(Reply::text("word ".repeat(100)).pace(Pace::per_second(0.2)))
        .keep(10)
}

fn kind(number: usize) -> &'static str {
    if number < RUNNERS {
        "You hold."
    } else {
        "You talk."
    }
}

/// Runs one team after the other. Each round kills a node and starts another.
pub async fn run(plan: &Plan, stage: &mut Stage) -> Result<Vec<Round>> {
    let mut rounds = Vec::new();
    for number in 0..plan.teams {
        sleep(plan.calm).await;
        let mark = format!("{}-{}-{number}", std::process::id(), plan.seed);
        let round = one(plan.workers, stage, &mark).await;
        rounds.push(round.with_context(|| format!("team {number} of seed {}", plan.seed))?);
    }
    Ok(rounds)
}

async fn one(workers: usize, stage: &mut Stage, mark: &str) -> Result<Round> {
    let start = json!({
        "dir": stage.world.dir(), "members": [{ "type": "lead", "tools": ["bash", "spawn_agent"] }],
        "prompt": format!("hold {mark}"), "on_node_death": "stop",
    });
    let started = stage.world.caller.start(&start).await?;
    let spawned = spawned(stage, &started, workers).await?;
    let runners = workers.min(RUNNERS);
    within(LONG, "all are at work", async || {
        (count(&format!("HELD={mark}")) >= runners
            && stage.world.model.streams() >= workers - runners)
            .then_some(())
    })
    .await?;
    let owner = owner(stage, &started.session_id).await?;
    let mut member = stage.take(&owner).context("the lead's node is not ours")?;
    let began = Instant::now();
    member.node.kill().await?;
    let (dead, gone) = ending(stage, &owner, mark).await?;
    stage.add().await?;
    closed(stage, &started.session_id).await?;
    Ok(Round {
        spawned,
        detected: dead.duration_since(began),
        stopped: gone.saturating_duration_since(dead),
    })
}

/// Waits for the end of a team. Returns when the node `owner` was declared dead, and when the last
/// process and model call of the team had ended.
async fn ending(stage: &Stage, owner: &NodeId, mark: &str) -> Result<(Instant, Instant)> {
    let until = Instant::now() + LONG;
    let mut gone = None;
    loop {
        let left = stage.world.model.streams() + count(&format!("HELD={mark}"));
        gone = if left == 0 {
            gone.or_else(|| Some(Instant::now()))
        } else {
            None
        };
        if let (Some(dead), Some(gone)) = (stage.timeline.death(owner), gone) {
            return Ok((dead, gone));
        }
        ensure!(
            Instant::now() < until,
            "{left} processes and model calls of the team are left after {LONG:?}"
        );
        sleep(LOOK).await;
    }
}

/// Waits until the workers are spawned, and returns how long the orchestrator took. It reads each
/// row of the log only once, because reading the whole log again and again would disturb the
/// measurement.
async fn spawned(stage: &Stage, started: &Started, workers: usize) -> Result<Duration> {
    let (mut from, mut starts, mut ends) = (1, Vec::new(), Vec::new());
    within(LONG, "the team is there", async || {
        let page: Events = stage
            .world
            .caller
            .ask(
                &events(started),
                &json!({ "from": from, "agent": started.orchestrator }),
            )
            .await
            .ok()?;
        from = page.next;
        for event in &page.events {
            let event: Envelope = serde_json::from_str(event.get()).ok()?;
            match event.kind.as_ref() {
                "tool_start" => starts.push(event.at.millis()),
                "tool_end" => ends.push(event.at.millis()),
                _ => {}
            }
        }
        let (first, last) = (starts.iter().min()?, ends.iter().max()?);
        (ends.len() == workers).then(|| Duration::from_millis(last.abs_diff(*first)))
    })
    .await
}

fn events(started: &Started) -> Address {
    session_at(&started.session_id, SessionVerb::Events)
}

async fn owner(stage: &Stage, session: &SessionId) -> Result<NodeId> {
    stage
        .world
        .caller
        .session(session)
        .await?
        .owner
        .context("nobody leads the team")
}

async fn closed(stage: &Stage, session: &SessionId) -> Result<()> {
    within(LONG, "the session is closed", async || {
        let info = timeout(Duration::from_secs(5), stage.world.caller.session(session))
            .await
            .ok()?
            .ok()?;
        let is_left = info.agents.iter().all(|agent| agent.node_id.is_none());
        (info.state == SessionState::Closed && is_left).then_some(())
    })
    .await
}
