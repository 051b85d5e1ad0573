//! Closes the file descriptors that this process inherited, except its standard streams. A shell, a
//! service manager or a test that starts the node may leave files, sockets or folders open, and
//! with them a tool could bypass its sandbox.

use std::{ffi::OsStr, fs, io};

use nix::unistd::close;

/// The first descriptor after the standard streams.
const FIRST: i32 = 3;

/// Closes every descriptor except the standard streams. It must be called before this process opens
/// anything.
pub(super) fn close_inherited() -> io::Result<()> {
    // Reading the folder opens a descriptor too. It is closed before the loop runs.
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .flatten()
        .filter_map(|entry| number(&entry.file_name()))
        .collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor >= FIRST) {
        let _ = close(descriptor);
    }
    Ok(())
}

fn number(name: &OsStr) -> Option<i32> {
    name.to_str()?.parse().ok()
}
