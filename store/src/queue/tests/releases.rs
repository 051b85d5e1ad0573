//! Tests of the releases of leases.

use crate::{LeaseRelease, StoreError};

use super::{agent, model::Fault, save, start};

fn release(n: usize, epoch: i64) -> LeaseRelease {
    LeaseRelease {
        agent: agent(n),
        epoch,
        stopped: false,
    }
}

#[tokio::test]
async fn waiting_releases_share_a_statement_after_the_saves() {
    let world = start();
    world.enroll(3).await;
    let mut first = world.hold_up().await;
    let mut last = world.submit(save(0, &["last"])).await;
    let released = futures_util::future::join_all([
        world.queue.release(release(0, 1)),
        world.queue.release(release(1, 7)),
        world.queue.release(release(2, 1)),
    ]);
    let (results, _) = tokio::join!(released, async {
        tokio::task::yield_now().await;
        world.model.open();
    });
    assert!(
        matches!(
            &results[..],
            [Ok(()), Err(StoreError::StaleEpoch(_)), Ok(())]
        ),
        "{results:?}"
    );
    first.outcome().await.unwrap();
    last.outcome().await.unwrap();
    assert_eq!(world.model.releases(), [3]);
    assert_eq!(world.model.statements(), 2);
}

#[tokio::test]
async fn error_of_a_statement_answers_each_of_its_releases_unchanged() {
    let world = start();
    world.enroll(2).await;
    let mut first = world.hold_up().await;
    world.model.fail([Fault::None, Fault::Away]);
    let released = futures_util::future::join_all([
        world.queue.release(release(0, 1)),
        world.queue.release(release(1, 1)),
    ]);
    let (results, _) = tokio::join!(released, async {
        tokio::task::yield_now().await;
        world.model.open();
    });
    first.outcome().await.unwrap();
    assert_eq!(world.model.releases(), [2]);
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), "the session store is away: told so");
    }
}

#[tokio::test]
async fn release_fails_once_the_task_of_the_queue_ended() {
    let world = start();
    world.enroll(1).await;
    world.work.abort();
    let result = world.queue.release(release(0, 1)).await;
    assert!(matches!(result, Err(StoreError::Away(_))), "{result:?}");
}
