//! A node that drains hands its agents over, without an effect on clients and other agents.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::{
    command::{AgentVerb, Nodes},
    event::{Event, TurnOutcome},
    registry::{Key, NodeStanding},
    subject::{Address, LIST, Target},
};
use planck_scripted_model::{Pace, Reply, Script};
use planck_tests::{
    attached::Attached,
    eventually::{eventually, within},
    machine::run,
    world::{Backend, World},
};
use serde_json::json;
use tokio::time::timeout;

use super::{
    field::{Team, ThreeNodes, far, placed},
    scene::{until_recorded, value},
};
use crate::{
    flows::events::assert_dense,
    teams::scene::{by, lead, member},
};

const LONG: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy)]
enum By {
    Command,
    Signal,
}

/// Returns a call that runs until the file `go` exists. It appends a line to the ledger at its
/// beginning and at its end.
fn until_go(who: &str) -> Reply {
    let command = format!(
        "echo {who} begun >> ledger; while [ ! -e go ]; do sleep 0.05; done; echo {who} done >> ledger"
    );
    Reply::call("bash", json!({ "command": command, "timeout": 600_000 }))
}

/// Starts a team. Node `b` hosts the idle lead, the idle `idler`, `talker` in a model call,
/// `asker`, which waits for `slow` on node `a`, and `runner` in a mutating tool.
async fn at_work(backend: Backend) -> Result<Team> {
    let script = Script::new()
        .rounds(
            by("talker").user("work"),
            [
                Reply::text("word ".repeat(60))
                    .and_call("bash", json!({ "command": "echo talker >> ledger" }))
                    .pace(Pace::per_second(20.0)),
                Reply::text("talked"),
            ],
        )
        .rounds(
            by("asker").user("work"),
            [
                Reply::call("ask_agent", json!({ "agent": "slow", "question": "work" })),
                Reply::text("slow says {{result:ask_agent}}"),
            ],
        )
        .rounds(by("slow"), [until_go("slow"), Reply::text("here I am")])
        .rounds(
            by("runner").user("work"),
            [until_go("runner"), Reply::text("ran")],
        )
        .always(Reply::text("ready"));
    let workers = ["idler", "talker", "asker", "runner"].map(|name| far(member(name, &["bash"])));
    let members = [
        vec![far(lead(&[]))],
        workers.to_vec(),
        vec![placed("slow", "a", &["bash"])],
    ]
    .concat();
    let field = ThreeNodes::without_c(World::start(backend, script).await?).await?;
    let mut team = field.team(&members, "hello").await?;
    team.scene.answer().await?;
    team.join_c().await?;
    for name in ["talker", "asker", "runner"] {
        team.scene
            .tell(name, AgentVerb::Prompt, json!({ "text": "work" }))
            .await?;
    }
    let ledger = team.scene.world.dir().join("ledger");
    eventually("all are at work", async || {
        let begun = std::fs::read_to_string(&ledger).ok()?;
        (begun.contains("slow begun") && begun.contains("runner begun")).then_some(())
    })
    .await?;
    team.scene.is_asked("talker", "work").await?;
    Ok(team)
}

