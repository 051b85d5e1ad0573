//! A node is killed. Its agents continue elsewhere, or end if their session's policy says so, and
//! no other agent is harmed.

use std::{
    future::ready,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use futures_util::{StreamExt, stream::FuturesUnordered};
use planck_client::{Client, ClientError};
use planck_common::{
    AgentId,
    command::{AgentVerb, Outcome, SessionState, Snapshot, WorkState},
    event::{Event, TurnOutcome},
    node::Heartbeat,
    registry::Key,
};
use planck_scripted_model::{Pace, Reply, Script};
use planck_tests::{
    attached::Attached,
    caller::agent_at,
    eventually::{eventually, within},
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{
    field::{Team, ThreeNodes, far, placed},
    scene::value,
};
use crate::{
    flows::events::assert_dense,
    processes::{Marker, escaping},
    teams::scene::{by, lead, member},
};

/// How long peers may take to find out that a node is dead, and to continue its work.
const LONG: Duration = Duration::from_secs(90);
/// Texts that the surviving nodes may log.
const EXCUSED: &[&str] = &[
    "does not say that it stopped",
    "cannot take session",
    "another node holds the lease",
];

/// Returns a call that appends a line to the ledger, and then runs for 1000 s.
fn endless() -> Reply {
    Reply::call(
        "bash",
        json!({ "command": "echo done >> ledger; sleep 1000; true", "timeout": 600_000 }),
    )
}

fn ask(agent: &str) -> Reply {
    Reply::call("ask_agent", json!({ "agent": agent, "question": "work" }))
}

/// Waits for the tool's first line in the ledger, and returns how often the tool ran.
async fn ledger(team: &Team) -> Result<usize> {
    let ledger = team.scene.world.dir().join("ledger");
    let lines = async || {
        std::fs::read_to_string(&ledger)
            .ok()
            .map(|text| text.lines().count())
            .filter(|lines| *lines > 0)
    };
    eventually("the tool runs", lines).await
}

async fn team(backend: Backend, script: Script, members: &[Value], more: Value) -> Result<Team> {
    let field = ThreeNodes::without_c(World::start(backend, script).await?).await?;
    let mut body = json!({ "dir": field.world.dir(), "members": members, "prompt": "go" });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let mut team = field.started(body).await?;
    team.join_c().await?;
    Ok(team)
}

async fn until_closed(team: &Team) -> Result<()> {
    within(LONG, "the session is closed", async || {
        let info = team
            .scene
            .world
            .caller
            .session(&team.scene.started.session_id)
            .await
            .ok()?;
        (info.state == SessionState::Closed
            && info.agents.iter().all(|agent| agent.node_id.is_none()))
        .then_some(())
    })
    .await
}

async fn until_the_lead_said(team: &Team) -> Result<String> {
    let prompt = team.scene.started.prompt_id.clone().unwrap();
    within(LONG, "the lead has answered", async || {
        team.scene
            .log_of("lead")
            .await
            .ok()?
            .into_iter()
            .find_map(|event| match event {
                Event::TurnEnd(end) if end.inputs.contains(&prompt) => {
                    assert_eq!(end.outcome, TurnOutcome::Completed);
                    end.message
                }
                _ => None,
            })
    })
    .await
}

/// Waits for the outcome of the team's prompt in a task of its own.
async fn outcome(team: &Team) -> Result<JoinHandle<Result<Outcome, ClientError>>> {
    let client = Client::connect(&team.scene.world.nats.url()).await?;
    let session = team.scene.started.session_id.clone();
    let prompt = team.scene.started.prompt_id.clone();
    Ok(tokio::spawn(async move {
        client.wait_for_outcome(&session, prompt.as_ref()).await
    }))
}

async fn kinds(team: &Team, kind: &str) -> Result<usize> {
    Ok(team
        .scene
        .log()
        .await?
        .iter()
        .filter(|event| event.kind == kind)
        .count())
}

/// Kills the node of a worker in the middle of a mutating tool, while the orchestrator waits for
/// the worker.
async fn worker_dies(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rounds(
            by("lead"),
            [ask("one"), Reply::text("one says {{result:ask_agent}}")],
        )
        .rounds(
            by("one"),
            [endless(), Reply::text("it was {{result:bash}}")],
        );
    let members = [
        placed("lead", "a", &["spawn_agent"]),
        far(member("one", &["bash"])),
    ];
    let mut team = team(backend, script, &members, json!({})).await?;
    let attached = Attached::start(&team.scene.world, &team.scene.started.name)?;
    assert_eq!(
        (team.place_of("one").await?, ledger(&team).await?),
        ("b", 1)
    );
    let one = team.scene.id("one").await?;
    team.nodes[1].kill().await?;
    let said = until_the_lead_said(&team).await?;
    assert!(said.contains("interrupted; it may or may not"), "{said}");
    assert_eq!(
        (team.place_of("one").await?, team.scene.id("one").await?),
        ("c", one)
    );
    assert_eq!(
        (
            ledger(&team).await?,
            kinds(&team, "worker_exit").await?,
            kinds(&team, "session_resumed").await?
        ),
        (1, 0, 0)
    );
    let turns = team
        .scene
        .log_of("one")
        .await?
        .into_iter()
        .filter(|event| matches!(event, Event::TurnStart(_)))
        .count();
    assert_eq!(turns, 1, "it is the same turn");
    let life = value(
        &team.scene.world.caller,
        &Key::Team(team.scene.started.team_id.clone(), 1),
    )
    .await?
    .unwrap();
    assert_eq!(life["state"], "alive", "the team goes on");
    told_once(&team, attached).await?;
    team.nodes.remove(1);
    team.end_despite(EXCUSED).await
}

async fn told_once(team: &Team, attached: Attached) -> Result<()> {
    let log = team.scene.log().await?;
    assert_dense(&log);
    let told = attached
        .caught_up(log.last().and_then(|event| event.seq).unwrap())
        .await?;
    assert_dense(&told);
    attached.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_node_dies_continues_elsewhere_on_postgres() -> Result<()> {
    worker_dies(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn a_worker_whose_node_dies_continues_elsewhere_on_sqlite() -> Result<()> {
    worker_dies(Backend::Sqlite).await
}

/// Kills the orchestrator's node, while members on another node have processes and a model call.
async fn lead_dies(backend: Backend) -> Result<()> {
    let marker = Marker::new();
    let when = json!({ "command": "date +%s%3N > resumed-at" });
    let script = Script::new()
        .rounds(
            by("lead").user("go"),
            [
                ask("runner"),
                Reply::call("bash", when),
                Reply::text("runner says it. {{result:ask_agent}}"),
            ],
        )
        .rounds(
            by("runner"),
            [
                Reply::call(
                    "bash",
                    json!({ "command": escaping(&marker), "timeout": 600_000 }),
                ),
                Reply::text("ran: {{result:bash}}"),
            ],
        )
        .limited(
            1,
            by("talker"),
            Reply::text("word ".repeat(6_000)).pace(Pace::per_second(20.0)),
        )
        .always(Reply::text("talked again"));
    let members = [
        far(lead(&["bash"])),
        placed("runner", "a", &["bash"]),
        placed("talker", "a", &[]),
    ];
    let mut team = team(backend, script, &members, json!({})).await?;
    let attached = Attached::start(&team.scene.world, &team.scene.started.name)?;
    let names = ["lead", "runner", "talker"];
    let mut ids: Vec<AgentId> = Vec::new();
    for name in names {
        ids.push(team.scene.id(name).await?);
    }
    team.scene
        .tell("talker", AgentVerb::Prompt, json!({ "text": "talk" }))
        .await?;
    eventually("the worker talks", async || {
        (team.scene.world.model.streams() == 1).then_some(())
    })
    .await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    assert_eq!(team.place_of("lead").await?, "b");
    let outcome = outcome(&team).await?;
    let gone = team.node("b").id().clone();
    // Its silence begins when it sent its last heartbeat, which may arrive late on a busy machine.
    let nats = &team.scene.world.caller.nats;
    let mut heartbeats = nats.subscribe(format!("node.{gone}")).await?;
    let heartbeat = tokio::time::timeout(LONG, heartbeats.next()).await?;
    let heartbeat = heartbeat.context("no heartbeat")?;
    let heartbeat: Heartbeat = serde_json::from_slice(&heartbeat.payload)?;
    let silent = heartbeat.at.millis();
    team.nodes[1].kill().await?;

    within(LONG, "the session continues", async || {
        (kinds(&team, "session_resumed").await.ok()? == 1).then_some(())
    })
    .await?;
    within(
        LONG,
        "the next incarnation has begun its tool",
        async || {
            // This is read before the processes are counted, because new tools and old processes
            // must never run at the same time.
            let begun = team.scene.world.dir().join("resumed-at").exists();
            let left = marker.count();
            assert!(
                !begun || left == 0,
                "{left} processes of the old life are left as the next one's begin"
            );
            begun.then_some(())
        },
    )
    .await?;
    let said = until_the_lead_said(&team).await?;
    assert!(
        said.contains("interrupted"),
        "the runner's call was answered: {said}"
    );
    let found = tokio::time::timeout(LONG, outcome).await???;
    assert_eq!(
        (found.state, found.message),
        (WorkState::Over, Some(said)),
        "the client that waited has the answer"
    );
    let log = team.scene.log().await?;
    let resumed = log
        .iter()
        .find(|event| event.kind == "session_resumed")
        .unwrap();
    assert!(
        resumed
            .data
            .get()
            .contains(&format!(r#""from_node":"{gone}""#)),
        "{resumed:?}"
    );
    let at: i64 = std::fs::read_to_string(team.scene.world.dir().join("resumed-at"))?
        .trim()
        .parse()?;
    // SQLite knows at once that a process has ended, and with it its tools. A request of a client that comes
    // before the verdict then takes the session over.
    let is_requested = resumed.data.get().contains(r#""reason":"commanded""#);
    let may_be_early = is_requested && matches!(backend, Backend::Sqlite);
    assert!(
        may_be_early || at - silent > 3_500,
        "no tool starts before the dead node's are dead for sure: {} ms",
        at - silent
    );

    assert_eq!(kinds(&team, "worker_exit").await?, 0);
    for (name, id, place) in [
        ("lead", &ids[0], "c"),
        ("runner", &ids[1], "a"),
        ("talker", &ids[2], "a"),
    ] {
        assert_eq!(
            (&team.scene.id(name).await?, team.place_of(name).await?),
            (id, place),
            "{name}"
        );
    }
    let (caller, team_id) = (&team.scene.world.caller, &team.scene.started.team_id);
    let old = value(caller, &Key::Team(team_id.clone(), 1))
        .await?
        .unwrap();
    assert_eq!(
        (&old["state"], &old["reason"]),
        (&json!("dead"), &json!("node_dead"))
    );
    let new = value(caller, &Key::Team(team_id.clone(), 2))
        .await?
        .unwrap();
    assert_eq!(
        (&new["state"], &new["node"]),
        (&json!("alive"), &json!(team.node("c").id()))
    );
    for id in &ids {
        let member = value(caller, &Key::Member(team_id.clone(), 2, id.clone())).await?;
        assert!(member.is_some(), "{id} has a record of this life");
    }
    for id in &ids[1..] {
        let member = eventually("the old record is gone", async || {
            let found = value(caller, &Key::Member(team_id.clone(), 1, id.clone()))
                .await
                .ok()?;
            found.is_none().then_some(())
        });
        member.await?;
    }
    told_once(&team, attached).await?;
    team.nodes.remove(1);
    team.end_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_whose_node_dies_comes_back_with_its_team_on_postgres() -> Result<()> {
    lead_dies(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on Postgres is always run: make test-all"]
async fn a_lead_whose_node_dies_comes_back_with_its_team_on_sqlite() -> Result<()> {
    lead_dies(Backend::Sqlite).await
}

/// A request to a frozen node ends when that node is dead, not when the time for an answer is over.
/// A request that waited for the store until then is answered by the node that took the agent over.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_a_dead_node_ends_with_the_node() -> Result<()> {
    let members = [far(lead(&[]))];
    let mut team = team(
        Backend::Sqlite,
        Script::new().always(Reply::text("all well")),
        &members,
        json!({}),
    )
    .await?;
    until_the_lead_said(&team).await?;
    assert_eq!(team.place_of("lead").await?, "b");
    team.nodes[1].pause()?;
    let (began, snapshot) = (
        Instant::now(),
        agent_at(&team.scene.id("lead").await?, AgentVerb::Snapshot),
    );
    // A request that reaches the frozen node itself is not answered; the other nodes relay theirs
    // to it.
    let (caller, body) = (&team.scene.world.caller, json!({}));
    let asked: FuturesUnordered<_> = (0..10)
        .map(|_| caller.try_request::<Snapshot>(&snapshot, &body))
        .collect();
    let mut answered = asked.filter_map(|answer| ready(answer.ok()));
    if let Err(refusal) = answered.next().await.context("nobody answered")? {
        assert!(
            refusal.message.contains("was gone before it answered"),
            "{refusal}"
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    drop(answered);
    team.nodes[1].kill().await?;
    team.nodes.remove(1);
    team.end_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_to_stop_with_its_node_is_closed() -> Result<()> {
    let marker = Marker::new();
    let script = Script::new()
        .rounds(
            by("lead").user("go"),
            [ask("runner"), Reply::text("never said")],
        )
        .rule(
            by("runner"),
            Reply::call(
                "bash",
                json!({ "command": escaping(&marker), "timeout": 600_000 }),
            ),
        )
        .always(Reply::text("back again"));
    let members = [far(lead(&[])), placed("runner", "a", &["bash"])];
    let mut team = team(
        Backend::Postgres,
        script,
        &members,
        json!({ "on_node_death": "stop" }),
    )
    .await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    team.nodes[1].kill().await?;
    until_closed(&team).await?;
    assert_eq!(marker.count(), 0);
    let log = team.scene.log().await?;
    assert_dense(&log);
    assert_eq!(log.last().unwrap().kind, "session_closed");
    assert_eq!(kinds(&team, "session_resumed").await?, 0);
    for name in ["lead", "runner"] {
        let id = team.scene.id(name).await?;
        let lost = log
            .iter()
            .any(|event| event.agent_id == id && event.data.get().contains("node_lost"));
        assert!(lost, "{name}'s turn ended with node_lost: {log:#?}");
    }
    let again = team
        .scene
        .world
        .caller
        .prompt(&team.scene.started.session_id, "and now?")
        .await?;
    let end = team.scene.recorder.answered(&again.prompt_id).await?;
    assert!(
        end.data.get().contains("back again"),
        "a later prompt opens it: {end:?}"
    );
    team.nodes.remove(1);
    team.end_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_to_stop_with_its_node_is_reported() -> Result<()> {
    let delegate = Reply::call("delegate_task", json!({ "agent": "one", "task": "count" }));
    let script = Script::new()
        .rounds(by("lead").user("go"), [delegate, Reply::text("I wait")])
        .rule(by("one"), endless())
        .always(Reply::text("a pity"));
    let members = [
        placed("lead", "a", &["spawn_agent", "delegate_task"]),
        far(member("one", &["bash"])),
    ];
    let mut team = team(
        Backend::Postgres,
        script,
        &members,
        json!({ "on_node_death": "stop" }),
    )
    .await?;
    assert_eq!(ledger(&team).await?, 1);
    let one = team.scene.id("one").await?;
    team.nodes[1].kill().await?;
    let exit = within(LONG, "its end is reported", async || {
        team.scene
            .log_of("lead")
            .await
            .ok()?
            .into_iter()
            .find_map(|event| match event {
                Event::WorkerExit(exit) => Some(exit),
                _ => None,
            })
    })
    .await?;
    assert_eq!((&exit.id, exit.reason.as_str()), (&one, "node_lost"));
    team.scene.is_asked("lead", "task_unanswered").await?;
    let info = team
        .scene
        .world
        .caller
        .session(&team.scene.started.session_id)
        .await?;
    assert_eq!(info.state, SessionState::Open, "the lead lives");
    assert_eq!(
        (ledger(&team).await?, kinds(&team, "worker_exit").await?),
        (1, 1)
    );
    team.nodes.remove(1);
    team.end_despite(EXCUSED).await
}
