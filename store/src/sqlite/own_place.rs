//! The default folder of a project's sessions, in the user's data directory. Planck creates the
//! folder, and uses it only if it and all its parents below the data directory belong to this user,
//! cannot be written by other users, and are no symbolic links. A marker file names the project.

use std::{
    fs::{self, DirBuilder},
    io::{Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::DirBuilderExt as _},
    path::{Component, Path, PathBuf},
};

use super::{fault, folder::StoreFolder};
use crate::StoreError;

/// The file beside the sessions folder that contains the path of its project.
const MARKER: &str = "project";

/// The maximum size of a marker in bytes.
const LONGEST_MARKER: u64 = 16 * 1024;

/// A project and the data directory that contains its sessions.
#[derive(Debug, Clone)]
pub struct OwnPlace {
    /// The user's data directory. It may be a symbolic link, but there must be none below it.
    pub data: PathBuf,
    /// The root folder of the project.
    pub project: PathBuf,
}

impl OwnPlace {
    /// Creates the missing folders and the marker, and returns the folder of sessions.
    pub fn make(&self, sessions: &Path) -> Result<StoreFolder, StoreError> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.data);
        made.map_err(|error| {
            fault::refused(
                &self.data,
                &error,
                "set HOME or XDG_DATA_HOME to a folder this user can write",
            )
        })?;
        let mut folder = self.base()?;
        for name in self.names(sessions)? {
            let is_last = sessions.ends_with(&name);
            if is_last {
                self.mark(&folder)?;
            }
            folder = private(folder.create_folder(&name)?)?;
        }
        Ok(folder)
    }

    /// Returns the folder of sessions without changing anything, or `None` if it does not exist
    /// yet.
    pub fn find(&self, sessions: &Path) -> Result<Option<StoreFolder>, StoreError> {
        if !self.data.exists() {
            return Ok(None);
        }
        let mut folder = self.base()?;
        for name in self.names(sessions)? {
            if sessions.ends_with(&name) {
                self.check_mark(&folder)?;
            }
            let Some(next) = folder.find_folder(&name)? else {
                return Ok(None);
            };
            folder = private(next)?;
        }
        Ok(Some(folder))
    }

    fn base(&self) -> Result<StoreFolder, StoreError> {
        let data = fs::canonicalize(&self.data);
        let data = data.map_err(|error| {
            fault::refused(&self.data, &error, "set HOME or XDG_DATA_HOME to a folder")
        })?;
        StoreFolder::open(&data)
    }

    /// Returns the names of the folders from the data directory down to the sessions.
    fn names(&self, sessions: &Path) -> Result<Vec<String>, StoreError> {
        let below = sessions.strip_prefix(&self.data).unwrap_or(sessions);
        let name = |part: Component<'_>| match part {
            Component::Normal(name) => name.to_str().map(str::to_owned),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        };
        let names: Option<Vec<String>> = below.components().map(name).collect();
        names.ok_or_else(|| {
            fault::broken(
                sessions,
                "it is not below the data directory",
                "name a store with `--store sqlite:DIR`",
            )
        })
    }

    /// Writes the marker into an empty folder. Fails if a folder with content has no marker or that
    /// of another project.
    fn mark(&self, place: &StoreFolder) -> Result<(), StoreError> {
        if place.names()?.is_empty() {
            let mut file = place.create_file(MARKER)?;
            let path = place.path().join(MARKER);
            let failed = |error: std::io::Error| {
                fault::refused(
                    &path,
                    &error,
                    "free some space, or name a store with `--store`",
                )
            };
            file.write_all(self.project.as_os_str().as_bytes())
                .and_then(|()| file.sync_all())
                .map_err(failed)?;
        }
        self.check_mark(place)
    }

    fn check_mark(&self, place: &StoreFolder) -> Result<(), StoreError> {
        let way_out =
            "name it with `--store sqlite:DIR` if you trust what it holds, or move it away";
        let mut project = Vec::new();
        if let Some(file) = place.find_file(MARKER)? {
            let read = file.take(LONGEST_MARKER).read_to_end(&mut project);
            read.map_err(|error| fault::refused(place.path(), &error, way_out))?;
        } else if place.names()?.is_empty() {
            return Ok(());
        }
        if project == self.project.as_os_str().as_bytes() {
            return Ok(());
        }
        let what = match project.is_empty() {
            true => "planck did not make it".to_owned(),
            false => format!(
                "it belongs to {}",
                String::from_utf8_lossy(&project).escape_debug()
            ),
        };
        Err(fault::broken(place.path(), what, way_out))
    }
}

/// Returns the folder unchanged, or an error if it belongs to another user or other users can write
/// to it.
fn private(folder: StoreFolder) -> Result<StoreFolder, StoreError> {
    match folder.exposure()? {
        None => Ok(folder),
        Some(what) => {
            let way_out = "correct it with `chown` and `chmod 700`, or name another store with `--store sqlite:DIR`";
            Err(fault::broken(folder.path(), what, way_out))
        }
    }
}
