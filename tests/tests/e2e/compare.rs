//! The runner and the contenders of `tools/compare`.

use std::{path::Path, process::Command};

/// The contenders that need nothing but this repository. `make compare` installs the others.
const OWN: [&str; 2] = ["planck", "planck-cluster"];

/// Kills each contender once, so that a change of Planck or of the runner breaks none of them
/// unnoticed.
#[test]
#[ignore = "kills and starts again what `make compare` installed: make test-all"]
fn every_contender_goes_on_after_it_was_killed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = root.join("bench/compare").read_dir().unwrap();
    let names = folders.flatten().filter(|entry| entry.path().is_dir());
    let mut chosen = Vec::new();
    for name in names.map(|entry| entry.file_name().into_string().unwrap()) {
        let place = root.join(".tools/compare").join(&name);
        let is_installed = place.join(".taken").exists() || place.join("release/adapter").exists();
        if OWN.contains(&name.as_str()) || is_installed {
            chosen.push(name);
        } else if name != "bare" {
            eprintln!("SKIPPED: contender {name} is not tested; `make compare` installs it");
        }
    }
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
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    eprintln!("{told}");
    assert!(output.status.success(), "{}", output.status);
    for name in chosen {
        assert!(
            told.contains(&format!("compare: {name}, killed in the tool")),
            "{name}"
        );
    }
}
