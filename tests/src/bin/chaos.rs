//! `make chaos`: runs a cluster under faults in an order drawn from a seed, or kills the nodes of
//! teams' orchestrators, and prints the figures.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use planck_tests::{
    chaos::{self, Kind, Plan, Servers, figures},
    world::Backend,
};

const USAGE: &str = "usage: chaos [--seed N] [--store sqlite|postgres] [--nodes N] [--sessions N] [--calm MS] [--servers 1|3]
             [KIND=TIMES ...] | team=TIMES [--workers N]
KIND is one of kill, pause, hiccup, cut, sever, nats-away, nats-kill, nats-minute, leader-kill, sql-cut, sql-away; unless said, each that
fits is done 10 times, nats-minute never. With `team`, so many teams of --workers are made, and their lead's node is killed.";

#[tokio::main]
async fn main() -> Result<()> {
    let plan = plan(std::env::args().skip(1))?;
    println!("{plan:?}");
    if plan.teams > 0 {
        let rounds = chaos::run_teams(&plan).await?;
        println!("{}", figures::of_teams(&rounds));
        return Ok(());
    }
    let figures = chaos::run(&plan)
        .await
        .with_context(|| format!("seed {}", plan.seed))?;
    println!("{figures}");
    Ok(())
}

fn plan(mut words: impl Iterator<Item = String>) -> Result<Plan> {
    let mut plan = Plan::calm(fastrand::u64(..), Backend::Sqlite);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("{word} wants a value\n{USAGE}"))
        };
        match word.as_str() {
            "--seed" => plan.seed = value()?.parse()?,
            "--nodes" => plan.nodes = value()?.parse()?,
            "--sessions" => plan.sessions = value()?.parse()?,
            "--calm" => plan.calm = Duration::from_millis(value()?.parse()?),
            "--workers" => plan.workers = value()?.parse()?,
            "--servers" => plan.servers = servers(&value()?)?,
            "--store" => plan.backend = backend(&value()?)?,
            _ => match word.strip_prefix("team=") {
                Some(times) => plan.teams = times.parse()?,
                None => plan.faults.push(fault(&word)?),
            },
        }
    }
    if plan.faults.is_empty() {
        let all = Kind::ALL.iter().map(|(_, kind)| *kind);
        let fit = all.filter(|kind| *kind != Kind::NatsMinute && kind.fits(&plan));
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

fn servers(number: &str) -> Result<Servers> {
    match number {
        "1" => Ok(Servers::One),
        "3" => Ok(Servers::Three),
        _ => bail!("--servers is 1 or 3\n{USAGE}"),
    }
}

fn fault(word: &str) -> Result<(Kind, u32)> {
    let (name, times) = word
        .split_once('=')
        .with_context(|| format!("`{word}`?\n{USAGE}"))?;
    let kind = Kind::parse(name).with_context(|| format!("`{name}` is no fault\n{USAGE}"))?;
    Ok((kind, times.parse()?))
}
