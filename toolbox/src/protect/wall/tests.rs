//! Tests of the wall with baselines in memory.

use std::{
    fs,
    sync::{Mutex, PoisonError},
};

use serde_json::json;

use super::*;
use crate::testing::World;

/// A call, its baselines, and whether it ended with a change.
type Row = (CallId, String, bool);

/// Baselines in memory. `lost` stands for a node that was lost: all its calls are undecided.
#[derive(Default)]
pub struct InMemory {
    rows: Mutex<Vec<Row>>,
    lost: std::sync::atomic::AtomicBool,
}

impl InMemory {
    fn with<T>(&self, act: impl FnOnce(&mut Vec<Row>) -> T) -> T {
        act(&mut self.rows.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl CallBaselines for InMemory {
    async fn put(&self, call: &Invocation, baselines: String) -> Result<(), String> {
        self.with(|rows| {
            if rows.iter().all(|(id, ..)| *id != call.call_id) {
                rows.push((call.call_id.clone(), baselines, false));
            }
        });
        Ok(())
    }

    async fn undecided(&self, _: &SessionId) -> Result<Vec<(CallId, String)>, String> {
        let lost = self.lost.load(std::sync::atomic::Ordering::Relaxed);
        let undecided = |rows: &mut Vec<Row>| {
            let rows = rows.iter().filter(|(.., changed)| *changed || lost);
            rows.map(|(id, baselines, _)| (id.clone(), baselines.clone()))
                .collect()
        };
        Ok(self.with(undecided))
    }

    async fn changed(&self, _: &SessionId, call: &CallId) -> Result<(), String> {
        self.with(|rows| {
            let row = rows.iter_mut().find(|(id, ..)| id == call);
            row.unwrap().2 = true;
        });
        Ok(())
    }

    async fn remove(&self, _: &SessionId, calls: &[CallId]) -> Result<(), String> {
        self.with(|rows| rows.retain(|(id, ..)| !calls.contains(id)));
        Ok(())
    }
}

fn told(changes: Vec<ProtectedChange>, world: &World) -> Vec<String> {
    let top = world.at("ws").display().to_string();
    let told = changes.into_iter().map(|change| {
        let text = change.text.unwrap_or_default();
        format!(
            "{:?} {} {text}",
            change.change,
            change.path.replace(&top, "")
        )
    });
    told.collect()
}

#[tokio::test]
async fn a_change_stays_undecided_until_it_is_kept_or_put_back() {
    let (world, store) = (World::new(), Arc::new(InMemory::default()));
    let (wall, call) = (Wall::new(store.clone()), world.call(&json!({})));
    let session = call.session_id.clone();
    let undecided = async || told(wall.undecided(&session).await.unwrap(), &world);
    let roots = vec![world.at("ws")];

    let watched = wall.begin(&call, roots.clone()).await.unwrap();
    assert_eq!(wall.end(watched).await.unwrap(), []);
    // The row is removed by a task.
    tokio::task::yield_now().await;
    assert!(store.with(|rows| rows.is_empty()));

    let watched = wall.begin(&call, roots.clone()).await.unwrap();
    world.write("ws/.envrc", "evil");
    let changed = ["Added /.envrc evil"];
    assert_eq!(undecided().await, [""; 0], "the call still runs");
    assert_eq!(told(wall.end(watched).await.unwrap(), &world), changed);
    assert_eq!(undecided().await, changed);
    fs::remove_file(world.at("ws/.envrc")).unwrap();
    assert_eq!(undecided().await, [""; 0]);
    assert!(store.with(|rows| rows.is_empty()));
}

#[tokio::test]
async fn calls_of_a_lost_node_are_compared_by_the_next_one() {
    let (world, store) = (World::new(), Arc::new(InMemory::default()));
    let (wall, call) = (Wall::new(store.clone()), world.call(&json!({})));
    let session = call.session_id.clone();
    let undecided = async || told(wall.undecided(&session).await.unwrap(), &world);
    store.lost.store(true, std::sync::atomic::Ordering::Relaxed);

    drop(wall.begin(&call, vec![world.at("ws")]).await.unwrap());
    world.write("ws/.envrc", "evil");
    assert_eq!(undecided().await, ["Added /.envrc evil"]);
    // Another try of the call keeps the baseline of the first one.
    drop(wall.begin(&call, vec![world.at("ws")]).await.unwrap());
    assert_eq!(undecided().await, ["Added /.envrc evil"]);
    // Another machine has a folder of its own at the same path.
    fs::rename(world.at("ws"), world.at("away")).unwrap();
    world.write("ws/.bashrc", "of the other machine");
    assert_eq!(undecided().await, [""; 0]);
}
