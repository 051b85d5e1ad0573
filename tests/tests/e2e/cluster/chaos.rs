//! Inflicts up to ten of each fault, in the order of a fixed seed, while sessions work. Checks that
//! each acknowledged prompt is answered once, that no event is missing or duplicated in the log or
//! at an attached client, and that no tool runs twice.

use anyhow::Result;
use planck_tests::{
    chaos::{self, Kind, Plan},
    world::Backend,
};

fn plan(backend: Backend, faults: &[(Kind, u32)]) -> Plan {
    Plan {
        faults: faults.to_vec(),
        sessions: 2,
        brief: true,
        ..Plan::calm(1, backend)
    }
}

/// Runs the plan. `ended` is the number of nodes that must have ended, each with a session that
/// continued elsewhere.
async fn plays(plan: Plan, ended: usize) -> Result<()> {
    let figures = Box::pin(chaos::run(&plan)).await?;
    println!("{:?}\n{figures}", plan.faults);
    assert_eq!(figures.failovers.len(), ended);
    assert!(
        figures.found.prompts > 0 && figures.found.executions > 0,
        "there was work: {figures}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn nothing_is_lost_or_doubled_under_ten_of_each_fault_on_postgres() -> Result<()> {
    let of_nodes = plan(Backend::Postgres, &[(Kind::Kill, 10), (Kind::Hiccup, 10)]);
    let of_time = plan(Backend::Postgres, &[(Kind::Pause, 10)]);
    let of_links = plan(Backend::Postgres, &[(Kind::Cut, 5), (Kind::Sever, 5)]);
    let of_servers = plan(
        Backend::Postgres,
        &[
            (Kind::NatsKill, 10),
            (Kind::NatsAway, 10),
            (Kind::SqlAway, 10),
            (Kind::SqlCut, 10),
        ],
    );
    tokio::try_join!(
        plays(of_nodes, 10),
        plays(of_time, 10),
        plays(of_links, 10),
        plays(of_servers, 0)
    )?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute of CPU time: make test-all"]
async fn nothing_is_lost_or_doubled_under_faults_of_nodes_and_nats_on_sqlite() -> Result<()> {
    let faults = [
        (Kind::Kill, 3),
        (Kind::Pause, 3),
        (Kind::Hiccup, 5),
        (Kind::NatsKill, 3),
        (Kind::NatsAway, 3),
    ];
    plays(plan(Backend::Sqlite, &faults), 6).await
}
