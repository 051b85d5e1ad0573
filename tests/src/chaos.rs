//! A cluster at work under faults from a seed, and what is found afterwards: what was lost, what
//! ran twice, how long it took.
//!
//! The truth about executions is a ledger, a file that the sessions' tools append to.

pub mod faults;
pub mod figures;
mod judge;
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

/// What is to be done to whom.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub backend: Backend,
    pub nodes: usize,
    pub sessions: usize,
    /// Done in an order that the seed decides, each so often.
    pub faults: Vec<(Kind, u32)>,
    /// Of undisturbed work between faults.
    pub calm: Duration,
    /// Faults last no longer than they must.
    pub brief: bool,
    /// Of nats-server: one, or a cluster of three.
    pub servers: Servers,
    /// Teams that are made, and whose lead's node is killed, one after the other.
    pub teams: u32,
    /// Of each such team.
    pub workers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    One,
    Three,
}

impl Plan {
    /// Three nodes and three sessions at work, and no fault.
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

/// Carries the plan's teams out. Fails with what does not hold.
pub async fn run_teams(plan: &Plan) -> Result<Vec<team::Round>> {
    let mut stage = Stage::set(plan, |_| team::script(plan.workers)).await?;
    let rounds = team::run(plan, &mut stage).await?;
    stage.strike().await?;
    Ok(rounds)
}

/// Carries the plan's faults out. Fails with what does not hold.
pub async fn run(plan: &Plan) -> Result<Figures> {
    let mut stage = Stage::set(plan, load::script).await?;
    let load = Load::start(&stage, plan.sessions).await?;
    let readers = judge::Readers::start(&stage, &load).await?;
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
    let found = judge::judge(&stage, readers, &asked).await?;
    stage.strike().await?;
    Ok(Figures {
        failovers,
        disturbed,
        found,
    })
}
