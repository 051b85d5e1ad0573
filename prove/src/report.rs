//! What is told at the end: a table for a terminal, Markdown and JSON.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::Value;

use crate::{
    Fact, FactState, Proof,
    client::{data, seq, text, without_secret},
    evidence::{Evidence, FaultEvidence, FaultKind},
    judge::{Place, Verdict, judge},
    planted::{PlantedFaults, plant},
    promise::Promise,
};

/// How many events are shown before and after the place of a breach.
const AROUND: u64 = 10;

/// The result of a proof.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where it ran.
    pub place: String,
    pub seed: u64,
    pub seconds: u64,
    /// The command that runs the proof again.
    pub again: String,
    pub facts: Vec<Fact>,
    pub promises: Vec<JudgedPromise>,
    pub planted: PlantedFaults,
    faults: Vec<FaultEvidence>,
    #[serde(skip)]
    pub folder: PathBuf,
}

#[derive(Debug, Serialize)]
pub struct JudgedPromise {
    pub name: &'static str,
    pub promise: &'static str,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The events around the place of a breach.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    around: Vec<String>,
}

/// Returns a sentence about a fault.
pub fn told(fault: &FaultEvidence) -> String {
    let seconds = |time: Option<Duration>| time.map(|time| format!("{:.1} s", time.as_secs_f64()));
    let lasted = seconds(fault.lasted).map(|time| format!(" for {time}"));
    let went_on = match seconds(fault.went_on) {
        None if fault.team.is_some() => "the team has ended".to_owned(),
        None if fault.kind == FaultKind::Hiccup => "the node goes on".to_owned(),
        Some(time) => format!("went on after {time}"),
        None => "did not go on".to_owned(),
    };
    format!(
        "{}{}: {went_on}",
        fault.kind.name(),
        lasted.unwrap_or_default()
    )
}

impl Report {
    pub fn of(proof: &Proof, facts: Vec<Fact>, evidence: &Evidence, took: Duration) -> Self {
        // A file on this machine is never away, and a single server has no others.
        let is_there = |promise: &Promise| {
            (*promise != Promise::StoreAway || proof.place.postgres.is_some())
                && (*promise != Promise::ServerLost || proof.place.servers > 1)
        };
        let known = Promise::ALL.into_iter().filter(is_there);
        let judged = known.map(|promise| {
            let mut verdict = judge(promise, evidence);
            let needed = promise.faults().first();
            let unfit = needed.and_then(|kind| proof.fits(*kind).err());
            if let (Verdict::NotTested { why }, Some(unfit)) = (&mut verdict, unfit) {
                unfit.clone_into(why);
            }
            let around = match &verdict {
                Verdict::Broken {
                    place: Some(place), ..
                } => around(evidence, place),
                Verdict::Broken { .. } | Verdict::Kept { .. } | Verdict::NotTested { .. } => {
                    Vec::new()
                }
            };
            JudgedPromise {
                name: promise.name(),
                promise: promise.sentence(),
                verdict,
                around,
            }
        });
        let nats = match &proof.place.nats {
            Some(url) => format!("your NATS at {}", without_secret(url)),
            None if proof.place.servers > 1 => {
                format!("a NATS of its own of {} servers", proof.place.servers)
            }
            None => "a NATS of its own".to_owned(),
        };
        let store = match &proof.place.postgres {
            Some(url) => format!("a schema of its own in {}", without_secret(url)),
            None => "SQLite".to_owned(),
        };
        Self {
            place: format!(
                "{} nodes on this machine, {nats}, {store}",
                proof.place.nodes
            ),
            seed: proof.seed,
            seconds: took.as_secs(),
            again: again(proof),
            facts,
            promises: judged.collect(),
            planted: plant(evidence),
            faults: evidence.faults.clone(),
            folder: proof.folder.clone(),
        }
    }

    /// Returns whether a promise is broken, or the judge missed a fault that was planted.
    pub fn is_broken(&self) -> bool {
        let broken = |judged: &JudgedPromise| matches!(judged.verdict, Verdict::Broken { .. });
        self.promises.iter().any(broken) || !self.planted.missed.is_empty()
    }

    /// Returns whether a promise was not tested.
    pub fn is_partial(&self) -> bool {
        let untested = |judged: &JudgedPromise| matches!(judged.verdict, Verdict::NotTested { .. });
        self.promises.iter().any(untested)
    }

    /// Writes `report.md` and `report.json`. If a promise is broken, also writes the logs of the sessions
    /// and of the nodes.
    pub fn write(&self, folder: &Path, evidence: &Evidence, logs: &Path) -> Result<()> {
        let write = |name: &str, text: String| {
            let file = folder.join(name);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
        };
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        write("report.md", self.markdown())?;
        write("report.json", serde_json::to_string_pretty(self)? + "\n")?;
        if !self.is_broken() {
            return Ok(());
        }
        for session in &evidence.sessions {
            let lines = session.log.iter().map(|event| format!("{event}\n"));
            write(&format!("session-{}.jsonl", session.id), lines.collect())?;
        }
        write("ledger", evidence.ledger.join("\n") + "\n")?;
        for file in fs::read_dir(logs)?.flatten() {
            let path = file.path();
            let is_log = path
                .extension()
                .is_some_and(|end| end == "log" || end == "err");
            if is_log && let Some(name) = path.file_name() {
                fs::copy(&path, folder.join(name))?;
            }
        }
        Ok(())
    }

