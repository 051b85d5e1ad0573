//! The SDKs of the MCP project as clients of two fronts, over real connections, and its conformance
//! suite. `tools/install` fetches them.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use planck_tests::sdk::{is_there, judge_mcp_server};
use tokio::{net::TcpListener, process::Command};
use tokio_util::sync::CancellationToken;

use super::*;

/// Returns the model of a scenario.
fn model(scenario: &str) -> ScriptedModel {
    let story = ScriptedModel::new().pace(PACE * 3);
    if scenario == "lost" {
        return story.text(STORY);
    }
    let paint = |model: ScriptedModel, answer: &str| {
        model.call("paint", json!({"colour": "red"})).text(answer)
    };
    let warm = json!({"city": "Rome", "degrees": 21});
    let tour = paint(story, "Hello.").text("Again.");
    let tour = tour.call("submit_output", warm);
    paint(tour, "Painted.").text(STORY)
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.unwrap().to_owned()
}

/// Returns the command that plays scenarios with an SDK, or `None` if the SDK is not there.
fn judge(program: &str, script: &str, sdk: &str) -> Option<Command> {
    if !is_there(&root().join(sdk)) {
        return None;
    }
    let mut command = Command::new(program);
    command
        .arg(root().join("tests/judges/mcp-client").join(script))
        .env("PYTHONPATH", root().join(".tools/mcp-python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("MCP_JUDGE", root().join(".tools/mcp-client"))
        .env("PLANCK_KEY", "ann")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Some(command)
}

/// Plays a scenario against two fronts of one node.
async fn play(mut judge: Command, scenario: &str, generation: &str) {
    let served = Served::with(model(scenario), keys()).await;
    let stop = CancellationToken::new();
    let mut serving = Vec::new();
    judge.args([scenario, generation]);
    for front in &served.fronts {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        judge.arg(format!("http://{}/mcp", listener.local_addr().unwrap()));
        serving.push(tokio::spawn(
            Arc::clone(front).serve(listener, stop.clone()),
        ));
    }
    let said = tokio::time::timeout(PATIENCE * 2, judge.output()).await;
    let said = said.expect("the SDK finishes").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&said.stdout), text(&said.stderr));
    assert!(
        said.status.success(),
        "{scenario} {generation}: {out}{errors}"
    );
    let last: Value = serde_json::from_str(out.trim().lines().last().unwrap()).unwrap();
    assert_eq!(served.prompts(last["session"].as_str().unwrap()).await, 1);
    stop.cancel();
    for front in serving {
        front.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the SDKs of the MCP project: make test-all"]
async fn sdk_for_python_uses_teams_as_tools() {
    for scenario in ["tour", "lost"] {
        for generation in ["legacy", "auto"] {
            let Some(judge) = judge("python3", "client.py", ".tools/mcp-python/mcp") else {
                return;
            };
            play(judge, scenario, generation).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the SDKs of the MCP project: make test-all"]
async fn sdk_for_typescript_uses_teams_as_tools() {
    let sdk = ".tools/mcp-client/node_modules/@modelcontextprotocol/sdk";
    for scenario in ["tour", "lost"] {
        let Some(judge) = judge("node", "client.mjs", sdk) else {
            return;
        };
        play(judge, scenario, "legacy").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the conformance suite of MCP: make test-all"]
async fn front_passes_the_conformance_suite() {
    let served = Served::start(ScriptedModel::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let front = Arc::clone(&served.fronts[0]).serve(listener, stop.clone());
    let front = tokio::spawn(front);
    judge_mcp_server(&url, "known").await.unwrap();
    stop.cancel();
    front.await.unwrap();
}