async fn drains(backend: Backend, how: By) -> Result<()> {
    let mut team = at_work(backend).await?;
    let session = team.scene.started.session_id.clone();
    let attached = Attached::start(&team.scene.world, &team.scene.started.name)?;
    let mut leaving = team.nodes.remove(1);
    match how {
        By::Command => {
            let mut drain = team.scene.world.planck()?;
            drain.args(["nodes", "drain", "b"]);
            let ran = run(drain).await?;
            assert!(
                ran.code == 0 && ran.out.contains("b is draining"),
                "{ran:?}"
            );
        }
        By::Signal => kill(Pid::from_raw(leaving.pid()), Signal::SIGTERM)?,
    }
    // The lead moves at once, and a client that prompts meanwhile sees no error.
    let mut prompts = Vec::new();
    for number in 0..10 {
        prompts.push(
            team.scene
                .world
                .caller
                .prompt(&session, &format!("prompt {number}"))
                .await?
                .prompt_id,
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    within(LONG, "all but the runner are at c", async || {
        let info = team.scene.world.caller.session(&session).await.ok()?;
        let at_b = info
            .agents
            .iter()
            .filter(|agent| agent.node_id.as_ref() == Some(leaving.id()));
        (at_b.map(|agent| agent.name.as_str()).collect::<Vec<_>>() == ["runner"]).then_some(())
    })
    .await?;
    std::fs::write(team.scene.world.dir().join("go"), "")?;
    let status = timeout(LONG, leaving.ended()).await??;
    assert!(status.success(), "{status}: {}", leaving.log());
    assert_eq!(leaving.complaints(&[]), Vec::<String>::new());
    until_recorded(&team.scene.world.caller, leaving.id(), NodeStanding::Left).await?;
    for prompt in prompts {
        team.scene.recorder.answered(&prompt).await?;
    }
    assert_no_effect_on_clients(&team, attached).await?;
    team.nodes.insert(1, leaving);
    for name in ["lead", "idler", "talker", "asker", "runner"] {
        assert_eq!(team.place_of(name).await?, "c", "{name}");
    }
    assert_eq!(team.place_of("slow").await?, "a");
    let life = value(
        &team.scene.world.caller,
        &Key::Team(team.scene.started.team_id.clone(), 1),
    )
    .await?
    .unwrap();
    assert_eq!(
        (&life["state"], &life["node"]),
        (&json!("alive"), &json!(team.node("c").id())),
        "the same life of the team"
    );
    team.nodes.remove(1);
    team.end().await
}

/// Checks that all turns ended normally, each tool ran once and completely, and an attached client
/// received each event of the log once.
async fn assert_no_effect_on_clients(team: &Team, attached: Attached) -> Result<()> {
    for (name, said) in [
        ("talker", "talked"),
        ("asker", "slow says here I am"),
        ("runner", "ran"),
    ] {
        let end = within(LONG, "its turn has ended", async || {
            team.scene
                .log_of(name)
                .await
                .ok()?
                .into_iter()
                .find_map(|event| match event {
                    Event::TurnEnd(end) => Some(end),
                    _ => None,
                })
        });
        let end = end.await?;
        assert_eq!(
            (end.outcome, end.message.as_deref()),
            (TurnOutcome::Completed, Some(said)),
            "{name}"
        );
    }
    let mut ledger: Vec<String> = std::fs::read_to_string(team.scene.world.dir().join("ledger"))?
        .lines()
        .map(str::to_owned)
        .collect();
    ledger.sort();
    assert_eq!(
        ledger,
        [
            "runner begun",
            "runner done",
            "slow begun",
            "slow done",
            "talker"
        ]
    );
    let log = team.scene.log().await?;
    assert_dense(&log);
    for kind in ["error", "worker_exit", "session_closed", "agent_stopped"] {
        assert!(!log.iter().any(|event| event.kind == kind), "{kind}");
    }
    assert!(
        !log.iter()
            .any(|event| event.data.get().contains("interrupted")),
        "nothing was cut"
    );
    let told = attached
        .caught_up(log.last().and_then(|event| event.seq).unwrap())
        .await?;
    assert_dense(&told);
    attached.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_hands_over_without_an_effect_on_clients_on_postgres() -> Result<()> {
    drains(Backend::Postgres, By::Command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_told_to_end_hands_over_without_an_effect_on_clients_on_sqlite() -> Result<()>
{
    drains(Backend::Sqlite, By::Signal).await
}

/// If no node can take the agents, their leases are released, and the next node takes them up.
#[tokio::test(flavor = "multi_thread")]
async fn agents_that_no_node_can_take_are_taken_up_by_the_next_node() -> Result<()> {
    let script = Script::new().always(Reply::text("ready"));
    let members = [far(lead(&[])), placed("slow", "a", &[])];
    let mut team = ThreeNodes::without_c(World::start(Backend::Postgres, script).await?)
        .await?
        .team(&members, "hello")
        .await?;
    team.scene.answer().await?;
    team.nodes.remove(1).leave().await?;
    let lead = team.scene.id("lead").await?;
    let agent = team.scene.world.caller.agent(&lead).await?;
    assert_eq!(agent.node_id, None, "its lease was given up");
    let prompt = team
        .scene
        .world
        .caller
        .prompt(&team.scene.started.session_id, "again");
    let (prompt, joined) = tokio::join!(prompt, super::field::node_at(&team.scene.world, "c", &[]));
    team.nodes.push(joined?);
    let end = team.scene.recorder.answered(&prompt?.prompt_id).await?;
    assert!(end.data.get().contains("ready"), "{end:?}");
    assert_dense(&team.scene.log().await?);
    team.end().await
}

/// Idle agents cannot be handed over while NATS is unavailable, and waiting would gain nothing.
/// Their leases are released, and any node takes them up.
#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_told_to_end_while_nats_is_away_does_not_wait_for_its_drain() -> Result<()> {
    let script = Script::new().always(Reply::text("ready"));
    let mut world = World::start(Backend::Sqlite, script).await?;
    let mut first = world.node().await?;
    let recorder = world.record().await?;
    let prompt = json!({ "dir": world.dir(), "members": [member("talker", &[])], "prompt": "hi" });
    let started = world.caller.start(&prompt).await?;
    let prompt = started.prompt_id.context("a prompt")?;
    recorder.answered(&prompt).await?;
    let second = world.node().await?;
    let list = Address::new(Target::Nodes, LIST);
    eventually("the nodes know each other", async || {
        let listed: Nodes = world.caller.ask(&list, &json!({})).await.ok()?;
        (listed.nodes.len() == 2).then_some(())
    })
    .await?;

    world.nats.kill()?;
    kill(Pid::from_raw(first.pid()), Signal::SIGTERM)?;
    timeout(Duration::from_secs(45), first.ended()).await??;

    world.nats.restart()?;
    eventually("the other node is reached again", async || {
        let listed: Option<Nodes> = world.caller.ask(&list, &json!({})).await.ok();
        listed.map(drop)
    })
    .await?;
    let answer = world.caller.prompt(&started.session_id, "again").await;
    recorder.answered(&answer?.prompt_id).await?;
    second
        .leave_despite(&["NATS", "suspended", "registry"])
        .await
}
