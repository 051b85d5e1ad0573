//! Runs a busy cluster under faults in an order drawn from a seed, fails if something was lost or
//! ran twice, and reports how long recovery took.
//!
//! Each tool run appends a line to a file, the ledger, which shows what really ran.

mod checks;
pub mod faults;
pub mod figures;
mod load;
mod stage;
pub mod team;
mod timeline;

use std::time::Duration;

use anyhow::{Context as _, Result};

pub use faults::Kind;
pub use figures::Figures;

use crate::world::Backend;
use load::Load;
use stage::Stage;

/// The faults of a run, and the cluster on which they are inflicted.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub backend: Backend,
    pub nodes: usize,
    pub sessions: usize,
    /// The faults and how often each is inflicted. The seed decides their order, their durations
    /// and the sessions whose nodes they affect.
    pub faults: Vec<(Kind, u32)>,
    /// How long the cluster works undisturbed between two faults.
    pub calm: Duration,
    /// Whether pauses, cuts and outages draw their durations from a shorter range. `Hiccup` and
    /// `NatsMinute` have one range only.
    pub brief: bool,
    /// One nats-server, or a cluster of three.
    pub servers: Servers,
    /// The number of teams to create, one after the other. The run kills the node of each team's
    /// orchestrator.
    pub teams: u32,
    /// The number of workers of each team.
    pub workers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    One,
    Three,
}

impl Plan {
    /// Returns a plan with three nodes, three busy sessions and no fault.
    pub fn calm(seed: u64, backend: Backend) -> Self {
        Self {
            seed,
            backend,
            nodes: 3,
            sessions: 3,
            faults: Vec::new(),
            calm: Duration::from_millis(300),
            brief: false,
            servers: Servers::One,
            teams: 0,
            workers: 6,
        }
    }

    fn freezes_the_database(&self) -> bool {
        self.faults.iter().any(|(kind, _)| *kind == Kind::SqlAway)
    }
}

/// Runs the plan's teams, and returns the times of each. Fails with the first check that does not
/// hold.
pub async fn run_teams(plan: &Plan) -> Result<Vec<team::Round>> {
    let mut stage = Stage::set(plan, |_| team::script(plan.workers)).await?;
    let rounds = team::run(plan, &mut stage).await?;
    stage.tear_down().await?;
    Ok(rounds)
}

/// Inflicts the plan's faults, and returns the figures. Fails with the first check that does not
/// hold.
pub async fn run(plan: &Plan) -> Result<Figures> {
    let mut stage = Stage::set(plan, load::script).await?;
    let load = Load::start(&stage, plan.sessions).await?;
    let readers = checks::Readers::start(&stage, &load).await?;
    let mut failovers = Vec::new();
    let mut disturbed = 0;
    for fault in faults::of(plan) {
        tokio::time::sleep(plan.calm).await;
        let done = faults::inflict(&fault, &mut stage, &load).await;
        disturbed += u32::from(fault.kind.is_of_nats());
        failovers.extend(done.with_context(|| format!("seed {}, {fault:?}", plan.seed))?);
    }
    tokio::time::sleep(plan.calm).await;
    let asked = load.finish().await?;
    let found = checks::check(&stage, readers, &asked).await?;
    stage.tear_down().await?;
    Ok(Figures {
        failovers,
        disturbed,
        found,
    })
}
