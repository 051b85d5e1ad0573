//! The `.planck/` folder of a project and its skills and MCP servers for other programs: what they
//! contain, which part of them the user trusts, and how the trusted part is read.
//!
//! Nothing in the folder has an effect before the user trusts the project. `config.toml`,
//! everything below `tools/` and every `TEAM.json` can execute or redirect something, so these
//! files are trusted by their content. A changed file has no effect until the user trusts the
//! project again. Prompts and skills are texts for a model. They are trusted together with the
//! folder and may change.

mod ledger;
mod snapshot;
mod source;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use planck_host::regular_file::{EntryKind, OpenFolder};

use self::snapshot::{Print, Untrustable, scan, scan_offered};

pub use self::{
    ledger::{Ledger, LedgerLine, TrustRecord},
    snapshot::{OfferedServers, OfferedSkill, SERVERS, SKILL_FOLDERS, Snapshot},
    source::{Admitted, NameClash, NotRead, ProjectSource, SourcePart},
};

/// The name of a project's folder for Planck.
pub const FOLDER: &str = ".planck";

/// The name of the configuration file in that folder.
pub const CONFIG: &str = "config.toml";

// Decides whether the current state of a project is trusted.

/// A folder other than the user's home that contains a `.planck/`, or skills or MCP servers for other
/// programs.
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
    /// Nothing in `.planck/` needs a decision, but skills or MCP servers for other programs are new or
    /// have changed. They have no effect, and the rest of the project is used.
    Offered(Box<OfferedFiles>),
    /// The user has not decided yet, or decided in an earlier version, which stored only paths.
    Unknown(Snapshot),
    /// The project has changed since the user trusted it.
    Changed(Box<(Snapshot, TrustRecord)>),
    /// The project contains an entry that cannot be trusted by its content.
    Untrustable(Untrustable),
}

/// The files for other programs that have no effect yet.
#[derive(Debug)]
pub struct OfferedFiles {
    pub snapshot: Snapshot,
    /// The part of the project that the user trusts, if there is one.
    pub admitted: Option<Admitted>,
    /// The paths of the files that are new or have changed, relative to the project's folder.
    pub files: Vec<String>,
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
    /// Returns the project in this folder. Returns `None` if the folder has neither a `.planck/`
    /// nor skills or MCP servers for other programs, or if it is the user's home.
    pub fn find(folder: &Path, user_folder: Option<&Path>) -> io::Result<Option<Self>> {
        let planck = folder.join(FOLDER);
        let has_planck = planck.symlink_metadata().is_ok();
        let others = SKILL_FOLDERS.iter().chain([&SERVERS]);
        let mut others = others.map(|below| folder.join(below));
        if !has_planck && !others.any(|path| path.symlink_metadata().is_ok()) {
            return Ok(None);
        }
        let real = |path: &Path| path.canonicalize().ok();
        let own = user_folder.and_then(real);
        let home = user_folder.and_then(Path::parent).and_then(real);
        let is_home = !has_planck && home.is_some() && real(folder) == home;
        if is_home || (own.is_some() && real(&planck) == own) {
            return Ok(None);
        }
        Ok(Some(Self {
            folder: folder.canonicalize()?,
        }))
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join(FOLDER)
    }

    /// Reads the contents of the project's `.planck/`, and its files for other programs.
    pub fn read(&self) -> Result<Snapshot, Untrustable> {
        let refused = |why| Untrustable::new(FOLDER, why);
        let folder = OpenFolder::open(&self.folder).map_err(refused)?;
        let mut snapshot = match folder.kind(OsStr::new(FOLDER)).map_err(refused)? {
            None | Some(EntryKind::File) => Snapshot::default(),
            Some(EntryKind::Folder | EntryKind::Link | EntryKind::Other(_)) => {
                let planck = folder.folder(OsStr::new(FOLDER)).map_err(refused)?;
                planck
                    .map_or(Ok(Snapshot::default()), |planck| scan(&planck))
                    .map_err(Untrustable::below_planck)?
            }
        };
        scan_offered(&folder, &mut snapshot);
        Ok(snapshot)
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
        let record = match (record, needless) {
            (record, true) => record,
            (None, false) => return ProjectStanding::Unknown(snapshot),
            (Some(record), false) => {
                let holds = match uses {
                    ProjectUse::Everything => record.files == snapshot.prints,
                    ProjectUse::Config => record.files.get(CONFIG) == snapshot.prints.get(CONFIG),
                };
                if !holds {
                    return ProjectStanding::Changed(Box::new((snapshot, record)));
                }
                Some(record)
            }
        };
        self.judge_offered(snapshot, record, needless, uses)
    }

    /// Judges a project whose `.planck/` is trusted, or needs no trust if `needless`.
    fn judge_offered(
        &self,
        snapshot: Snapshot,
        record: Option<TrustRecord>,
        needless: bool,
        uses: ProjectUse,
    ) -> ProjectStanding {
        let trusted = record.map(|record| record.skills).unwrap_or_default();
        let (mut offered, mut files) = (snapshot.unchanged(&trusted), snapshot.pending(&trusted));
        let has_folders = uses == ProjectUse::Everything;
        if !has_folders {
            // A command that tries a server of the configuration uses it, and others need not know.
            offered.retain(|file, _| file == SERVERS);
            files.clear();
        }
        let admitted = (!needless || !offered.is_empty())
            .then(|| Admitted::new(&self.folder, snapshot.clone(), offered, has_folders));
        match (files.is_empty(), admitted) {
            (true, None) => ProjectStanding::Nothing,
            (true, Some(admitted)) => ProjectStanding::Trusted(admitted),
            (false, admitted) => ProjectStanding::Offered(Box::new(OfferedFiles {
                snapshot,
                admitted,
                files,
            })),
        }
    }

    /// Records that the user trusts this snapshot of the project, and returns its trusted part.
    pub fn trust(&self, ledger: &Ledger, snapshot: Snapshot) -> io::Result<Admitted> {
        let record = TrustRecord::of(&self.folder, &snapshot);
        let offered = record.skills.clone();
        ledger.put(record)?;
        Ok(Admitted::new(&self.folder, snapshot, offered, true))
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

#[cfg(test)]
mod tests;
