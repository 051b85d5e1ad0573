//! The tests of one run share some programs and servers. `cargo nextest` runs each test in a process
//! of its own, whereas `cargo test` runs the tests of a binary as threads of one process.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use nix::{
    fcntl::{Flock, FlockArg},
    unistd::{Pid, getpid, getppid},
};

/// Returns the process that ends with the run: nextest, or this process.
pub fn owner() -> Pid {
    if env::var_os("NEXTEST_RUN_ID").is_some() {
        getppid()
    } else {
        getpid()
    }
}

/// Returns the number of this test among those that run at the same time, which no two of them share.
pub fn slot() -> Option<u16> {
    env::var("NEXTEST_TEST_GLOBAL_SLOT").ok()?.parse().ok()
}

/// Returns what `make` returns in the first test of this run that asks for `name`. The other tests
/// wait for it, and a failure is not kept, so the next one tries again.
pub fn once(name: &str, make: impl FnOnce() -> Result<String>) -> Result<String> {
    let folder = folder();
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join(format!("{name}.lock")))?;
    let _locked = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("cannot lock {name}"))?;
    let made = folder.join(name);
    if let Ok(text) = fs::read_to_string(&made) {
        return Ok(text);
    }
    let text = make()?;
    fs::write(made, &text)?;
    Ok(text)
}

/// The folder is below the temporary one, so the system removes it some day.
fn folder() -> PathBuf {
    let run = env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| format!("{}-{}", getpid(), started()));
    env::temp_dir().join(format!("planck-run-{run}"))
}

/// Returns when this process started, because its id may be that of an earlier one.
fn started() -> String {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name
        .split_whitespace()
        .nth(19)
        .unwrap_or_default()
        .to_owned()
}
