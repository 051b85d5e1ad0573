//! NATS or Postgres is unavailable while a team works, or a node freezes. The work continues, and
//! each piece of it is done once.

use std::time::Duration;

use anyhow::Result;
use planck_common::{
    InputId,
    decision::DecisionKind,
    event::{Event, TurnOutcome},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    attached::Attached,
    eventually::{eventually, within},
    nats::NatsCluster,
    world::{Backend, World},
};
use serde_json::json;
use tokio::time::sleep;

use super::{
    field::{Team, ThreeNodes, lead_at, placed},
    scene::Decisions,
};
use crate::{
    flows::events::assert_dense,
    processes::{Marker, escaping},
    teams::scene::by,
};

/// How long the work may take to continue.
const LONG: Duration = Duration::from_secs(120);
const PIECES: usize = 15;
/// The empty text, which excuses every warning: while NATS or Postgres is unavailable, a node may
/// log any.
const EXCUSED: &[&str] = &[""];

/// Starts a lead on `a` that waits for its worker on `b`, which does many pieces of work.
async fn at_work(world: World) -> Result<(Team, Attached)> {
    let piece = |n: usize| {
        Reply::call(
            "bash",
            json!({ "command": format!("echo {n} >> ledger; sleep 0.3") }),
        )
    };
    let pieces = (0..PIECES).map(piece).chain([Reply::text("all done")]);
    let ask = Reply::call("ask_agent", json!({ "agent": "one", "question": "work" }));
    world.model.set_script(
        Script::new()
            .rounds(by("one"), pieces)
            .rounds(by("lead"), [ask, Reply::text("it is {{result:ask_agent}}")])
            .without_auth(),
    );
    let members = [lead_at("a", &[]), placed("one", "b", &["bash"])];
    let team = ThreeNodes::start_there(world)
        .await?
        .team(&members, "go")
        .await?;
    let attached = Attached::start(&team.scene.world, &team.scene.started.name)?;
    attached.begun().await?;
    eventually("it is at work", async || {
        (ledger(&team).len() >= 3).then_some(())
    })
    .await?;
    Ok((team, attached))
}

