use futures_util::FutureExt as _;

use super::*;
use crate::services::testing::World;

#[tokio::test(flavor = "multi_thread")]
async fn node_must_end_if_the_membership_thread_ends_without_a_reason() {
    let world = World::new().await;
    let test = world.node().await;
    test.start(world.request(&["lead"])).await;
    let (facts, told) = mpsc::channel(1);
    drop(facts);

    Arc::clone(test.running().node()).react(told).await;

    let why = test.running().must_end().now_or_never();
    assert_eq!(why.as_deref(), Some("the membership thread ended"));
    let agents =
        async |services: &crate::services::Services| services.handles.host.agents(None).is_empty();
    test.until("the agents are dropped", agents).await;
    test.leave().await;
}

#[tokio::test]
async fn a_panic_is_a_reason_to_end() {
    let why = or_panicked(async { panic!("a fact that nothing can apply") }).await;
    assert!(why.contains("a panic"), "{why}");
    assert_eq!(or_panicked(async { "drained".into() }).await, "drained");
}