    /// Returns the report as a page.
    pub fn markdown(&self) -> String {
        let mut page = format!(
            "# Proof of Planck\n\n{}; seed {}, {} s.\n\nAgain: `{}`\n\n| promise | result | tested | figures |\n|---|---|---|---|\n",
            self.place, self.seed, self.seconds, self.again
        );
        for judged in &self.promises {
            let (result, tested, figures) = judged.columns();
            page += &format!("| {} | {result} | {tested} | {figures} |\n", judged.promise);
        }
        page += &format!("\n{}\n", self.planted_line());
        for judged in self
            .promises
            .iter()
            .filter(|judged| !judged.around.is_empty())
        {
            page += &format!(
                "\n## Around the breach of \"{}\"\n\n```\n{}\n```\n",
                judged.promise,
                judged.around.join("\n")
            );
        }
        page += "\n## The machine and its servers\n\n";
        for fact in &self.facts {
            let remedy = fact.remedy.as_ref().map(|remedy| format!(" ({remedy})"));
            let mark = match fact.state {
                FactState::Good => "",
                FactState::Note => "**note** ",
                FactState::Bad => "**bad** ",
            };
            page += &format!(
                "- {mark}{}: {}{}\n",
                fact.name,
                fact.what,
                remedy.unwrap_or_default()
            );
        }
        page += "\n## The faults\n\n| fault | node | lasted | verdict | went on |\n|---|---|---|---|---|\n";
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| {
                format!("{:.2} s", time.as_secs_f64())
            })
        };
        for fault in &self.faults {
            page += &format!(
                "| {} | {} | {} | {} | {} |\n",
                fault.kind.name(),
                fault.node.as_deref().unwrap_or("-"),
                seconds(fault.lasted),
                seconds(fault.verdict),
                seconds(fault.went_on)
            );
        }
        page
    }

    /// Returns a sentence about the faults that were planted to test the judge.
    pub fn planted_line(&self) -> String {
        let PlantedFaults {
            found,
            missed,
            not_planted,
        } = &self.planted;
        let of = found.len() + missed.len();
        let mut line = format!("planted faults found: {} of {of}", found.len());
        if !missed.is_empty() {
            line += &format!("; the judge is blind here: {}", missed.join(", "));
        }
        if !not_planted.is_empty() {
            line += &format!("; nothing to plant them in: {}", not_planted.join(", "));
        }
        line
    }
}

impl JudgedPromise {
    /// Returns the columns of a table: the result, how often it was tested, and the figures.
    pub fn columns(&self) -> (&'static str, &str, &str) {
        match &self.verdict {
            Verdict::Kept { tested, figures } => ("kept", tested, figures),
            Verdict::Broken { what, .. } => ("**BROKEN**", "", what),
            Verdict::NotTested { why } => ("not tested", "", why),
        }
    }
}

fn again(proof: &Proof) -> String {
    let mut words = vec![format!(
        "planck prove --seed {} --for {}s",
        proof.seed,
        proof.lasts.as_secs()
    )];
    let (nodes, servers) = (proof.place.nodes, proof.place.servers);
    let workers = proof.place.workers;
    words.push(format!(
        "--nodes {nodes} --servers {servers} --workers {workers}"
    ));
    if let Some(url) = &proof.place.nats {
        words.push(format!("--nats {}", without_secret(url)));
    }
    if let Some(url) = &proof.place.postgres {
        words.push(format!("--store {}", without_secret(url)));
    }
    if !proof.only.is_empty() {
        let only = proof.only.iter().map(|(kind, times)| match times {
            Some(times) => format!("{}={times}", kind.name()),
            None => kind.name().to_owned(),
        });
        let only: Vec<_> = only.collect();
        words.push(format!("--only {}", only.join(",")));
    }
    if proof.doubles_runs {
        words.push("--play-double".to_owned());
    }
    words.join(" ")
}

/// Returns a line for each event around a place.
fn around(evidence: &Evidence, place: &Place) -> Vec<String> {
    let session = evidence
        .sessions
        .iter()
        .find(|session| session.id == place.session);
    let near = |event: &&Value| seq(event).is_some_and(|seq| seq.abs_diff(place.seq) <= AROUND);
    let events = session
        .into_iter()
        .flat_map(|session| session.log.iter())
        .filter(near);
    let line = |event: &Value| {
        let mark = if seq(event) == Some(place.seq) {
            ">"
        } else {
            " "
        };
        let about = ["call_id", "decision", "reason", "from_node"].map(|name| data(event, name));
        format!(
            "{mark} {} {} {} agent {} node {} {}",
            seq(event).unwrap_or_default(),
            text(event, "at"),
            text(event, "type"),
            text(event, "agent_id"),
            text(event, "node_id"),
            about.join(" ").trim()
        )
    };
    events.map(line).collect()
}
