//! Keeps the changed versions of protected files whose changes were undone. A user may have edited
//! such a file while a tool ran, and that work must not be lost.

use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The maximum number of sets of files that are kept. The oldest sets are removed first. Each set
/// comes from one call in one root and has at most the 8 MiB of a record.
const MOST: usize = 32;

/// The maximum age of a set of files.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The folder that contains the sets of changed versions. Several nodes may share it.
#[derive(Debug, Clone)]
pub struct UndoneChanges {
    folder: PathBuf,
}

impl UndoneChanges {
    /// Returns the sets in a folder. The folder is created when the first set is stored.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Removes sets that are too old or too many. Errors are only logged, because leftover files
    /// are harmless.
    pub fn prune(&self) {
        let oldest = name(
            SystemTime::now().checked_sub(LONGEST).unwrap_or(UNIX_EPOCH),
            0,
        );
        let mut sets = self.sets();
        sets.sort_unstable_by(|one, other| other.cmp(one));
        let is_over = |(index, set): &(usize, String)| *index >= MOST || *set < oldest;
        for (_, set) in sets.into_iter().enumerate().filter(is_over) {
            let set = self.folder.join(set);
            match fs::remove_dir_all(&set) {
                Ok(()) => {}
                Err(why) if why.kind() == ErrorKind::NotFound => {}
                Err(why) => {
                    tracing::warn!(folder = %set.display(), %why, "cannot remove old versions of protected files")
                }
            }
        }
    }

    /// Stores files as a set, under their paths relative to a root, and prunes the older sets.
    /// Returns the folder of the set.
    pub(super) fn keep(&self, files: &[(&Path, &[u8])]) -> io::Result<PathBuf> {
        let set = self.folder.join(name(SystemTime::now(), fastrand::u32(..)));
        private().create(&set)?;
        for (path, content) in files {
            let copy = set.join(path);
            copy.parent()
                .map_or(Ok(()), |parent| private().create(parent))?;
            fs::write(copy, content)?;
        }
        self.prune();
        Ok(set)
    }

    /// Returns the names of the existing sets. Entries whose names have another form were not
    /// created by Planck and are ignored.
    fn sets(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| {
                name.len() == NAME
                    && name
                        .bytes()
                        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            })
            .collect()
    }
}

/// The length of a set's name in bytes: 16 for the time, a separator, and 8 for a random number.
const NAME: usize = 16 + 1 + 8;

/// Returns the name of a set. The order of the names is the order of the times.
fn name(time: SystemTime, random: u32) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!(
        "{:016x}-{random:08x}",
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    )
}

fn private() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_sets_are_kept_for_a_week() {
        let folder = tempfile::tempdir().unwrap();
        let undone = UndoneChanges::in_folder(folder.path().join("undone"));
        undone.prune();
        let old = undone.folder.join(name(
            SystemTime::now() - LONGEST - Duration::from_secs(1),
            7,
        ));
        fs::create_dir_all(&old).unwrap();
        fs::create_dir_all(undone.folder.join("notes-of-mine")).unwrap();
        let kept: Vec<PathBuf> = (0..=MOST)
            .map(|_| {
                undone
                    .keep(&[(Path::new(".git/config"), b"changed")])
                    .unwrap()
            })
            .collect();
        assert!(!old.exists() && !kept[0].exists());
        assert!(
            kept[1..]
                .iter()
                .all(|set| fs::read(set.join(".git/config")).unwrap() == b"changed")
        );
        assert!(undone.folder.join("notes-of-mine").exists());
        assert_eq!(undone.sets().len(), MOST);
    }
}
