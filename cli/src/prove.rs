//! `planck prove`: checks the promises of Planck under faults, on this machine and the servers of its
//! user.

use std::{collections::BTreeSet, ops::RangeInclusive, path::PathBuf};

use anyhow::Context as _;
use clap::Args;
use planck_common::quantity::Period;
use planck_host::terminal::Drawing;
use planck_prove::{
    FactState, FaultKind, Place, Proof, Report, UnfitPlace, Verdict, without_secret,
};
use planck_toolbox::reap;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    args::GlobalArgs,
    exit::{Exit, UsageError},
    output::{Format, Output, draw, json, say, warn},
    render::{Style, style::Paint},
};

/// How often a fault can be inflicted that has a number.
const MOST_TIMES: RangeInclusive<u32> = 1..=10_000;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck prove                               # a minute, with a NATS of its own and SQLite
  planck prove --for 1h --seed 7
  planck prove --nats nats://db1:4222 --store postgres://db1/planck
  planck prove --only freeze,nats-away
  planck prove --only kill=20,leader-killed=10 --servers 3

Exit codes: 0 if all promises are kept, 1 if one is broken, 2 if nothing can be proven here, 3 if one
was not tested.")]
pub struct ProveArgs {
    /// How long faults are inflicted. Each is inflicted once in any case
    #[arg(long = "for", value_name = "TIME", default_value = "1m")]
    lasts: Period,
    /// Chooses the order of the faults; a random one by default
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// How many nodes work
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=20))]
    nodes: u8,
    /// How many servers the NATS of its own has: 1 or 3
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = servers)]
    servers: usize,
    /// How many workers the team has that ends with its node
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=2000))]
    workers: u16,
    /// The faults to inflict, by default all that fit. `kill=20` is inflicted 20 times, however long it takes
    #[arg(long, value_name = "FAULT[=TIMES]", value_delimiter = ',', value_parser = fault)]
    only: Vec<(FaultKind, Option<u32>)>,
    /// The folder for the report; `prove-SEED` by default
    #[arg(long, value_name = "FOLDER")]
    report: Option<PathBuf>,
    /// Play a defect of the runtime, to see that it is found: each tool runs twice
    #[arg(long)]
    play_double: bool,
    #[command(flatten)]
    output: Output,
}

fn servers(number: &str) -> Result<usize, String> {
    match number {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("a NATS of its own has 1 server or 3".to_owned()),
    }
}

fn fault(word: &str) -> Result<(FaultKind, Option<u32>), String> {
    let (name, times) = match word.split_once('=') {
        Some((name, times)) => (name, Some(times)),
        None => (word, None),
    };
    let known = || FaultKind::ALL.into_iter();
    let kind = known().find(|kind| kind.name() == name).ok_or_else(|| {
        let names: Vec<_> = known().map(FaultKind::name).collect();
        format!(
            "there is no such fault; the faults are {}",
            names.join(", ")
        )
    })?;
    let number = |times: &str| {
        let number = times.parse().ok();
        let number = number.filter(|number| MOST_TIMES.contains(number));
        number.ok_or_else(|| {
            let (least, most) = MOST_TIMES.into_inner();
            format!("`{times}` is no number from {least} to {most}, as in `{name}=20`")
        })
    };
    Ok((kind, times.map(number).transpose()?))
}

