//! Creates the text of `planck --version`, which contains the commit in release builds.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PLANCK_BUILD_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    // A development build does not contain the commit, because each commit would then compile the
    // crate again.
    let commit = (env::var("PROFILE").as_deref() == Ok("release"))
        .then(commit)
        .flatten();
    let whole = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=PLANCK_VERSION={whole}");
}

/// Returns the commit that the builder names, or that of this checkout, marked if its files differ
/// from it.
fn commit() -> Option<String> {
    if let Some(given) = env::var("PLANCK_BUILD_COMMIT")
        .ok()
        .filter(|commit| !commit.is_empty())
    {
        return Some(given);
    }
    println!(
        "cargo::rerun-if-changed={}",
        git(&["rev-parse", "--git-path", "logs/HEAD"])?
    );
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|changes| !changes.is_empty());
    Some(if is_changed {
        format!("{commit}-changed")
    } else {
        commit
    })
}

fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|done| done.status.success())?;
    Some(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}
