use planck_common::registry::NodeStanding;
use tempfile::TempDir;

use super::*;
use crate::{clock, registry::placeholder_record};
use planck_store::sqlite::{SqliteOptions, SqliteStore};

const GRACE: Duration = Duration::from_secs(4);

async fn view(folder: &TempDir) -> ClusterView {
    let own = NodeId::mint();
    let store = SqliteStore::open(SqliteOptions::new(folder.path()), &own);
    let store = Arc::new(store.await.unwrap());
    ClusterView::of_member(own, store, GRACE)
}

#[tokio::test]
async fn tools_wait_for_a_dead_node_as_soon_as_the_census_says_it_is_gone() {
    let folder = TempDir::new().unwrap();
    let view = view(&folder).await;
    let (census, dead) = (view.census().unwrap(), NodeId::mint());
    assert_eq!(view.tools_from(&dead), None);

    let before = clock::now();
    census.recorded(&dead, 1, placeholder_record("other", NodeStanding::Dead));
    assert!(view.is_gone(&dead));
    assert!(
        view.tools_from(&dead).unwrap() >= before + GRACE,
        "the thread has not reported yet since when the node is silent"
    );

    let quiet_since = Moment::from_millis(1_000);
    census.gone(&dead, Some(quiet_since));
    assert_eq!(view.tools_from(&dead), Some(quiet_since + GRACE));
}

#[tokio::test]
async fn sweep_begins_when_the_permit_returns() {
    let folder = TempDir::new().unwrap();
    let view = view(&folder).await;
    view.permit().give_until(u64::MAX);
    let begun = view.until_sweep(Duration::from_secs(60));
    let begun = tokio::time::timeout(Duration::from_secs(10), begun).await;
    begun.unwrap();
}

#[tokio::test]
async fn tools_do_not_wait_for_a_node_that_left() {
    let folder = TempDir::new().unwrap();
    let view = view(&folder).await;
    let (census, left) = (view.census().unwrap(), NodeId::mint());
    census.recorded(&left, 1, placeholder_record("other", NodeStanding::Left));
    assert_eq!(view.tools_from(&left), None);
    census.gone(&left, None);
    assert_eq!(view.tools_from(&left), None);
}
