//! What `docker-compose.yml` and `deploy/` promise, as far as a test can check it without a
//! container engine or a cluster. With an engine, `deploy/try` tests the compose file.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn text(path: &str) -> Result<String> {
    fs::read_to_string(at(path)).with_context(|| format!("no {path}"))
}

/// The image must contain the binary that `tools/release` builds and that was tested. Another
/// command, toolchain or flag would build a different one.
#[test]
fn the_image_is_compiled_as_a_release_is() -> Result<()> {
    let (image, release, toolchain) = (
        text("deploy/Dockerfile")?,
        text("tools/release")?,
        text("rust-toolchain.toml")?,
    );
    let command = release
        .lines()
        .find(|line| line.starts_with("cargo build"))
        .context("tools/release builds nothing")?;
    assert!(
        image.contains(&format!("RUN PLANCK_BUILD_COMMIT=$COMMIT {command} \\\n")),
        "not built with `{command}`"
    );
    let channel = toolchain
        .lines()
        .find_map(|line| line.strip_prefix("channel = \"")?.strip_suffix('"'))
        .context("no channel")?;
    assert!(
        image.contains(&format!("\nFROM rust:{channel}-slim-bookworm AS build\n")),
        "not built with Rust {channel}"
    );
    for word in ["RUSTFLAGS", "CARGO_PROFILE", "--features", "--config"] {
        let rest = image.replace(command, "") + &release.replace(command, "");
        assert!(!rest.contains(word), "{word}");
    }
    Ok(())
}

#[test]
fn every_service_is_confined_and_no_secret_is_a_variable() -> Result<()> {
    let compose = text("docker-compose.yml")?;
    let services = compose
        .split_once("\nservices:\n")
        .and_then(|(_, rest)| rest.split_once("\nvolumes:\n"))
        .context("no services")?
        .0;
    let mut blocks: Vec<String> = Vec::new();
    for line in services.lines() {
        match line.strip_prefix("  ") {
            Some(name) if name.starts_with(char::is_alphabetic) => blocks.push(format!("{line}\n")),
            Some(_) | None => blocks
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|block| *block += &format!("{line}\n")),
        }
    }
    assert!(blocks.len() >= 7, "{blocks:?}");
    for block in blocks {
        let confined =
            block.contains("\n    <<: *confined\n") || block.contains("\n    <<: *planck\n");
        assert!(confined && !block.contains("privileged"), "{block}");
    }
    assert!(compose.contains(
        "  cap_drop: [ALL]\n  security_opt: [\"no-new-privileges:true\"]\n  read_only: true\n"
    ));
    assert_eq!(
        compose.matches("security_opt:").count(),
        compose.matches("no-new-privileges:true").count(),
        "a service may gain privileges"
    );
    let shown = ["PASSWORD: ", "PASSWORD:?", "PASSWORD}"]
        .into_iter()
        .find(|shown| compose.contains(shown));
    assert_eq!(shown, None, "a password is a variable");
    Ok(())
}

/// The nodes' seccomp profile has no conditions, because containerd ignores them, and it allows a
/// container without capabilities nothing of what needs one, except what bubblewrap does.
#[test]
fn the_seccomp_profile_allows_only_what_bubblewrap_needs() -> Result<()> {
    // `CLONE_NEWUSER`, and the flags of all new namespaces.
    const USER: u64 = 0x1000_0000;
    const ANY: u64 = 0x7e02_0000;
    let profile: Value = serde_json::from_str(&text("deploy/seccomp.json")?)?;
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().context("no rules")?;
    let of = |name: &str| -> Vec<(&Value, &Value)> {
        let named = |rule: &&Value| {
            let mut names = rule["names"].as_array().into_iter().flatten();
            names.any(|each| each == name)
        };
        let rules = rules.iter().filter(named);
        rules.map(|rule| (&rule["action"], &rule["args"])).collect()
    };
    let allow = json!("SCMP_ACT_ALLOW");
    let none = json!([{ "index": 0, "value": ANY, "op": "SCMP_CMP_MASKED_EQ" }]);
    let with_user =
        json!([{ "index": 0, "value": USER, "valueTwo": USER, "op": "SCMP_CMP_MASKED_EQ" }]);
    assert_eq!(of("clone"), [(&allow, &none), (&allow, &with_user)]);
    let user = json!([{ "index": 0, "value": USER, "op": "SCMP_CMP_EQ" }]);
    assert_eq!(of("unshare"), [(&allow, &user)]);
    assert_eq!(of("clone3"), [(&json!("SCMP_ACT_ERRNO"), &Value::Null)]);
    for name in ["mount", "umount2", "pivot_root"] {
        assert_eq!(of(name), [(&allow, &Value::Null)], "{name}");
    }
    for name in [
        "setns",
        "chroot",
        "fsopen",
        "fsmount",
        "move_mount",
        "open_tree",
        "mount_setattr",
        "bpf",
        "keyctl",
        "add_key",
        "userfaultfd",
        "perf_event_open",
        "open_by_handle_at",
        "io_uring_setup",
        "init_module",
        "reboot",
        "sethostname",
        "syslog",
    ] {
        assert!(of(name).is_empty(), "{name}");
    }
    for rule in rules {
        let keys = ["includes", "excludes"].map(|key| rule.get(key));
        assert_eq!(keys, [None, None], "a condition: {rule}");
    }
    Ok(())
}

