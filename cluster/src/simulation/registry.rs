//! The simulated registry, which is a map with revisions and conditional writes. It can lose its
//! latest writes or everything.

use std::{collections::BTreeMap, time::Duration};

use planck_common::registry::{NodeStanding, TeamStanding};

use crate::membership::{Revision, SeenNode};

/// An incarnation of a team, as the number of its session and the number of the incarnation.
pub type TeamKey = (usize, i64);

/// The key of a record. Nodes are numbered by process, teams by session, and agents by their place
/// in the team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimKey {
    Node(usize),
    Team(TeamKey),
    Member(TeamKey, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimTeam {
    pub standing: TeamStanding,
    /// The node of the lead.
    pub node: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimValue {
    Node {
        standing: NodeStanding,
        by: usize,
        silent: Option<Duration>,
    },
    Team(SimTeam),
    /// A member on this node.
    Member(usize),
}

#[derive(Debug, Clone)]
pub struct SimRecord {
    pub revision: Revision,
    pub value: SimValue,
}

#[derive(Debug, Clone)]
struct LoggedChange {
    at: u64,
    key: SimKey,
    before: Option<SimRecord>,
}

#[derive(Debug, Default)]
pub struct SimRegistry {
    records: BTreeMap<SimKey, SimRecord>,
    revision: Revision,
    /// When the registry was created, or `None` if there is none.
    pub created: Option<u64>,
    /// How often the registry lost data.
    pub losses: u32,
    tail: Vec<LoggedChange>,
    /// The number of proofs of each process, which stands for the revision of the newest proof.
    proofs: BTreeMap<usize, Revision>,
}

impl SimRegistry {
    pub fn prove(&mut self, process: usize) {
        *self.proofs.entry(process).or_default() += 1;
    }

    pub fn proof(&self, process: usize) -> Option<Revision> {
        self.proofs.get(&process).copied()
    }

    pub fn get(&self, key: SimKey) -> Option<&SimRecord> {
        self.records.get(&key)
    }

    pub fn revision(&self, key: SimKey) -> Option<Revision> {
        self.get(key).map(|record| record.revision)
    }

    pub fn team(&self, team: TeamKey) -> Option<(Revision, SimTeam)> {
        match self.get(SimKey::Team(team)) {
            Some(SimRecord {
                revision,
                value: SimValue::Team(team),
            }) => Some((*revision, *team)),
            Some(_) | None => None,
        }
    }

    pub fn node(&self, process: usize) -> Option<SeenNode> {
        self.get(SimKey::Node(process)).and_then(SimRecord::seen)
    }

    pub fn nodes(&self) -> Vec<(usize, SeenNode)> {
        let records = self
            .records
            .range(SimKey::Node(0)..=SimKey::Node(usize::MAX));
        let seen = records.filter_map(|(key, record)| match key {
            SimKey::Node(process) => Some((*process, record.seen()?)),
            SimKey::Team(_) | SimKey::Member(..) => None,
        });
        seen.collect()
    }

    pub fn put(&mut self, now: u64, key: SimKey, value: SimValue) -> Revision {
        self.revision += 1;
        let record = SimRecord {
            revision: self.revision,
            value,
        };
        let before = self.records.insert(key, record);
        self.tail.push(LoggedChange {
            at: now,
            key,
            before,
        });
        self.revision
    }

    pub fn remove(&mut self, now: u64, key: SimKey) {
        if let Some(before) = self.records.remove(&key) {
            self.revision += 1;
            self.tail.push(LoggedChange {
                at: now,
                key,
                before: Some(before),
            });
        }
    }

    /// Simulates a power cut. Discards the writes from `since` on, and makes their revisions
    /// available to later writes.
    pub fn lose_tail(&mut self, since: u64) {
        self.losses += 1;
        while let Some(change) = self.tail.pop_if(|change| change.at >= since) {
            match change.before {
                Some(before) => self.records.insert(change.key, before),
                None => self.records.remove(&change.key),
            };
            self.revision = self.revision.saturating_sub(1);
        }
    }

    pub fn wipe(&mut self) {
        *self = Self {
            losses: self.losses + 1,
            ..Self::default()
        };
    }
}

impl SimRecord {
    /// Returns a node's record as its readers see it.
    pub fn seen(&self) -> Option<SeenNode> {
        let SimValue::Node {
            standing,
            by,
            silent,
        } = self.value
        else {
            return None;
        };
        Some(SeenNode {
            revision: self.revision,
            standing,
            nonce: nonce(by),
            silent,
        })
    }
}

pub fn nonce(process: usize) -> String {
    format!("of {process}")
}
