//! The examples, each run as its README says. Rust and Python always; TypeScript and Go where the machine has them.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use planck_sidecar::conform::Verdict;
use planck_tests::nats::NatsServer;

use crate::checking::{check, plan, with};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn example(path: &str) -> String {
    root().join("examples/sidecars").join(path).to_str().unwrap().to_owned()
}

/// Runs every case; none may fail, and only these may be skipped.
async fn conforms(name: &str, command: &[&str], skipped: &[&str]) {
    let nats = NatsServer::start().unwrap();
    let findings = check(plan(&nats.url(), name, command)).await.unwrap();
    assert_eq!(with(&findings, Verdict::Failed), Vec::<String>::new());
    let left_out: Vec<&str> =
        findings.iter().filter(|finding| finding.verdict == Verdict::Skipped).map(|finding| finding.case).collect();
    assert_eq!(left_out, skipped);
}

const NO_COMPACTORS: &[&str] = &["compaction", "compaction_short"];

#[tokio::test(flavor = "multi_thread")]
async fn rust() {
    let test = env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples/text-rust");
    let built = built.is_file().then_some(built).expect("run `cargo build -p planck-sidecar --examples` first");
    conforms("text-rust", &[built.to_str().unwrap()], &[]).await;
}

/// With the packages that `make tools` fetched.
fn python() -> [String; 3] {
    let fetched = root().join(".tools/python");
    assert!(fetched.is_dir(), "{} is missing; run `make tools`", fetched.display());
    let path = format!("PYTHONPATH={}:{}", fetched.display(), root().join("sidecar-sdk/python").display());
    ["env".into(), path, "python3".into()]
}

#[tokio::test(flavor = "multi_thread")]
async fn python_with_the_sdk() {
    let [env, path, python] = python();
    conforms("text-python", &[&env, &path, &python, &example("python/text.py")], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_without_the_sdk() {
    let [env, path, python] = python();
    conforms("text-bare-python", &[&env, &path, &python, &example("bare-python/text.py")], NO_COMPACTORS).await;
}

#[test]
fn the_python_sdk_passes_its_own_tests() {
    let nats = NatsServer::start().unwrap();
    let [env, path, python] = python();
    let url = format!("NATS_URL={}", nats.url());
    let tests = root().join("sidecar-sdk/python/tests");
    let output = Command::new(env)
        .args([&path, &url, &python, "-m", "unittest", "discover", "-s", tests.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("\nOK\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn typescript() {
    let folder = example("typescript");
    let node = said("node", &["--version"], &folder).unwrap_or_default();
    let version: u32 = node.trim_start_matches('v').split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if version < 20 || !Path::new(&folder).join("node_modules").is_dir() {
        println!("NOT TESTED: the example in TypeScript needs Node 20 and what `make tools` fetches with npm; found `{node}`");
        return;
    }
    said("node", &["node_modules/typescript/bin/tsc"], &folder).expect("the example does not compile");
    conforms("text-typescript", &["node", &format!("{folder}/text.js")], NO_COMPACTORS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go() {
    let folder = example("go");
    let Some(go) = ["go", "/usr/local/go/bin/go"].into_iter().find(|go| said(go, &["version"], &folder).is_some()) else {
        println!("NOT TESTED: the example in Go needs Go");
        return;
    };
    let built = tempfile::tempdir().unwrap();
    let program = built.path().join("text");
    let program = program.to_str().unwrap();
    said(go, &["build", "-o", program, "."], &folder).expect("the example does not compile");
    conforms("text-go", &[program], NO_COMPACTORS).await;
}

/// What a program prints; `None` if there is none, or it fails.
fn said(program: &str, args: &[&str], folder: &str) -> Option<String> {
    let output = Command::new(program).args(args).current_dir(folder).output().ok()?;
    if !output.status.success() {
        println!("{program} {args:?}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
