//! Checks the promises of Planck on the machine and the servers of its user. Starts nodes of its own,
//! keeps sessions busy, inflicts faults, and judges what is left.
//!
//! The judge is a stranger to the runtime: it uses only the wire protocol (`docs/protocol.md`), the
//! `planck` command and a file to which tools append lines, and shares no code with them.

mod client;
mod evidence;
mod faults;
mod judge;
mod link;
mod load;
mod nats_server;
mod planted;
mod preflight;
mod processes;
mod promise;
mod report;
mod schema;
mod stage;
mod timeline;

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    client::{seq, text},
    evidence::{AcceptedPrompt, Evidence, SessionEvidence},
    load::Load,
    stage::Stage,
};

pub use crate::{
    client::without_secret,
    evidence::FaultKind,
    judge::Verdict,
    nats_server::NatsServer,
    planted::PlantedFaults,
    preflight::{Fact, FactState},
    processes::{Launch, Process},
    promise::Promise,
    report::Report,
    stage::Place,
};

/// How many sessions are busy.
const SESSIONS: usize = 3;
/// How long the cluster works undisturbed between two faults.
const CALM: Duration = Duration::from_millis(300);
/// How long an attached client may take to print what is in the log at the end.
const CAUGHT_UP: Duration = Duration::from_secs(30);
/// How long a log may take to be read at the end.
const READ: Duration = Duration::from_secs(60);
/// From this time on, a proof has a whole minute without NATS.
const LONG: Duration = Duration::from_secs(600);

/// A proof to run: its place, its faults and how long it inflicts them.
#[derive(Debug, Clone)]
pub struct Proof {
    pub place: Place,
    pub seed: u64,
    /// How long faults are inflicted. Each fault that fits the place is inflicted once in any case.
    pub lasts: Duration,
    /// The faults to inflict, all that fit the place if there are none. A fault with a number is inflicted as
    /// often as that, however long it takes.
    pub only: Vec<(FaultKind, Option<u32>)>,
    /// Whether each tool runs twice, so that a person sees that the judge finds it in a real run.
    pub doubles_runs: bool,
    /// Where the report and, if a promise is broken, the logs are written.
    pub folder: PathBuf,
}

/// Tells a person what happens.
pub type Tell = dyn Fn(&str) + Send + Sync;

/// An environment in which nothing can be proven.
#[derive(Debug, thiserror::Error)]
#[error("nothing can be proven here: {0}")]
pub struct UnfitPlace(pub String);

impl Proof {
    /// Runs the proof, and removes everything that it has made. The report says which promises are kept.
    /// There is none after `interrupted`.
    ///
    /// # Errors
    ///
    /// [`UnfitPlace`] if the machine or a server is not fit for a proof, and other errors if the proof
    /// itself fails.
    pub async fn run(
        self,
        tell: &Tell,
        interrupted: impl Future<Output = ()>,
    ) -> Result<Option<Report>> {
        self.refuse_impossible()?;
        let temporary = std::env::temp_dir();
        let unfit = |error: anyhow::Error| UnfitPlace(format!("{error:#}"));
        let mut facts = preflight::before(&self.place, &temporary)
            .await
            .map_err(unfit)?;
        refuse_bad(&facts)?;
        let stage = Stage::set(self.place.clone(), |ledger| {
            load::script(ledger, self.doubles_runs, self.place.workers)
        });
        let mut stage = stage.await.map_err(unfit)?;
        let began = Instant::now();
        let played = tokio::select! {
            biased;
            () = interrupted => Ok(None),
            played = Box::pin(self.play(&mut stage, &mut facts, tell)) => played.map(Some),
        };
        let torn_down = stage.tear_down().await;
        let played = played?;
        torn_down?;
        let Some(mut evidence) = played else {
            return Ok(None);
        };
        evidence.left.extend(left(stage.folder.path()).await);
        let report = Report::of(&self, facts, &evidence, began.elapsed());
        report.write(&self.folder, &evidence, stage.folder.path())?;
        Ok(Some(report))
    }

