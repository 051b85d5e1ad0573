//! Finds the folder at which the control group of this process is mounted.

use std::path::{Path, PathBuf};

use super::Missing;

/// Returns the folder of a process's control group. `groups` and `mounts` are the contents of its
/// `/proc/self/cgroup` and `/proc/self/mountinfo`. The hierarchy may be mounted at
/// `/sys/fs/cgroup`, or next to the hierarchies of version 1.
pub fn own_folder(groups: &str, mounts: &str) -> Result<PathBuf, Missing> {
    let group = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or(Missing::NoHierarchy)?;
    let is_outside = Path::new(group)
        .components()
        .any(|part| part.as_os_str() == "..");
    let folder = mounts
        .lines()
        .filter_map(cgroup2)
        .find_map(|(root, point)| {
            let rest = Path::new(group)
                .strip_prefix(root)
                .ok()
                .filter(|_| !is_outside)?;
            Some(point.join(rest).components().collect())
        });
    folder.ok_or_else(|| Missing::NotMounted {
        group: group.into(),
    })
}

/// Returns the mounted group and its mount point from a line of `mountinfo` such as `41 31 0:38 /
/// /sys/fs/cgroup rw - cgroup2 cgroup2 rw`. Returns `None` for other file systems. The path needs
/// no unescaping, because control groups are mounted at paths without special characters.
fn cgroup2(line: &str) -> Option<(&Path, &Path)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3).map(Path::new);
    system
        .starts_with("cgroup2 ")
        .then_some((fields.next()?, fields.next()?))
}
