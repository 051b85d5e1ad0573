//! Tests what `planck demo` prints, how it ends, and that none of its processes outlives it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the command of a demo whose temporary files are in this folder. [`left_behind`]
/// recognises the processes that the demo starts by this folder in their arguments.
fn demo(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planck"));
    command
        .arg("demo")
        .args(args)
        .current_dir(folder)
        .env("TMPDIR", folder)
        .env("NO_COLOR", "1");
    command.env("NATS_SERVER", planck_tests::nats::find_server().unwrap());
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/python");
    assert!(
        fetched.is_dir(),
        "{} is missing; run `make tools`",
        fetched.display()
    );
    command.env("PYTHONPATH", fetched);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns the command lines of the processes that still run and have the folder in their
/// arguments.
fn left_behind(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(folder))
        .collect()
}

fn nobody_is_left(folder: &Path) {
    let until = Instant::now() + PATIENCE;
    while !left_behind(folder).is_empty() {
        assert!(
            Instant::now() < until,
            "left behind: {:?}",
            left_behind(folder)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reads the demo's standard output up to the first line that contains `words`. Returns the reader,
/// so that the caller can read the rest. Panics if the output ends before.
fn wait_for(child: &mut Child, words: &str) -> BufReader<std::process::ChildStdout> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(
            lines.read_line(&mut line).unwrap() > 0,
            "the demo ended before it said {words:?}"
        );
    }
    lines
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn it_builds_a_program_whose_test_passes() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &[]).output().unwrap();
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    for words in [
        "● coder",
        "task for tester: ",
        "FAIL: expected 3 words",
        "- wc -l\n  │ + wc -w\n",
        "count_test.sh:",
    ] {
        assert!(told.contains(words), "no {words:?} in\n{told}");
    }
    assert!(
        told.contains("✓ sh count_test.sh: ok: 3 words counted"),
        "{told}"
    );
    assert!(
        told.contains("✓ count_words of the Python sidecar: 3"),
        "{told}"
    );
    nobody_is_left(folder.path());
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "it left files"
    );
}

#[test]
fn without_python_it_runs_without_the_sidecar_and_reports_that() {
    let (folder, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let python = programs.path().join("python3");
    std::fs::write(
        &python,
        "#!/bin/sh\necho \"ModuleNotFoundError: No module named 'nats'\" >&2\nexit 1\n",
    )
    .unwrap();
    std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        programs.path().display(),
        std::env::var("PATH").unwrap()
    );
    let output = demo(folder.path(), &[]).env("PATH", path).output().unwrap();
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains(
            "sidecar    NONE: python3 cannot run it: ModuleNotFoundError: No module named 'nats'"
        ),
        "{told}"
    );
    assert!(
        told.contains("✓ sh count_test.sh: ok: 3 words counted") && !told.contains("count_words"),
        "{told}"
    );
    nobody_is_left(folder.path());
}

#[test]
fn an_interrupt_stops_everything() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(folder.path(), &[]).spawn().unwrap();
    let _lines = wait_for(&mut child, "Let me see who is here");
    assert!(left_behind(folder.path()).len() >= 2);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(left_behind(folder.path()), [""; 0]);
}

#[test]
fn killing_it_ends_its_servers() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(folder.path(), &[]).spawn().unwrap();
    let _lines = wait_for(&mut child, "Let me see who is here");
    child.kill().unwrap();
    child.wait().unwrap();
    nobody_is_left(folder.path());
}

#[test]
fn with_keep_its_session_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(folder.path(), &["--keep"]).spawn().unwrap();
    let mut lines = wait_for(&mut child, "It stays up");
    let mut ways = String::new();
    while !ways.contains("Interrupt this") {
        assert!(lines.read_line(&mut ways).unwrap() > 0, "{ways}");
    }
    let show = ways
        .lines()
        .find_map(|line| line.split_once("planck session show "))
        .unwrap()
        .1;
    let shown = Command::new(env!("CARGO_BIN_EXE_planck"))
        .args(["session", "show"])
        .args(show.split(' '))
        .output()
        .unwrap();
    assert!(text(&shown).contains("orchestrator"), "{}", text(&shown));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    nobody_is_left(folder.path());
}

#[test]
fn without_a_nats_server_it_prints_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &[])
        .env("NATS_SERVER", "/nowhere")
        .env("PATH", "/usr/bin:/bin")
        .output()
        .unwrap();
    if Path::new("/usr/bin/nats-server").exists() || Path::new("/bin/nats-server").exists() {
        eprintln!("not tried: this machine has a nats-server of its own");
        return;
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("no nats-server"),
        "{}",
        text(&output)
    );
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "it left files"
    );
}
