//! Looks before the proof at what would make promises void on this machine and its servers.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::{
    schema,
    stage::{Place, Stage},
};

/// How long `planck doctor` may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The smallest free space in which a proof begins.
const ROOM: u64 = 1 << 30;

/// Something that was found about the machine or a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub name: String,
    pub state: FactState,
    pub what: String,
    /// The way out, if something is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactState {
    Good,
    /// Something weakens a promise, or is worth knowing.
    Note,
    /// The promises cannot hold here.
    Bad,
}

impl Fact {
    pub fn good(name: &str, what: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            state: FactState::Good,
            what: what.into(),
            remedy: None,
        }
    }

    pub fn note(name: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state: FactState::Note,
            remedy: Some(remedy.into()),
            ..Self::good(name, what)
        }
    }

    pub fn bad(name: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            state: FactState::Bad,
            remedy: Some(remedy.into()),
            ..Self::good(name, what)
        }
    }
}

/// Looks at what can be seen before anything is made.
pub async fn before(place: &Place, folder: &Path) -> Result<Vec<Fact>> {
    let mut facts = vec![room(folder)?];
    if let Some(url) = &place.postgres {
        facts.extend(schema::settings(url).await?);
    }
    Ok(facts)
}

fn room(folder: &Path) -> Result<Fact> {
    let found = nix::sys::statvfs::statvfs(folder)
        .with_context(|| format!("cannot look at the disk of {}", folder.display()))?;
    let free = found
        .blocks_available()
        .saturating_mul(found.fragment_size());
    let what = format!("{} MiB free in {}", free >> 20, folder.display());
    Ok(match free < ROOM {
        true => Fact::bad("disk", what, "free 1 GiB, or set TMPDIR to another disk"),
        false => Fact::good("disk", what),
    })
}

/// Looks at the cluster with `planck doctor`, in the configuration of its first node.
pub async fn of_nodes(stage: &Stage) -> Result<Vec<Fact>> {
    let config = stage.path("prove-1.toml").into_os_string();
    let words = ["doctor", "--node", "-o", "json", "--no-project", "--config"];
    let words = words.iter().map(Into::into).chain([config]);
    let mut doctor = stage.start("doctor", &words.collect::<Vec<_>>())?;
    doctor.ended(PATIENCE).await?;
    let said = doctor.output();
    let facts: Vec<Fact> = serde_json::from_str(&said)
        .with_context(|| format!("`planck doctor` says no list:\n{}", doctor.last_lines()))?;
    let mut facts: Vec<Fact> = facts.into_iter().filter(concerns).collect();
    facts.push(registry(stage).await?);
    Ok(facts)
}

/// Returns whether a finding about a node is one about the place of the proof.
fn concerns(fact: &Fact) -> bool {
    let place = [
        "nats",
        "messages",
        "registry",
        "nats clock",
        "store",
        "store write",
        "store clock",
        "processes",
        "sandbox",
    ];
    place.contains(&fact.name.as_str())
}

/// Looks at how many copies of the registry there are.
async fn registry(stage: &Stage) -> Result<Fact> {
    let copies = stage.registry().await?.config.num_replicas;
    let what = format!("{copies} copies of the registry");
    Ok(match copies {
        0 | 1 => Fact::note(
            "registry",
            "one copy of the registry",
            "with three servers and `nats.replicas = 3` it survives the loss of one",
        ),
        _ => Fact::good("registry", what),
    })
}
