//! The part of a project that its user trusts, in the state in which it was hashed.

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
use crate::regular_file::{FileContent, FileRefused, OpenFolder};

/// A file of a trusted project that differs from what was trusted.
#[derive(Debug, thiserror::Error)]
pub enum AlteredFile {
    #[error("{name} changed since the project was trusted; run `planck trust {}`, then start planck again", folder.display())]
    Changed { name: String, folder: PathBuf },
    #[error(transparent)]
    Untrustable(#[from] Untrustable),
}

/// The trusted part of a project. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted(Arc<AdmittedInner>);

#[derive(Debug, PartialEq, Eq)]
struct AdmittedInner {
    folder: PathBuf,
    config: Option<String>,
    has_folders: bool,
    prints: BTreeMap<String, Print>,
}

impl Admitted {
    pub(super) fn new(folder: &Path, snapshot: Snapshot, has_folders: bool) -> Self {
        let Snapshot { config, prints, .. } = snapshot;
        Self(Arc::new(AdmittedInner {
            folder: folder.into(),
            config,
            has_folders,
            prints,
        }))
    }

    /// Returns whether the project's tools, teams and skills are used, and not only its
    /// configuration.
    pub fn has_folders(&self) -> bool {
        self.0.has_folders
    }

    /// Returns the project's folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns the project's configuration: the text that was hashed.
    pub fn config(&self) -> Option<(PathBuf, &str)> {
        let file = self.0.folder.join(FOLDER).join(CONFIG);
        self.0.config.as_deref().map(|text| (file, text))
    }

    /// Fails unless a file has the content that was trusted. `name` is relative to `.planck/`.
    pub(super) fn check(&self, name: &str, content: &FileContent) -> Result<(), AlteredFile> {
        match self.0.prints.get(name) {
            Some(print) if *print == Print::of(content) => Ok(()),
            Some(_) | None => Err(self.changed(name)),
        }
    }

    /// Fails unless everything in a folder of `tools/` is unchanged since it was trusted. It reads
    /// files, so call it where blocking is allowed.
    ///
    /// A program is started by its path afterwards. Another program of this user that runs outside
    /// of the sandbox can write into the folder between the check and the start, and thereby
    /// replace the program.
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
