//! A cluster at work under faults from a seed, and what is found afterwards: what was lost, what ran twice, how long it took.
//!
//! The truth about executions is a ledger, a file that the sessions' tools append to.

pub mod faults;
pub mod figures;
mod judge;
mod load;
mod stage;
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
}

/// Carries the plan out. Fails with what does not hold.
pub async fn run(plan: &Plan) -> Result<Figures> {
    let mut stage = Stage::set(plan).await?;
    let load = Load::start(&stage, plan.sessions).await?;
    let readers = judge::Readers::start(&stage, &load)?;
    let mut failovers = Vec::new();
    for fault in faults::of(plan) {
        tokio::time::sleep(plan.calm).await;
        let done = faults::inflict(&fault, &mut stage, &load).await;
        failovers.extend(done.with_context(|| format!("seed {}, {fault:?}", plan.seed))?);
    }
    tokio::time::sleep(plan.calm).await;
    let asked = load.finish().await?;
    let found = judge::judge(&stage, readers, &asked).await?;
    stage.strike().await?;
    Ok(Figures::new(failovers, found))
}
