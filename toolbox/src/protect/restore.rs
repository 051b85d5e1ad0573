//! Restores protected files from a record, and reports what it did.

use std::{
    collections::BTreeSet,
    fmt, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use nix::{
    fcntl::readlink,
    libc::{S_IFDIR, S_IFMT},
    sys::stat::fstat,
};

use super::{
    GIT,
    record::{FoundFile, ProtectionRecord, Repository, TO_CHANGE, set_mode_again},
    tree::{Tree, unlock},
    undone::UndoneChanges,
};

/// The maximum number of undone changes that a report names, and also of those that could not be
/// undone.
const NAMED: usize = 8;

/// The changes of a root's protected files that were undone, and those that could not be undone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreReport {
    undone: Vec<PathBuf>,
    /// The changes that could not be undone, each with the reason.
    lasting: Vec<(PathBuf, String)>,
    /// The folder in which the changed versions of files were stored before the changes were
    /// undone, or `None` if nothing was stored.
    kept: Option<PathBuf>,
    /// The reason why the files could not be compared, or `None` if they were.
    unguarded: Option<String>,
}

impl RestoreReport {
    /// Returns the report for a root whose protected files could not be compared.
    pub(super) fn unguarded(why: &str) -> Self {
        Self {
            unguarded: Some(why.to_owned()),
            ..Self::default()
        }
    }

    pub fn has_changes(&self) -> bool {
        !self.undone.is_empty() || !self.lasting.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        !self.has_changes() && self.unguarded.is_none()
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.unguarded {
            write!(
                f,
                "[the protected files could not be recorded before this ran, so changes of them were not undone: {why}]"
            )?;
        }
        if !self.undone.is_empty() {
            let names: Vec<String> = self
                .undone
                .iter()
                .take(NAMED)
                .map(|path| path.display().to_string())
                .collect();
            write!(
                f,
                "[protected files were changed while this ran, and put back: {}",
                names.join(", ")
            )?;
            match self.undone.len().saturating_sub(NAMED) {
                0 => {}
                more => write!(f, " and {more} more")?,
            }
            if let Some(kept) = &self.kept {
                write!(f, "; the changed versions are in {}", kept.display())?;
            }
            f.write_str("]")?;
        }
        for (path, why) in self.lasting.iter().take(NAMED) {
            let gap = if self.undone.is_empty() { "" } else { "\n" };
            write!(
                f,
                "{gap}[the protected file {} was changed while this ran, and could not be put back: {why}]",
                path.display()
            )?;
        }
        Ok(())
    }
}

/// Compares a root with its record, stores the changed versions in `undone`, and undoes every
/// difference that can be undone.
pub(super) fn restore(
    tree: &Tree,
    record: &ProtectionRecord,
    undone: &UndoneChanges,
) -> RestoreReport {
    let mut work = Restoration {
        tree,
        record,
        unlocked: Vec::new(),
        report: RestoreReport::default(),
    };
    work.unlock(Path::new(""));
    work.bring_back_repository();
    let now = record.again(tree);
    let unlocked = now.unlocked.iter().map(|(path, _)| path.clone());
    work.unlocked.extend(unlocked);
    let differs = |path: &&PathBuf| match (record.found.get(*path), now.found.get(*path)) {
        (Some(then), Some(now)) => !then.is_same(now),
        (Some(_), None) | (None, Some(_)) => true,
        (None, None) => false,
    };
    let paths: BTreeSet<&PathBuf> = record.found.keys().chain(now.found.keys()).collect();
    let changed: Vec<&PathBuf> = paths.into_iter().filter(differs).collect();
    work.keep(&changed, &now, undone);
    // The paths are in order, so a folder is restored before its contents.
    for path in changed {
        if !work.is_in_new_folder(path, &now) {
            work.undo(path);
        }
    }
    work.lock_again();
    work.report
}

struct Restoration<'a> {
    tree: &'a Tree,
    record: &'a ProtectionRecord,
    /// The folders to which the restoration gave its owner rights.
    unlocked: Vec<PathBuf>,
    report: RestoreReport,
}

