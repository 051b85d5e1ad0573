//! In a cluster of more than nine nodes, none watches all others.

use anyhow::Result;
use futures_util::future::try_join_all;
use planck_common::{command::NodeState, decision::DecisionKind};
use planck_scripted_model::Script;
use planck_tests::{
    eventually::eventually,
    world::{Backend, World},
};

use super::scene::{Decisions, list, until_all_see, until_listed};

/// The number of nodes, of which each watches eight.
const NODES: usize = 12;
/// The number of agents. Two candidates for each may have the same few.
const AGENTS: usize = 2 * NODES;
/// Texts that a node may log, because on a busy machine it may be suspended for a moment.
const SUSPECTS: &[&str] = &["suspended"];

#[tokio::test(flavor = "multi_thread")]
async fn nodes_know_the_load_and_the_death_of_those_that_they_do_not_watch() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let mut nodes = try_join_all((0..NODES).map(|_| world.node())).await?;
    until_all_see(&world, &nodes.iter().collect::<Vec<_>>()).await?;

    for _ in 0..AGENTS {
        world.caller.start(&world.solo()).await?;
    }
    // NATS chooses a node for each list, and each node watches others.
    eventually("all nodes list the load of all", async || {
        for _ in 0..NODES {
            let listed = list(&world.caller).await.ok()?;
            let agents: u32 = listed.iter().map(|info| info.agents).sum();
            if listed.len() != NODES || agents != AGENTS as u32 {
                return None;
            }
        }
        Some(())
    })
    .await?;

    let decisions = Decisions::hear(&world.caller).await?;
    let mut killed = nodes.remove(0);
    killed.kill().await?;
    let verdict = decisions.until(DecisionKind::NodeDead).await?;
    assert_eq!(verdict.data.node.as_ref(), Some(killed.id()));
    for _ in 0..NODES {
        until_listed(&world, killed.id(), NodeState::Dead).await?;
    }
    until_all_see(&world, &nodes.iter().collect::<Vec<_>>()).await?;
    assert_eq!(decisions.of(DecisionKind::NodeDead).len(), 1);
    let leaving = nodes.into_iter().map(|node| node.leave_despite(SUSPECTS));
    try_join_all(leaving).await?;
    Ok(())
}
