//! Figures, by hand: `cargo test -p planck-node --lib postgres::tests::measure -- --ignored --nocapture`.

use std::{sync::Arc, time::Instant};

use planck_common::{InputId, command::AgentState, usage::Usage};
use sqlx::Executor as _;
use tokio::task::JoinSet;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Private;
use crate::store::{
    SessionStore,
    conformance::{Team, message},
    queue::{AppendQueue, Pending},
};

const PUTS: usize = 500;
const SAVES: usize = 200;

fn report(what: &str, mut millis: Vec<f64>) {
    millis.sort_by(f64::total_cmp);
    let at = |share: f64| millis[((millis.len() - 1) as f64 * share) as usize];
    println!("{what}: p50 {:.3} ms, p99 {:.3} ms", at(0.5), at(0.99));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn puts_against_a_bare_insert() {
    let world = Private::create().await;
    let team = Team::start(&world, 1).await;
    let mut bare = world.0.connect().await.unwrap();
    bare.execute("CREATE TABLE bare (id text PRIMARY KEY, body text NOT NULL)").await.unwrap();
    let (mut inserts, mut puts) = (vec![], vec![]);
    for _ in 0..PUTS {
        let prompt = team.prompt(0);
        let began = Instant::now();
        let insert =
            sqlx::query("INSERT INTO bare VALUES ($1, $2)").bind(InputId::mint().to_string()).bind(prompt.content.clone());
        insert.execute(&mut bare).await.unwrap();
        inserts.push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        team.store.put(&team.session, prompt).await.unwrap();
        puts.push(began.elapsed().as_secs_f64() * 1e3);
    }
    report("bare insert", inserts);
    report("put", puts);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn appends_through_the_queue() {
    let world = Private::create().await;
    for writers in [1, 8, 48] {
        let team = Arc::new(Team::start(&world, writers).await);
        let tasks = TaskTracker::new();
        let store: Arc<dyn SessionStore> = team.store.clone();
        let queue = AppendQueue::start(store, team.session.clone(), team.node.clone(), &tasks, CancellationToken::new());
        let (mut work, began) = (JoinSet::new(), Instant::now());
        for agent in 0..writers {
            let (team, queue) = (team.clone(), queue.clone());
            work.spawn(async move { write(&team, &queue, agent).await });
        }
        let millis = work.join_all().await.concat();
        let rows = (writers * SAVES * 3) as f64 / began.elapsed().as_secs_f64();
        report(&format!("{writers} writers, {rows:.0} rows/s, a save of 3"), millis);
    }
}

async fn write(team: &Team, queue: &AppendQueue, agent: usize) -> Vec<f64> {
    queue.enroll(team.agents[agent].clone(), 0).await.unwrap();
    let mut millis = vec![];
    for _ in 0..SAVES {
        let pending = Pending {
            agent: team.agents[agent].clone(),
            epoch: 1,
            entries: vec![message("one"), message("two"), message("three")],
            marks: vec![],
            puts: vec![],
            usage: Usage::default(),
            state: AgentState::Streaming,
        };
        let began = Instant::now();
        queue.append(pending).await.unwrap();
        millis.push(began.elapsed().as_secs_f64() * 1e3);
    }
    millis
}