fn ledger(team: &Team) -> Vec<String> {
    let text = std::fs::read_to_string(team.scene.world.dir().join("ledger")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Checks that all work was done, each piece once, that nothing was cut off, and that no node was
/// declared dead.
async fn went_on(team: Team, attached: Attached, decisions: Decisions) -> Result<()> {
    let prompt = team.scene.started.prompt_id.clone().unwrap();
    let end = within(LONG, "the work is done", async || {
        team.scene
            .log_of("lead")
            .await
            .ok()?
            .into_iter()
            .find_map(|event| match event {
                Event::TurnEnd(end) if end.inputs.contains(&prompt) => Some(end),
                _ => None,
            })
    })
    .await?;
    assert_eq!(
        (end.outcome, end.message.as_deref()),
        (TurnOutcome::Completed, Some("it is all done"))
    );
    assert_eq!(
        ledger(&team),
        (0..PIECES).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    let log = team.scene.log().await?;
    assert_dense(&log);
    assert!(
        !log.iter()
            .any(|event| event.data.get().contains("interrupted")),
        "nothing was cut"
    );
    let told = attached
        .caught_up(log.last().and_then(|event| event.seq).unwrap())
        .await?;
    assert_dense(&told);
    attached.leave().await?;
    assert!(decisions.of(DecisionKind::NodeDead).is_empty());
    assert_eq!(
        (team.place_of("lead").await?, team.place_of("one").await?),
        ("a", "b")
    );
    team.end_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn work_continues_after_nats_was_away() -> Result<()> {
    let (mut team, attached) =
        at_work(World::start(Backend::Postgres, Script::new()).await?).await?;
    let decisions = Decisions::hear(&team.scene.world.caller).await?;
    team.scene.world.nats.kill()?;
    sleep(Duration::from_secs(5)).await;
    team.scene.world.nats.restart()?;
    went_on(team, attached, decisions).await
}

#[tokio::test(flavor = "multi_thread")]
async fn work_continues_after_postgres_was_away() -> Result<()> {
    let (team, attached) = at_work(World::start_alone(Script::new()).await?).await?;
    let decisions = Decisions::hear(&team.scene.world.caller).await?;
    team.scene.world.end_connections().await?;
    let frozen = team.scene.world.pause_database()?;
    sleep(Duration::from_secs(3)).await;
    drop(frozen);
    went_on(team, attached, decisions).await
}

#[tokio::test(flavor = "multi_thread")]
async fn work_continues_after_the_registrys_leader_was_killed() -> Result<()> {
    let world = World::start_over(NatsCluster::start()?, Backend::Postgres, Script::new()).await?;
    let (mut team, attached) = at_work(world).await?;
    let decisions = Decisions::hear(&team.scene.world.caller).await?;
    let leader = team.scene.world.registry_leader().await?;
    team.scene.world.server(&leader)?.kill()?;
    let next = within(LONG, "another server leads", async || {
        team.scene
            .world
            .registry_leader()
            .await
            .ok()
            .filter(|next| *next != leader)
    });
    next.await?;
    team.scene.world.server(&leader)?.restart()?;
    went_on(team, attached, decisions).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_while_jetstream_loses_its_data_is_found() -> Result<()> {
    let script = Script::new();
    let (mut team, attached) = at_work(World::start(Backend::Postgres, script).await?).await?;
    let decisions = Decisions::hear(&team.scene.world.caller).await?;
    let gone = team.node("b").id().clone();
    team.scene.world.nats.kill()?;
    team.nodes[1].kill().await?;
    team.scene.world.nats.restart_empty()?;
    let dead = within(LONG, "the node is declared dead", async || {
        decisions.of(DecisionKind::NodeDead).pop()
    })
    .await?;
    assert_eq!(dead.data.node.as_ref(), Some(&gone));
    // No node has the worker's label any more, so the worker ends.
    let exit = within(
        LONG,
        "the lead is notified that its worker ended",
        async || {
            let log = team.scene.log_of("lead").await.ok()?;
            log.iter()
                .any(|event| matches!(event, Event::TurnEnd(_)))
                .then_some(())
        },
    );
    exit.await?;
    assert_dense(&team.scene.log().await?);
    attached.leave().await?;
    team.nodes.remove(1);
    team.end_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_a_frozen_node_end_by_themselves() -> Result<()> {
    let marker = Marker::new();
    let run = json!({ "command": escaping(&marker), "timeout": 600_000 });
    let script = Script::new().rounds(
        by("lead"),
        [Reply::call("bash", run), Reply::text("went on")],
    );
    let mut team = ThreeNodes::start(Backend::Sqlite, script)
        .await?
        .team(&[lead_at("b", &["bash"])], "go")
        .await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    let mut frozen = team.nodes.remove(1);
    frozen.pause()?;
    within(LONG, "its processes are dead", async || {
        (marker.count() == 0).then_some(())
    })
    .await?;
    let ended = within(LONG, "the session continues elsewhere", async || {
        let log = team.scene.log_of("lead").await.ok()?;
        log.into_iter().find_map(|event| {
            if let Event::TurnEnd(end) = event {
                end.message
            } else {
                None
            }
        })
    });
    assert_eq!(ended.await?, "went on");
    let before = team.scene.log().await?;
    frozen.resume()?;
    frozen.ended().await?;
    assert_eq!(marker.count(), 0);
    assert_eq!(
        team.scene.log().await?.len(),
        before.len(),
        "who woke up wrote nothing"
    );
    team.end_despite(EXCUSED).await
}

/// A node that reaches neither NATS nor the store cannot tell whether its leases are still its own.
#[tokio::test(flavor = "multi_thread")]
async fn tools_of_a_node_that_reaches_neither_nats_nor_the_store_are_killed() -> Result<()> {
    let marker = Marker::new();
    let run = json!({ "command": escaping(&marker), "timeout": 600_000 });
    let script = Script::new().rounds(
        by("lead"),
        [
            Reply::call("bash", run),
            Reply::text("it said {{result:bash}}"),
        ],
    );
    let field = ThreeNodes::start_there(World::start_alone(script).await?).await?;
    let team = field.team(&[lead_at("b", &["bash"])], "go").await?;
    eventually("the processes run", async || {
        (marker.count() >= 4).then_some(())
    })
    .await?;
    let frozen = team.scene.world.pause_database()?;
    team.scene.world.nats.pause()?;
    within(LONG, "its processes are dead", async || {
        (marker.count() == 0).then_some(())
    })
    .await?;
    assert!(
        team.node("b").log().contains("its tools are killed"),
        "the node lives, and says so: {}",
        team.node("b").log()
    );
    team.scene.world.nats.resume()?;
    drop(frozen);
    let ended = within(LONG, "the turn continues", async || {
        let log = team.scene.log_of("lead").await.ok()?;
        log.into_iter().find_map(|event| {
            if let Event::TurnEnd(end) = event {
                end.message
            } else {
                None
            }
        })
    });
    let said = ended.await?;
    assert!(said.contains("started"), "{said}");
    assert_eq!(marker.count(), 0, "it is not run again");
    assert_dense(&team.scene.log().await?);
    team.end_despite(EXCUSED).await
}

/// The input is inserted without a wake-up, as when NATS loses the wake-up on its way to a living
/// node.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_whose_wake_up_was_lost_is_taken_up_by_a_sweep() -> Result<()> {
    let world = World::start(
        Backend::Postgres,
        Script::new().always(Reply::text("ready")),
    )
    .await?;
    let node = world.node_with(&[("PLANCK_CLUSTER_SWEEP", "2s")]).await?;
    let recorder = world.record().await?;
    world.caller.start(&world.solo()).await?;
    let put = "INSERT INTO inputs (session_id, id, agent_id, kind, content, head, at)
               SELECT session_id, 'unheard', id, 'prompt', '[{\"type\":\"text\",\"text\":\"go\"}]', 0, 0 FROM agents";
    assert_eq!(world.sql(put).await?, 1);
    let end = recorder.answered(&InputId::parse("unheard")?).await?;
    assert!(end.data.get().contains("ready"), "{end:?}");
    node.leave().await
}
