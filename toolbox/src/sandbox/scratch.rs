//! The private folder for the temporary files of a call. It is used if bubblewrap does not provide
//! a `/tmp`.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// The prefix of the folder's name.
const PREFIX: &str = "planck-tool-";

/// A private folder. Dropping this value removes the folder with its contents.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: TempDir,
    /// The path of the folder. It contains no links.
    path: PathBuf,
}

impl Scratch {
    pub fn create() -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir()?;
        let path = folder.path().canonicalize()?;
        Ok(Self { folder, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(self.folder.path());
        self.folder.disable_cleanup(true);
    }
}

/// Removes the folder, including subfolders that were made read-only. Links are removed and not
/// followed.
pub(super) fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err() && folder.is_dir() {
        open_up(folder, 64);
        if let Err(why) = fs::remove_dir_all(folder) {
            tracing::warn!(folder = %folder.display(), %why, "cannot remove a call's temporary files");
        }
    }
}

fn open_up(folder: &Path, depth: usize) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path(), depth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_is_private_and_removed_completely() {
        let scratch = Scratch::create().unwrap();
        let path = scratch.path().to_owned();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/b/c"), "x").unwrap();
        fs::set_permissions(path.join("a"), Permissions::from_mode(0o000)).unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
