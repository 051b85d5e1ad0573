//! The registry: a map with revisions, conditional writes and atomic batches, which can lose its
//! tail or everything.

use std::{collections::BTreeMap, time::Duration};

use planck_common::registry::{NodeStanding, TeamEnd, TeamStanding};

use crate::cluster::membership::{Revision, Seen};

/// Nodes by the number of their process, teams by the number of their session, agents by their
/// place in the team.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Node(usize),
    Team(usize, i64),
    Member(usize, i64, usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Team {
    pub standing: TeamStanding,
    pub node: usize,
    pub end: Option<TeamEnd>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Node {
        standing: NodeStanding,
        by: usize,
        silent: Option<Duration>,
    },
    Team(Team),
    Member,
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub revision: Revision,
    pub value: Value,
}

#[derive(Debug, Clone)]
pub struct Change {
    at: u64,
    key: Key,
    before: Option<Entry>,
}

#[derive(Debug, Default)]
pub struct Registry {
    entries: BTreeMap<Key, Entry>,
    revision: Revision,
    pub created: u64,
    /// How often it lost something.
    pub losses: u32,
    tail: Vec<Change>,
    /// How often each process proved its life.
    proofs: BTreeMap<usize, Revision>,
}

impl Registry {
    pub fn prove(&mut self, process: usize) {
        *self.proofs.entry(process).or_default() += 1;
    }

    pub fn proof(&self, process: usize) -> Option<Revision> {
        self.proofs.get(&process).copied()
    }

    pub fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(&key)
    }

    pub fn revision(&self, key: Key) -> Option<Revision> {
        self.get(key).map(|entry| entry.revision)
    }

    pub fn team(&self, session: usize, incarnation: i64) -> Option<(Revision, Team)> {
        match self.get(Key::Team(session, incarnation)) {
            Some(Entry {
                revision,
                value: Value::Team(team),
            }) => Some((*revision, *team)),
            _ => None,
        }
    }

    pub fn node(&self, process: usize) -> Option<Seen> {
        match self.get(Key::Node(process)) {
            Some(entry) => entry.seen(),
            None => None,
        }
    }

    pub fn nodes(&self) -> Vec<(usize, Seen)> {
        let keys = self
            .entries
            .range(Key::Node(0)..=Key::Node(usize::MAX))
            .map(|(key, _)| *key);
        keys.filter_map(|key| {
            if let Key::Node(process) = key {
                Some((process, self.node(process)?))
            } else {
                None
            }
        })
        .collect()
    }

    pub fn keys(&self) -> Vec<Key> {
        self.entries.keys().copied().collect()
    }

    pub fn put(&mut self, now: u64, key: Key, value: Value) -> Revision {
        self.revision += 1;
        let entry = Entry {
            revision: self.revision,
            value,
        };
        let before = self.entries.insert(key, entry);
        self.tail.push(Change {
            at: now,
            key,
            before,
        });
        self.revision
    }

    pub fn remove(&mut self, now: u64, key: Key) {
        if let Some(before) = self.entries.remove(&key) {
            self.revision += 1;
            self.tail.push(Change {
                at: now,
                key,
                before: Some(before),
            });
        }
    }

    /// A power cut: what was acknowledged since then is gone, and revisions are given out again.
    pub fn lose_tail(&mut self, since: u64) {
        self.losses += 1;
        while let Some(change) = self.tail.pop_if(|change| change.at >= since) {
            match change.before {
                Some(before) => self.entries.insert(change.key, before),
                None => self.entries.remove(&change.key),
            };
            self.revision = self.revision.saturating_sub(1);
        }
    }

    pub fn wipe(&mut self, now: u64) {
        *self = Self {
            created: now,
            losses: self.losses + 1,
            ..Self::default()
        };
    }
}

impl Entry {
    /// A node's record as its readers see it.
    pub fn seen(&self) -> Option<Seen> {
        let Value::Node {
            standing,
            by,
            silent,
        } = self.value
        else {
            return None;
        };
        Some(Seen {
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