impl Restoration<'_> {
    /// Gives the owner of a folder the rights without which nothing in it can be restored.
    fn unlock(&mut self, folder: &Path) {
        if let Ok(Some(_)) = self.tree.unlock(folder, TO_CHANGE) {
            self.unlocked.push(folder.into());
        }
    }

    /// Gives the folders to which the restoration gave its owner rights the recorded modes.
    fn lock_again(&self) {
        for folder in self.unlocked.iter().rev() {
            if let Some(mode) = self.record.mode_of(folder) {
                set_mode_again(self.tree, folder, mode);
            }
        }
    }

    /// Returns whether the record lacks a path and the folder that contains it. The path is then
    /// removed with the folder.
    fn is_in_new_folder(&self, path: &Path, now: &ProtectionRecord) -> bool {
        let had_folder = |folder| {
            matches!(
                self.record.found.get(folder),
                Some(FoundFile::Folder { .. })
            )
        };
        !self.record.found.contains_key(path)
            && path
                .parent()
                .is_some_and(|folder| now.found.contains_key(folder) && !had_folder(folder))
    }

    /// Moves a renamed repository back. Renames an entry that is now in the repository's place.
    fn bring_back_repository(&mut self) {
        let Some(repository) = &self.record.git else {
            return;
        };
        let git = Path::new(GIT);
        if self.is_in_place(repository) {
            return;
        }
        // Moving a folder into another one changes its entry `..`, which needs rights in it.
        if let Ok(Some(_)) = unlock(&repository.folder, TO_CHANGE) {
            self.unlocked.push(git.into());
        }
        let brought = match whereabouts(repository) {
            Some(place) => self
                .set_aside(git)
                .and_then(|()| self.tree.bring(&place, git)),
            None => Err(io::Error::other("it was deleted")),
        };
        match brought {
            Ok(()) if self.is_in_place(repository) => self.report.undone.push(git.into()),
            Ok(()) => self
                .report
                .lasting
                .push((git.into(), "another call moved it meanwhile".into())),
            Err(why) => self.report.lasting.push((git.into(), why.to_string())),
        }
    }

    fn is_in_place(&self, repository: &Repository) -> bool {
        let now = self.tree.stat(Path::new(GIT)).ok().flatten();
        now.is_some_and(|now| (now.st_dev, now.st_ino) == repository.identity)
    }

    fn keep(&mut self, changed: &[&PathBuf], now: &ProtectionRecord, undone: &UndoneChanges) {
        let contents = changed
            .iter()
            .filter_map(|path| match now.found.get(*path) {
                Some(FoundFile::File(file)) => Some((path.as_path(), file.content.as_deref()?)),
                Some(_) | None => None,
            });
        let contents: Vec<_> = contents.collect();
        if contents.is_empty() {
            return;
        }
        match undone.keep(&contents) {
            Ok(kept) => self.report.kept = Some(kept),
            Err(why) => tracing::warn!(%why, "cannot keep the changed versions of protected files"),
        }
    }

    fn undo(&mut self, path: &Path) {
        let done = match self.record.found.get(path) {
            None => self.remove(path),
            Some(then) => self.put_back(path, then),
        };
        match done {
            Ok(()) => self.report.undone.push(path.into()),
            Err(why) => self.report.lasting.push((path.into(), why.to_string())),
        }
    }

    fn put_back(&mut self, path: &Path, then: &FoundFile) -> io::Result<()> {
        let is_folder = self
            .tree
            .stat(path)?
            .is_some_and(|now| now.st_mode & S_IFMT == S_IFDIR);
        match then {
            FoundFile::File(file) => {
                let content = file
                    .content
                    .as_ref()
                    .ok_or_else(|| io::Error::other("it is too large to be kept"))?;
                self.clear(path, is_folder)?;
                self.tree.write(path, content, file.mode & 0o777)
            }
            FoundFile::Link { target } => {
                self.clear(path, true)?;
                self.tree.make_link(path, target)
            }
            FoundFile::Folder {
                unread: Some(_), ..
            } => Err(io::Error::other(
                "its contents were too many to be recorded, or could not be read",
            )),
            FoundFile::Folder { .. } if is_folder => Err(io::Error::other("it cannot be read")),
            FoundFile::Folder { mode, .. } => {
                self.clear(path, true)?;
                // The folder gets its recorded mode once its contents are restored.
                self.unlocked.push(path.into());
                self.tree.make_folder(path, (mode & 0o777) | TO_CHANGE)
            }
            FoundFile::Other => Err(io::Error::other("it was no regular file")),
            FoundFile::Unreadable => Err(io::Error::other("it could not be read before")),
        }
    }

    /// If `needed` is set, removes the entry at this path. An entry at `.git` is renamed instead.
    fn clear(&self, path: &Path, needed: bool) -> io::Result<()> {
        match needed {
            true if path == Path::new(GIT) => self.set_aside(path),
            true => self.remove(path),
            false => Ok(()),
        }
    }

    /// Removes an entry. A folder that cannot be removed, because it is nested too deeply or parts
    /// of it are locked, gets a name under which no program looks for it.
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.tree.remove(path).or_else(|_| self.set_aside(path))
    }

    fn set_aside(&self, path: &Path) -> io::Result<()> {
        match self.tree.stat(path)? {
            Some(_) => self.tree.rename(
                path,
                Path::new(&format!(
                    "{}.replaced-{:08x}",
                    path.display(),
                    fastrand::u32(..)
                )),
            ),
            None => Ok(()),
        }
    }
}

/// Returns the current path of an open repository, or `None` if the repository was deleted.
fn whereabouts(repository: &Repository) -> Option<PathBuf> {
    if fstat(&repository.folder).ok()?.st_nlink == 0 {
        return None;
    }
    let place =
        readlink(format!("/proc/self/fd/{}", repository.folder.as_raw_fd()).as_str()).ok()?;
    Some(PathBuf::from(place)).filter(|place| place.is_absolute())
}