impl ProveArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let _only_one = only_one()?;
        let proof = self.proof(global)?;
        let is_table = self.output.output == Format::Table;
        if is_table {
            say(&introduction(&proof))?;
        }
        let began = std::time::Instant::now();
        let tell = move |what: &str| {
            let seconds = began.elapsed().as_secs();
            warn(&format!("  {seconds:>4} s  {what}"));
        };
        let by = std::cell::Cell::new(Exit::Interrupted);
        let interrupted = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => by.set(Exit::Terminated),
            }
        };
        let Some(report) = Box::pin(proof.run(&tell, interrupted)).await? else {
            return Ok(by.get());
        };
        match self.output.output {
            Format::Json => json(&report)?,
            Format::Table => draw(&table(&report, Style::of_stdout()))?,
        }
        Ok(match (report.is_broken(), report.is_partial()) {
            (true, _) => Exit::Failed,
            (false, true) => Exit::Partial,
            (false, false) => Exit::Done,
        })
    }

    fn proof(&self, global: &GlobalArgs) -> anyhow::Result<Proof> {
        let mut named = BTreeSet::new();
        if let Some((twice, _)) = self.only.iter().find(|(kind, _)| !named.insert(*kind)) {
            let name = twice.name();
            return Err(UsageError(format!("--only names `{name}` twice; name it once")).into());
        }
        let config = global.config()?;
        let nats = &config.nats;
        // A NATS of the proof's own has no users.
        let creds = nats.creds.as_ref().filter(|_| nats.url.is_some());
        let nkey = nats.nkey.as_ref().filter(|_| nats.url.is_some());
        let store = config.store.url.reveal();
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(1..1_000_000));
        let folder = self.report.clone();
        Ok(Proof {
            place: Place {
                program: reap::THIS_BINARY.into(),
                launch: reap::bound_to_this_process,
                nats: nats.url.as_ref().map(|url| url.reveal().to_owned()),
                creds: creds.map(std::path::absolute).transpose()?,
                nkey: nkey.map(|nkey| nkey.reveal().to_owned()),
                postgres: store.starts_with("postgres").then(|| store.to_owned()),
                nodes: self.nodes.into(),
                servers: self.servers,
                workers: self.workers.into(),
            },
            seed,
            lasts: self.lasts.0,
            only: self.only.clone(),
            doubles_runs: self.play_double,
            folder: folder.unwrap_or_else(|| format!("prove-{seed}").into()),
        })
    }
}

/// Holds a lock of this user until it is dropped. Two proofs at once would disturb each other's times.
fn only_one() -> anyhow::Result<nix::fcntl::Flock<std::fs::File>> {
    let user = nix::unistd::getuid();
    let path = std::env::temp_dir().join(format!("planck-prove-{user}.lock"));
    let file =
        std::fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let lock = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock);
    lock.map_err(|(_, why)| {
        UnfitPlace(format!(
            "another `planck prove` of yours runs, whose lock is {} ({why}); wait for its end",
            path.display()
        ))
        .into()
    })
}

fn introduction(proof: &Proof) -> String {
    let Place {
        nats,
        postgres,
        nodes,
        servers,
        ..
    } = &proof.place;
    let nats = match nats {
        Some(url) => format!(
            "your NATS at {}, below a subject prefix of their own",
            without_secret(url)
        ),
        None if *servers > 1 => format!("a NATS of their own of {servers} servers"),
        None => "a NATS of their own".to_owned(),
    };
    let store = match postgres {
        Some(url) => format!(
            "your Postgres at {}, in a schema of their own",
            without_secret(url)
        ),
        None => "SQLite in a temporary folder".to_owned(),
    };
    format!(
        "{nodes} new nodes on this machine use {nats}, {store}, and a scripted model.\n\
         Only these nodes are killed, frozen and cut off. No session of yours is touched, and everything\n\
         that is made is removed at the end. Seed {}.\n\n",
        proof.seed
    )
}

/// Draws the report for a terminal.
fn table(report: &Report, style: Style) -> Drawing {
    let mut table = Drawing::default() + &*format!("\n{}\n\n", report.place);
    for fact in report
        .facts
        .iter()
        .filter(|fact| fact.state != FactState::Good)
    {
        let remedy = fact.remedy.as_deref().unwrap_or_default();
        table = table
            + style.paint(Paint::Warning, "·")
            + &*format!(" {}: {} → {remedy}\n", fact.name, fact.what);
    }
    for judged in &report.promises {
        let (mark, paint) = match &judged.verdict {
            Verdict::Kept { .. } => ("kept      ", Paint::Good),
            Verdict::Broken { .. } => ("BROKEN    ", Paint::Bad),
            Verdict::NotTested { .. } => ("not tested", Paint::Warning),
        };
        let (_, tested, figures) = judged.columns();
        let line = match tested.is_empty() {
            true => figures.to_owned(),
            false => format!("{tested:<36} {figures}"),
        };
        table = table + style.paint(paint, mark) + &*format!("  {:<46} {line}\n", judged.promise);
    }
    let planted = match report.planted.missed.is_empty() {
        true => Paint::Dim,
        false => Paint::Bad,
    };
    table = table + "\n" + style.paint(planted, &report.planted_line()) + "\n";
    if report.is_broken() {
        table += &*format!("again: {}\n", report.again);
    }
    let folder = report.folder.display();
    table + &*format!("report: {folder}/report.md, {folder}/report.json\n")
}