    /// Returns whether a fault can be inflicted in this place, and why not.
    fn fits(&self, kind: FaultKind) -> Result<(), &'static str> {
        let place = &self.place;
        let is_of_store = matches!(kind, FaultKind::StoreAway | FaultKind::StoreCut);
        if is_of_store && place.postgres.is_none() {
            return Err("SQLite is a file on this machine, which is never away");
        }
        if kind == FaultKind::NatsWiped && place.nats.is_some() {
            return Err(
                "the data of your NATS is not removed; without --nats the proof starts its own",
            );
        }
        if kind == FaultKind::NatsKilled && place.nats.is_some() {
            return Err("your NATS is not killed; without --nats the proof starts its own");
        }
        if kind == FaultKind::LeaderKilled && place.servers == 1 {
            return Err("a single server has no others; --servers 3 starts three");
        }
        if !self.only.is_empty() && self.only.iter().all(|(only, _)| *only != kind) {
            return Err("it was left out with --only");
        }
        Ok(())
    }

    fn refuse_impossible(&self) -> Result<(), UnfitPlace> {
        if let (Some(url), true) = (&self.place.nats, self.place.servers > 1) {
            return Err(UnfitPlace(format!(
                "several servers are those of a NATS of the proof's own, and the settings name yours at {}; leave out --nats or --servers",
                without_secret(url)
            )));
        }
        for (kind, _) in &self.only {
            self.fits(*kind).map_err(|why| {
                UnfitPlace(format!("`{}` of --only does not fit: {why}", kind.name()))
            })?;
        }
        Ok(())
    }

    /// Returns the faults to inflict, and how often those with a number.
    fn faults(&self) -> Vec<(FaultKind, Option<u32>)> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let all = FaultKind::ALL.into_iter();
        all.filter(|kind| self.fits(*kind).is_ok())
            .map(|kind| (kind, None))
            .collect()
    }

    /// Inflicts the faults, and gathers the evidence.
    async fn play(
        &self,
        stage: &mut Stage,
        facts: &mut Vec<Fact>,
        tell: &Tell,
    ) -> Result<Evidence> {
        facts.extend(preflight::of_nodes(stage).await?);
        refuse_bad(facts)?;
        tell(&format!("{} nodes work", stage.nodes.len()));
        let stalls = Stalls::start();
        let mut load = Load::start(stage, SESSIONS).await?;
        let readers = Readers::start(stage, &load.sessions).await?;
        let mut evidence = Evidence::default();
        let mut decided = Vec::new();
        let (mut random, began) = (fastrand::Rng::with_seed(self.seed), Instant::now());
        let mut kinds = self.faults();
        // The verdicts have their bound only while NATS has been there for some time.
        let mut healthy_from = began;
        for round in 0.. {
            random.shuffle(&mut kinds);
            kinds.sort_by_key(|(kind, _)| kind.is_of_nats());
            let before = evidence.faults.len();
            for (kind, times) in &mut kinds {
                let is_due = match times {
                    Some(times) => *times > 0,
                    None => round == 0 || began.elapsed() < self.lasts,
                };
                if !is_due {
                    continue;
                }
                *times = times.map(|times| times - 1);
                sleep(CALM).await;
                if kind.is_death() {
                    sleep_until(healthy_from).await;
                }
                let lasts = self.lasts_of(*kind, &mut random);
                let number = random.usize(..SESSIONS);
                let fault = faults::inflict(*kind, lasts, number, stage, &load);
                let fault = Box::pin(fault).await?;
                tell(&report::told(&fault));
                evidence.faults.push(fault);
                healthy_from = healthy_from.max(Instant::now() + recovery(*kind));
            }
            if evidence.faults.len() == before {
                break;
            }
            let decision = Box::pin(faults::decide_twice(stage, decided.len())).await?;
            tell("two people decided about one call");
            decided.push(decision);
        }
        tell("the last prompts are answered");
        evidence.accepted = load.finish().await?;
        evidence.left = left(&stage.ledger()).await;
        gather(stage, readers, decided, &mut evidence).await?;
        evidence.stall = stalls.longest();
        Ok(evidence)
    }

    fn lasts_of(&self, kind: FaultKind, random: &mut fastrand::Rng) -> Duration {
        let millis = match kind {
            FaultKind::NatsAway if self.lasts >= LONG && random.u8(..4) == 0 => 60_000,
            FaultKind::NatsAway | FaultKind::LeaderKilled => random.u64(500..6_000),
            FaultKind::StoreAway => random.u64(1_000..4_000),
            FaultKind::StoreCut => random.u64(50..300),
            FaultKind::NatsWiped | FaultKind::Hiccup => random.u64(100..1_000),
            FaultKind::Kill
            | FaultKind::Freeze
            | FaultKind::Cut
            | FaultKind::Sever
            | FaultKind::Drain
            | FaultKind::Team
            | FaultKind::NatsKilled => 0,
        };
        Duration::from_millis(millis)
    }
}

