//! `make chaos`: a cluster under faults from a seed, for as long as is asked, and the figures.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use planck_tests::{
    chaos::{self, Kind, Plan},
    world::Backend,
};

const USAGE: &str = "usage: chaos [--seed N] [--store sqlite|postgres] [--nodes N] [--sessions N] [--calm MS] [KIND=TIMES ...]
KIND is one of kill, pause, hiccup, cut, nats-away, nats-kill, sql-cut; unless said, each is done 10 times";

#[tokio::main]
async fn main() -> Result<()> {
    let plan = plan(std::env::args().skip(1))?;
    println!("{plan:?}");
    let figures = chaos::run(&plan).await.with_context(|| format!("seed {}", plan.seed))?;
    println!("{figures}");
    Ok(())
}

fn plan(mut words: impl Iterator<Item = String>) -> Result<Plan> {
    let calm = Duration::from_millis(300);
    let mut plan = Plan { seed: fastrand::u64(..), backend: Backend::Sqlite, nodes: 3, sessions: 3, faults: Vec::new(), calm };
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value\n{USAGE}"));
        match word.as_str() {
            "--seed" => plan.seed = value()?.parse()?,
            "--nodes" => plan.nodes = value()?.parse()?,
            "--sessions" => plan.sessions = value()?.parse()?,
            "--calm" => plan.calm = Duration::from_millis(value()?.parse()?),
            "--store" => plan.backend = backend(&value()?)?,
            _ => plan.faults.push(fault(&word)?),
        }
    }
    if plan.faults.is_empty() {
        let all = Kind::ALL.iter().map(|(_, kind)| *kind);
        let fit = all.filter(|kind| *kind != Kind::SqlCut || plan.backend == Backend::Postgres);
        plan.faults = fit.map(|kind| (kind, 10)).collect();
    }
    Ok(plan)
}

fn backend(name: &str) -> Result<Backend> {
    match name {
        "sqlite" => Ok(Backend::Sqlite),
        "postgres" => Ok(Backend::Postgres),
        _ => bail!("`{name}` is no store\n{USAGE}"),
    }
}

fn fault(word: &str) -> Result<(Kind, u32)> {
    let (name, times) = word.split_once('=').with_context(|| format!("`{word}`?\n{USAGE}"))?;
    let kind = Kind::parse(name).with_context(|| format!("`{name}` is no fault\n{USAGE}"))?;
    Ok((kind, times.parse()?))
}
