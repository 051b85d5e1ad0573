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
    record::{FoundFile, ProtectionRecord, Repository},
    tree::Tree,
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
}

impl RestoreReport {
    pub fn is_empty(&self) -> bool {
        self.undone.is_empty() && self.lasting.is_empty()
    }
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
) -> io::Result<RestoreReport> {
    let mut work = Restoration {
        tree,
        record,
        report: RestoreReport::default(),
    };
    work.bring_back_repository();
    let now = record.again(tree)?;
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
        work.undo(path);
    }
    Ok(work.report)
}

struct Restoration<'a> {
    tree: &'a Tree,
    record: &'a ProtectionRecord,
    report: RestoreReport,
}

impl Restoration<'_> {
    /// Moves a renamed repository back. Renames an entry that is now in the repository's place.
    fn bring_back_repository(&mut self) {
        let Some(repository) = &self.record.git else {
            return;
        };
        let git = Path::new(GIT);
        if self.is_in_place(repository) {
            return;
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
                Some(FoundFile::Folder { .. } | FoundFile::Link { .. } | FoundFile::Other)
                | None => None,
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
            None => self.tree.remove(path),
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
            FoundFile::Folder { mode } => {
                self.clear(path, !is_folder)?;
                self.tree.make_folder(path, *mode)
            }
            FoundFile::Other => Err(io::Error::other("it was no regular file")),
        }
    }

    /// If `needed` is set, removes the entry at this path. An entry at `.git` is renamed instead.
    fn clear(&self, path: &Path, needed: bool) -> io::Result<()> {
        match needed {
            true if path == Path::new(GIT) => self.set_aside(path),
            true => self.tree.remove(path),
            false => Ok(()),
        }
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
