//! The part of a project that the user trusts, with the snapshot that was compared with the trusted
//! state.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    CONFIG, FOLDER,
    scan::{Untrustable, scan_tool},
    snapshot::{Print, Snapshot},
};
use planck_host::regular_file::{FileContent, FileRefused, OpenFolder};

/// The reason why a file of a trusted project is not what the user trusted.
#[derive(Debug, thiserror::Error)]
pub enum AlteredFile {
    #[error("{name} changed since the project was trusted; run `planck trust {}`, then start planck again", folder.display())]
    Changed { name: String, folder: PathBuf },
    #[error(transparent)]
    Untrustable(#[from] Untrustable),
}

/// The trusted part of a project. Clones share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted(Arc<AdmittedInner>);

#[derive(Debug, PartialEq, Eq)]
struct AdmittedInner {
    folder: PathBuf,
    config: Option<String>,
    has_folders: bool,
    prints: BTreeMap<String, Print>,
    /// The identities of the skills for other programs, by their path below the folder.
    skills: BTreeMap<String, Print>,
}

impl Admitted {
    pub(super) fn new(
        folder: &Path,
        snapshot: Snapshot,
        skills: BTreeMap<String, Print>,
        has_folders: bool,
    ) -> Self {
        let Snapshot { config, prints, .. } = snapshot;
        Self(Arc::new(AdmittedInner {
            folder: folder.into(),
            config,
            has_folders,
            prints,
            skills,
        }))
    }

    /// Returns whether tools, teams and skills of the project are used. If not, only the
    /// configuration is used.
    pub fn has_folders(&self) -> bool {
        self.0.has_folders
    }

    /// Returns the project's folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns the path and the text of the project's configuration, or `None` if it has none. The
    /// text is the one that was hashed.
    pub fn config(&self) -> Option<(PathBuf, &str)> {
        let file = self.0.folder.join(FOLDER).join(CONFIG);
        self.0.config.as_deref().map(|text| (file, text))
    }

    /// Fails if a file differs from what was trusted or is not among the trusted files. `name` is
    /// relative to `.planck/`.
    pub(super) fn check(&self, name: &str, content: &FileContent) -> Result<(), AlteredFile> {
        match self.0.prints.get(name) {
            Some(print) if *print == Print::of(content) => Ok(()),
            Some(_) | None => Err(self.changed(name)),
        }
    }

    /// Returns the names of the skills for other programs in a folder of
    /// [`SKILL_FOLDERS`](super::SKILL_FOLDERS).
    pub(super) fn offered(&self, folder: &Path) -> Vec<String> {
        let names = self.0.skills.keys().filter_map(|file| {
            let below = Path::new(file).strip_prefix(folder).ok()?;
            Some(below.parent()?.to_str()?.to_owned())
        });
        names.collect()
    }

    /// Fails if the file of a skill for other programs is not what the user trusted. `file` is
    /// relative to the project's folder.
    pub(super) fn check_offered(
        &self,
        file: &Path,
        content: &FileContent,
    ) -> Result<(), AlteredFile> {
        let name = file.display().to_string();
        match self.0.skills.get(&name) {
            Some(print) if *print == Print::of(content) => Ok(()),
            Some(_) | None => Err(AlteredFile::Changed {
                name,
                folder: self.0.folder.clone(),
            }),
        }
    }

    /// Fails if anything in the folder `tools/<tool>` has changed since it was trusted or cannot be
    /// read. This function reads files, so it may block.
    ///
    /// The check does not exclude every change: the program is started by its path afterwards.
    /// Another program of this user that runs outside of the sandbox can replace the tool's program
    /// between the check and the start.
    pub fn check_tool(&self, tool: &str) -> Result<(), AlteredFile> {
        let name = format!("tools/{tool}");
        let refused = |why: FileRefused| Untrustable::new(FOLDER, why);
        let folder = OpenFolder::open(&self.0.folder).map_err(refused)?;
        let planck = folder
            .folder(OsStr::new(FOLDER))
            .map_err(refused)?
            .ok_or_else(|| self.changed(&name))?;
        let found = scan_tool(&planck, &name)?;
        let below = format!("{name}/");
        let trusted = self
            .0
            .prints
            .iter()
            .filter(|(known, _)| known.starts_with(&below));
        if trusted.eq(found.iter()) {
            Ok(())
        } else {
            Err(self.changed(&name))
        }
    }

    fn changed(&self, name: &str) -> AlteredFile {
        AlteredFile::Changed {
            name: format!("{FOLDER}/{name}"),
            folder: self.0.folder.clone(),
        }
    }
}
