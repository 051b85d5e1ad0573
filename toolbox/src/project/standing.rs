//! Decides whether the current state of a project is trusted.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use super::{
    CONFIG, FOLDER,
    admitted::Admitted,
    ledger::{Ledger, LedgerLine, TrustRecord},
    scan::{Untrustable, scan},
    snapshot::{Print, Snapshot},
};
use planck_host::regular_file::{EntryKind, OpenFolder};

/// A folder that contains a `.planck/` other than the user's own `~/.planck`.
#[derive(Debug, Clone)]
pub struct Project {
    /// The path of the folder, absolute and without links.
    pub folder: PathBuf,
}

/// The parts of a project that a command uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectUse {
    /// The configuration, the tools, the teams and the skills. Commands that run a node use them.
    Everything,
    /// The configuration only. Clients use only this part, because the nodes to which they connect
    /// have their own tools, teams and skills.
    Config,
}

/// Whether the user trusts the current state of a project.
#[derive(Debug)]
pub enum ProjectStanding {
    /// The project contains nothing that would have an effect, so no decision is needed.
    Nothing,
    Trusted(Admitted),
    /// The user has not decided yet, or decided in an earlier version, which stored only paths.
    Unknown(Snapshot),
    /// The project has changed since the user trusted it.
    Changed(Box<(Snapshot, TrustRecord)>),
    /// The project contains an entry that cannot be trusted by its content.
    Untrustable(Untrustable),
}

/// The names of the files and folders that were added, changed or deleted since the project was
/// trusted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub gone: Vec<String>,
}

impl Difference {
    pub fn between(before: &BTreeMap<String, Print>, now: &BTreeMap<String, Print>) -> Self {
        let missing_in = |these: &BTreeMap<String, Print>, those: &BTreeMap<String, Print>| {
            these
                .keys()
                .filter(|name| !those.contains_key(*name))
                .cloned()
                .collect()
        };
        let differs = |(name, print): &(&String, &Print)| {
            before.get(*name).is_some_and(|known| known != *print)
        };
        Self {
            added: missing_in(now, before),
            changed: now
                .iter()
                .filter(differs)
                .map(|(name, _)| name.clone())
                .collect(),
            gone: missing_in(before, now),
        }
    }
}

impl Project {
    /// Returns the project in this folder. Returns `None` if the folder has no `.planck/`, or if
    /// its `.planck/` is the user's own.
    pub fn find(folder: &Path, user_folder: Option<&Path>) -> io::Result<Option<Self>> {
        let planck = folder.join(FOLDER);
        if planck.symlink_metadata().is_err() {
            return Ok(None);
        }
        let own = user_folder.and_then(|own| own.canonicalize().ok());
        if own.is_some() && planck.canonicalize().ok() == own {
            return Ok(None);
        }
        Ok(Some(Self {
            folder: folder.canonicalize()?,
        }))
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join(FOLDER)
    }

    /// Reads the contents of the project's `.planck/`.
    pub fn read(&self) -> Result<Snapshot, Untrustable> {
        let refused = |why| Untrustable::new(FOLDER, why);
        let folder = OpenFolder::open(&self.folder).map_err(refused)?;
        match folder.kind(OsStr::new(FOLDER)).map_err(refused)? {
            None | Some(EntryKind::File) => Ok(Snapshot::default()),
            Some(EntryKind::Folder | EntryKind::Link | EntryKind::Other(_)) => {
                let planck = folder.folder(OsStr::new(FOLDER)).map_err(refused)?;
                planck
                    .map_or(Ok(Snapshot::default()), |planck| scan(&planck))
                    .map_err(Untrustable::below_planck)
            }
        }
    }

    /// Reads the project and compares it with the state that the user trusted.
    pub fn standing(
        &self,
        ledger: Option<&Ledger>,
        uses: ProjectUse,
    ) -> io::Result<ProjectStanding> {
        let snapshot = match self.read() {
            Ok(snapshot) => snapshot,
            Err(why) => return Ok(ProjectStanding::Untrustable(why)),
        };
        let record = ledger
            .map(|ledger| ledger.find(&self.folder))
            .transpose()?
            .flatten();
        let record = match record {
            Some(LedgerLine::Record(record)) => Some(record),
            Some(LedgerLine::PathOnly(_) | LedgerLine::Unknown(_)) | None => None,
        };
        Ok(self.judge(snapshot, record, uses))
    }

    fn judge(
        &self,
        snapshot: Snapshot,
        record: Option<TrustRecord>,
        uses: ProjectUse,
    ) -> ProjectStanding {
        let needless = match uses {
            ProjectUse::Everything => snapshot.is_empty(),
            ProjectUse::Config => snapshot.config.is_none(),
        };
        match record {
            _ if needless => ProjectStanding::Nothing,
            None => ProjectStanding::Unknown(snapshot),
            Some(record) => {
                let holds = match uses {
                    ProjectUse::Everything => record.files == snapshot.prints,
                    ProjectUse::Config => record.files.get(CONFIG) == snapshot.prints.get(CONFIG),
                };
                if holds {
                    ProjectStanding::Trusted(self.admit(snapshot, uses))
                } else {
                    ProjectStanding::Changed(Box::new((snapshot, record)))
                }
            }
        }
    }

    /// Returns the part of the project that this process may use.
    fn admit(&self, snapshot: Snapshot, uses: ProjectUse) -> Admitted {
        Admitted::new(&self.folder, snapshot, uses == ProjectUse::Everything)
    }

    /// Records that the user trusts this snapshot of the project, and returns its trusted part.
    pub fn trust(&self, ledger: &Ledger, snapshot: Snapshot) -> io::Result<Admitted> {
        ledger.put(TrustRecord::of(&self.folder, &snapshot))?;
        Ok(self.admit(snapshot, ProjectUse::Everything))
    }
}

impl Untrustable {
    fn below_planck(self) -> Self {
        Self {
            name: format!("{FOLDER}/{}", self.name),
            why: self.why,
        }
    }
}
