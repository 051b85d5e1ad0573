//! Closes the descriptors that this process inherited, except its standard streams. A shell, a
//! service manager or a test that starts the node may leave files, sockets or folders open, and
//! each would be a way around a tool's sandbox.

use std::{ffi::OsStr, fs, io};

use nix::unistd::close;

/// The first descriptor after the standard streams.
const FIRST: i32 = 3;

/// Closes every descriptor except the standard streams. Call it before this process opens anything.
pub(super) fn close_inherited() -> io::Result<()> {
    // The listing has a descriptor of its own, which is closed before the loop runs.
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
