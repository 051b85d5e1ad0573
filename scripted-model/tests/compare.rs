//! The contenders of `tools/compare`, which ask this server. The test is here because only a package
//! with such a test has its program built by `cargo test`, and the comparison needs it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::{path::Path, process::Command};

/// The contenders that need nothing but this repository. `make compare` installs the others.
const OWN: [&str; 2] = ["planck", "planck-cluster"];

/// Kills each contender once, so that a change of Planck or of the runner breaks none of them
/// unnoticed.
#[test]
#[ignore = "kills and starts again what `make compare` installed: make test-all"]
fn every_contender_goes_on_after_it_was_killed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let programs = Path::new(env!("CARGO_BIN_EXE_scripted-model"))
        .parent()
        .unwrap();
    assert!(
        programs.join("planck").exists(),
        "no planck in {}: run the tests of the whole workspace",
        programs.display()
    );
    let chosen = installed(&root);
    let output = Command::new("python3")
        .arg(root.join("tools/compare"))
        .args([
            "--quick",
            "--table",
            "kill",
            "--no-build",
            "--profile",
            "dev",
        ])
        .args(["--only", &chosen.join(",")])
        .env("CARGO_TARGET_DIR", programs.parent().unwrap())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    eprintln!("{told}");
    assert!(output.status.success(), "{}", output.status);
    for name in chosen {
        let line = format!("compare: {name}, killed in the tool");
        assert!(told.contains(&line), "nothing is told of {name}");
    }
}

/// Returns the contenders that this machine can run, and says loudly which ones it cannot.
fn installed(root: &Path) -> Vec<String> {
    let mut chosen = Vec::new();
    for folder in root.join("bench/compare").read_dir().unwrap().flatten() {
        let name = folder.file_name().into_string().unwrap();
        let place = root.join(".tools/compare").join(&name);
        let is_there = place.join(".taken").exists() || place.join("release/adapter").exists();
        if OWN.contains(&name.as_str()) || is_there {
            chosen.push(name);
        } else if name != "bare" && folder.path().is_dir() {
            eprintln!("SKIPPED: contender {name} is not tested; `make compare` installs it");
        }
    }
    chosen
}