async fn gather(
    stage: &Stage,
    readers: Readers,
    decided: Vec<(evidence::WaitEvidence, AcceptedPrompt)>,
    evidence: &mut Evidence,
) -> Result<()> {
    for (id, reader) in readers.0 {
        let log = stage.caller.log(&id, 1, READ).await?;
        let early = durable(&reader, log.len() as u64).await;
        reader.leave().await;
        evidence.sessions.push(SessionEvidence {
            id,
            log: Arc::new(log),
            early: Some(Arc::new(early)),
        });
    }
    for (wait, prompt) in decided {
        let log = ended(stage, &prompt).await?;
        evidence.sessions.push(SessionEvidence {
            id: wait.session.clone(),
            log: Arc::new(log),
            early: None,
        });
        evidence.accepted.push(prompt);
        evidence.waits.push(wait);
    }
    evidence.requests = stage.model.request_count();
    let refused = stage.model.violations();
    evidence.refused = refused.into_iter().map(|refused| refused.message).collect();
    evidence.declared_dead = stage.timeline.deaths();
    let ledger = std::fs::read_to_string(stage.ledger()).unwrap_or_default();
    evidence.ledger = ledger.lines().map(str::to_owned).collect();
    Ok(())
}

/// Waits until no process has this path on its command line, and returns the command lines of those that
/// remain.
async fn left(path: &Path) -> Vec<String> {
    let path = path.to_string_lossy();
    let mut left = processes::processes_with(&path);
    // The kernel may still remove the last process.
    for _ in 0..50 {
        if left.is_empty() {
            break;
        }
        sleep(Duration::from_millis(100)).await;
        left = processes::processes_with(&path);
    }
    left
}

/// Waits until a prompt has its end, and returns the log. The judge sees if there is no end.
async fn ended(stage: &Stage, prompt: &AcceptedPrompt) -> Result<Vec<Value>> {
    let until = Instant::now() + CAUGHT_UP;
    loop {
        let log = stage.caller.log(&prompt.session, 1, READ).await?;
        let is_over = |event: &Value| matches!(text(event, "type"), "turn_end" | "error");
        if log.iter().any(is_over) || Instant::now() > until {
            return Ok(log);
        }
        sleep(CALM).await;
    }
}

/// Returns how long after a fault the bound of verdicts does not hold (`docs/protocol.md`): a node declares
/// others dead only after steady heartbeats of its own, and one without a record only when the registry
/// had time to fill again.
const fn recovery(kind: FaultKind) -> Duration {
    match kind {
        FaultKind::NatsAway | FaultKind::NatsKilled | FaultKind::LeaderKilled => {
            Duration::from_secs(5)
        }
        FaultKind::NatsWiped => Duration::from_secs(17),
        FaultKind::Kill
        | FaultKind::Freeze
        | FaultKind::Hiccup
        | FaultKind::Cut
        | FaultKind::Sever
        | FaultKind::Drain
        | FaultKind::Team
        | FaultKind::StoreAway
        | FaultKind::StoreCut => Duration::ZERO,
    }
}

fn refuse_bad(facts: &[Fact]) -> Result<()> {
    let Some(bad) = facts.iter().find(|fact| fact.state == FactState::Bad) else {
        return Ok(());
    };
    let remedy = bad.remedy.as_deref().unwrap_or_default();
    Err(UnfitPlace(format!("{}: {}; {remedy}", bad.name, bad.what)).into())
}

/// One attached client for each session, since before the first fault.
struct Readers(Vec<(String, Process)>);

impl Readers {
    async fn start(stage: &Stage, sessions: &[String]) -> Result<Self> {
        let mut readers = Vec::new();
        for id in sessions {
            let words = ["session", "attach", id, "--from", "1", "-o", "jsonl"];
            let name = format!("reader-{id}");
            let process = stage.start(&name, &stage.as_client(&words))?;
            readers.push((id.clone(), process));
        }
        for (_, reader) in &readers {
            // The client has subscribed by then, because it subscribes before it reads the log.
            durable(reader, 1).await;
        }
        Ok(Self(readers))
    }
}

/// Waits until an attached client has printed the log up to a row, and returns the durable events up to
/// there. The judge sees if it has printed less.
async fn durable(reader: &Process, head: u64) -> Vec<Value> {
    let until = Instant::now() + CAUGHT_UP;
    loop {
        let output = reader.output();
        let lines = output
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut events: Vec<Value> = events.filter(|event| seq(event).is_some()).collect();
        let is_there = events.last().and_then(seq) >= Some(head);
        events.retain(|event| seq(event) <= Some(head));
        if is_there || Instant::now() > until {
            return events;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Measures by how much the timers of this process are late, which is how long the machine gave it no
/// time.
struct Stalls {
    longest: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Stalls {
    fn start() -> Self {
        let longest = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&longest);
        let pause = Duration::from_millis(20);
        let task = tokio::spawn(async move {
            loop {
                let began = Instant::now();
                sleep(pause).await;
                let late = began.elapsed().saturating_sub(pause).as_millis();
                shared.fetch_max(u64::try_from(late).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { longest, task }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.task.abort();
    }
}
