//! Finds the `bwrap` that tests use: the machine's own, or the one that `tools/install` unpacked.

use std::{env, path::PathBuf, process::Command};

/// If this is set, as in CI, tests of bubblewrap fail instead of being skipped when no `bwrap`
/// works.
const NEEDED: &str = "PLANCK_TESTS_NEED_BUBBLEWRAP";

/// Returns a `bwrap` that works on this machine. If there is none, panics if
/// `PLANCK_TESTS_NEED_BUBBLEWRAP` is set, else prints a warning and returns `None`.
pub fn bubblewrap() -> Option<PathBuf> {
    let unpacked = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../.tools/bubblewrap/usr/bin/bwrap"
    );
    let found = ["/usr/bin/bwrap", unpacked]
        .into_iter()
        .map(PathBuf::from)
        .find(works);
    assert!(
        found.is_some() || env::var_os(NEEDED).is_none(),
        "{NEEDED} is set, and no bwrap works: run tools/install"
    );
    if found.is_none() {
        eprintln!(
            "skipped: no bwrap works here, so nothing is tried in bubblewrap; tools/install says why"
        );
    }
    found
}

fn works(program: &PathBuf) -> bool {
    let tried = Command::new(program)
        .args(["--unshare-all", "--ro-bind", "/", "/", "true"])
        .output();
    tried.is_ok_and(|output| output.status.success())
}