#[test]
fn the_demos_team_is_the_example_with_the_sidecars_tool() -> Result<()> {
    let mut team: Value = serde_json::from_str(&text("examples/teams/build-a-cli/TEAM.json")?)?;
    let members = team["members"].as_array_mut().context("no members")?;
    let tester = members
        .iter_mut()
        .find(|member| member["type"] == "tester")
        .context("no tester")?;
    tester["tools"]
        .as_array_mut()
        .context("no tools")?
        .push("count_words".into());
    assert_eq!(
        serde_json::from_str::<Value>(&text("deploy/demo/TEAM.json")?)?,
        team
    );
    Ok(())
}

#[test]
fn passwords_are_created_once_in_a_folder_that_only_its_owner_reads() -> Result<()> {
    let folder = TempDir::new()?;
    let secrets = folder.path().join("secrets");
    let make = || {
        Command::new("sh")
            .arg(at("deploy/passwords.sh"))
            .arg(&secrets)
            .output()
    };
    let made = make()?;
    assert!(made.status.success(), "{made:?}");
    let mode =
        |path: &Path| -> Result<u32> { Ok(fs::metadata(path)?.permissions().mode() & 0o777) };
    assert_eq!(
        mode(&secrets)?,
        0o700,
        "others of this machine read nothing"
    );
    for name in text("docker-compose.yml")?
        .lines()
        .filter_map(|line| line.split_once("deploy/secrets}/")?.1.strip_suffix("\" }"))
    {
        let path = secrets.join(name);
        assert_eq!(
            mode(&path).with_context(|| format!("no {name}"))?,
            0o644,
            "{name}: a container's user reads it"
        );
        assert!(fs::read_to_string(&path)?.trim().len() > 32, "{name}");
    }
    let again = make()?;
    assert!(
        !again.status.success()
            && String::from_utf8_lossy(&again.stderr).contains("has passwords already"),
        "{again:?}"
    );
    Ok(())
}

/// Checks a file with the program that `make chart` compiles from Go modules: Helm's engine and the
/// API types of Kubernetes and Grafana. The program must print `verdict`. If it was not compiled,
/// panics if `PLANCK_TESTS_NEED_CHART` is set, else prints a warning and checks nothing.
fn judged(file: &str, verdict: &str) -> Result<()> {
    let judge = at(".tools/bin/planck-chart");
    if !judge.is_file() {
        assert!(
            std::env::var_os("PLANCK_TESTS_NEED_CHART").is_none(),
            "no {}: run `make chart`",
            judge.display()
        );
        eprintln!(
            "NOT TESTED: {file}, because there is no {}; `make chart` compiles it",
            judge.display()
        );
        return Ok(());
    }
    let judged = Command::new(judge).arg(at(file)).output()?;
    assert!(
        judged.status.success(),
        "{}",
        String::from_utf8_lossy(&judged.stderr)
    );
    assert!(
        String::from_utf8_lossy(&judged.stdout).contains(verdict),
        "{judged:?}"
    );
    Ok(())
}

#[test]
fn the_chart_is_valid_for_kubernetes() -> Result<()> {
    judged("deploy/helm/planck", "wrong settings are refused")
}

#[test]
fn the_dashboard_is_valid_for_grafana() -> Result<()> {
    judged("deploy/grafana/planck.json", "are what Grafana takes")
}
