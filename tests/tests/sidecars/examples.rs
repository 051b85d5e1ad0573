//! Runs each example as its README says, and checks that it is short. Rust and Python examples
//! always run. TypeScript and Go examples run only if the machine has these languages.

use std::{process::Command, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_sidecar::conform::{CaseVerdict, CheckPlan};
use planck_tests::{
    example::{Example, python_path, typescript_sdk},
    nats::NatsServer,
};

use crate::checking::{check, plan, with};

/// The maximum number of lines in an example that shows everything that a sidecar has to do.
const LONGEST: usize = 59;

/// How long an interpreter may take to load an example and to handle signals.
const STARTS_WITHIN: Duration = Duration::from_secs(4);

/// How long an example may take to answer while builds and other tests use the machine. A test
/// waits that long only if an answer is lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs every case of the checker. None may fail, and only `skipped` may be skipped.
async fn conforms(example: Example, skipped: &[&str]) {
    let nats = NatsServer::start().unwrap();
    let command: Vec<&str> = example.command.iter().map(String::as_str).collect();
    let plan = CheckPlan {
        patience: PATIENCE,
        ..plan(&nats.url(), example.name, &command)
    };
    let findings = check(plan).await.unwrap();
    assert_eq!(with(&findings, CaseVerdict::Failed), Vec::<String>::new());
    let left_out: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.verdict == CaseVerdict::Skipped)
        .map(|finding| finding.case)
        .collect();
    assert_eq!(left_out, skipped);
}

#[tokio::test(flavor = "multi_thread")]
async fn example_in_rust_conforms() {
    conforms(Example::rust().unwrap(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn example_in_python_with_the_sdk_conforms() {
    conforms(Example::python().unwrap(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn example_in_python_without_the_sdk_conforms() {
    let skipped = ["large_answer", "progress", "compaction", "compaction_short"];
    conforms(Example::bare_python().unwrap(), &skipped).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn example_in_typescript_with_the_sdk_conforms() {
    if let Some(example) = Example::typescript_sdk().unwrap() {
        conforms(example, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn example_in_typescript_without_the_sdk_conforms() {
    if let Some(example) = Example::typescript().unwrap() {
        conforms(example, &["compaction", "compaction_short"]).await;
    }
}

/// The tool of the Go example answers at once, so it has nothing to report or to cancel, and is
/// never late.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
async fn example_in_go_conforms() {
    let of_slow_tools = ["overlap", "progress", "cancel", "deadline", "in_progress"];
    if let Some(example) = Example::go().unwrap() {
        conforms(
            example,
            &[
                &["large_answer"],
                &of_slow_tools[..],
                &["compaction", "compaction_short"],
            ]
            .concat(),
        )
        .await;
    }
}

/// A scheduler may start an instance before the NATS server is up, and stop it at once.
#[tokio::test(flavor = "multi_thread")]
async fn sidecars_on_an_sdk_stop_while_they_wait_for_a_server() {
    let examples = [Example::rust().unwrap(), Example::python().unwrap()];
    for example in examples
        .into_iter()
        .chain(Example::typescript_sdk().unwrap())
    {
        let mut instance = example.start("nats://127.0.0.1:1").unwrap();
        tokio::time::sleep(STARTS_WITHIN).await;
        let pid = Pid::from_raw(instance.id().unwrap().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(3), instance.wait()).await;
        assert!(
            ended.expect("it runs on").unwrap().success(),
            "{}",
            example.name
        );
    }
}

#[test]
fn examples_are_short() {
    let examples = [
        include_str!("../../../examples/sidecars/bare-python/text.py"),
        include_str!("../../../examples/sidecars/go/text.go"),
        include_str!("../../../examples/sidecars/python/text.py"),
        include_str!("../../../examples/sidecars/rust/text.rs"),
        include_str!("../../../examples/sidecars/typescript/text.ts"),
    ];
    for example in examples {
        let lines = example.lines().count();
        assert!(
            lines <= LONGEST,
            "{lines} lines: {}",
            example.lines().next().unwrap()
        );
    }
}

/// The README must show the code of the example that these tests run.
#[test]
fn readme_shows_the_example_that_is_run() {
    let example = include_str!("../../../examples/sidecars/python/words.py");
    let shown = example.split_once("\"\"\"\n\n").unwrap().1;
    assert!(
        include_str!("../../../README.md").contains(shown.trim_end()),
        "README.md shows something else than words.py"
    );
}

#[test]
#[ignore = "needs Node.js or Go, and their packages: make test-all"]
fn the_typescript_sdk_passes_its_own_tests() {
    let Some(sdk) = typescript_sdk().unwrap() else {
        return;
    };
    let nats = NatsServer::start().unwrap();
    let mut command = Command::new("node");
    command
        .args(["--test", ".built/test/sdk.test.js"])
        .current_dir(sdk)
        .env("NATS_URL", nats.url());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("# fail 0\n# cancelled 0\n# skipped 0\n"),
        "{said}"
    );
}

#[test]
fn the_python_sdk_passes_its_own_tests() {
    let nats = NatsServer::start().unwrap();
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../sidecar-sdk/python/tests");
    let mut command = Command::new("python3");
    command
        .env("PYTHONPATH", python_path().unwrap())
        .env("NATS_URL", nats.url());
    let output = command
        .args(["-m", "unittest", "discover", "-s", tests])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK\n"), "{said}");
}
