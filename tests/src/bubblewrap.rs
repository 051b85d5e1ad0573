//! The `bwrap` that tests use: the machine's own, or what `tools/install` unpacked.

use std::{env, path::PathBuf, process::Command};

/// Set where bubblewrap must be there, as in CI: then its tests fail instead of being left out.
const NEEDED: &str = "PLANCK_TESTS_NEED_BUBBLEWRAP";

/// A program that works on this machine; what is left out without it is said.
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
