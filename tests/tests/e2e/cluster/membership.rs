//! Nodes join the cluster and leave it: in order, by SIGKILL, and by a pause.

use std::time::{Duration, Instant};

use anyhow::Result;
use planck_common::{command::NodeState, decision::DecisionKind, registry::NodeStanding};
use planck_scripted_model::Script;
use planck_tests::world::{Backend, World};
use tokio::time::timeout;

use super::scene::{Decisions, until_all_see, until_listed, until_recorded};

/// Texts that a node may log, because on a busy machine it may be suspended for a moment.
const SUSPECTS: &[&str] = &["suspended"];

#[tokio::test(flavor = "multi_thread")]
async fn nodes_join_see_each_other_and_leave() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let decisions = Decisions::hear(&world.caller).await?;
    let (one, two, three) = (
        world.node().await?,
        world.node().await?,
        world.node().await?,
    );
    until_all_see(&world, &[&one, &two, &three]).await?;
    assert_eq!(decisions.of(DecisionKind::NodeJoined).len(), 3);

    let gone = two.id().clone();
    two.leave_despite(SUSPECTS).await?;
    let row = until_listed(&world, &gone, NodeState::Left).await?;
    assert_eq!((row.agents, row.running), (0, 0));
    assert_eq!(decisions.until(DecisionKind::NodeLeft).await?.node_id, gone);
    let record = until_recorded(&world.caller, &gone, NodeStanding::Left).await?;
    assert_eq!(record.verdict, None);
    until_all_see(&world, &[&one, &three]).await?;
    assert!(
        decisions.of(DecisionKind::NodeDead).is_empty(),
        "who leaves is not convicted"
    );
    one.leave_despite(SUSPECTS).await?;
    three.leave_despite(SUSPECTS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_is_declared_dead_once() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let (one, mut two, three) = (
        world.node().await?,
        world.node().await?,
        world.node().await?,
    );
    until_all_see(&world, &[&one, &two, &three]).await?;
    let decisions = Decisions::hear(&world.caller).await?;
    // Nodes may declare a peer dead only after their own heartbeats have come back for 3 s.
    tokio::time::sleep(Duration::from_secs(4)).await;

    let killed = Instant::now();
    two.kill().await?;
    let verdict = decisions.until(DecisionKind::NodeDead).await?;
    println!("the verdict came {:?} after the kill", killed.elapsed());
    assert_eq!(verdict.data.node.as_ref(), Some(two.id()));
    assert!(
        [one.id(), three.id()].contains(&&verdict.node_id),
        "by one of the living"
    );
    assert!(
        verdict.data.silent_ms.is_some_and(|silent| silent > 2_500),
        "{verdict:?}"
    );
    let record = until_recorded(&world.caller, two.id(), NodeStanding::Dead).await?;
    assert_eq!(
        record.verdict.map(|verdict| verdict.by),
        Some(verdict.node_id)
    );
    until_listed(&world, two.id(), NodeState::Dead).await?;
    until_all_see(&world, &[&one, &three]).await?;
    assert_eq!(decisions.of(DecisionKind::NodeDead).len(), 1);
    one.leave_despite(SUSPECTS).await?;
    three.leave_despite(SUSPECTS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_that_continues_after_its_death_ends_itself() -> Result<()> {
    let world = World::start(Backend::Postgres, Script::new()).await?;
    let (one, mut two) = (world.node().await?, world.node().await?);
    until_all_see(&world, &[&one, &two]).await?;
    let decisions = Decisions::hear(&world.caller).await?;
    two.pause()?;
    assert_eq!(
        decisions
            .until(DecisionKind::NodeDead)
            .await?
            .data
            .node
            .as_ref(),
        Some(two.id())
    );
    two.resume()?;
    let status = timeout(Duration::from_secs(20), two.ended()).await??;
    assert_eq!(status.code(), Some(1), "{}", two.log());
    assert!(
        two.log()
            .contains("is out of its cluster and stopped everything"),
        "{}",
        two.log()
    );
    until_listed(&world, two.id(), NodeState::Dead).await?;
    one.leave_despite(SUSPECTS).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_stopped_briefly_is_not_declared_dead() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let decisions = Decisions::hear(&world.caller).await?;
    let (one, two) = (world.node().await?, world.node().await?);
    until_all_see(&world, &[&one, &two]).await?;
    two.pause()?;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    two.resume()?;
    until_all_see(&world, &[&one, &two]).await?;
    assert!(decisions.of(DecisionKind::NodeDead).is_empty());
    one.leave_despite(SUSPECTS).await?;
    two.leave_despite(SUSPECTS).await
}
