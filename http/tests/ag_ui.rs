//! AG-UI, judged by the client of its project.
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

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode, header},
};
use planck_http::{Front, FrontOptions, StartDefaults};
use planck_node::{Runtime, ScriptedModel};
use planck_tests::sdk::Sdk;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

const PATIENCE: Duration = Duration::from_secs(120);

/// The replies of the model, in the order of the scenes in `judge.mjs`.
fn model() -> ScriptedModel {
    let numbers = |count: usize| {
        let numbers: Vec<_> = (1..=count).map(|n| format!("n{n}")).collect();
        numbers.join(" ")
    };
    let write = |path: &str| json!({"path": path, "content": "x"});
    ScriptedModel::new()
        .pace(Duration::from_millis(20))
        .text("Hello from Planck.")
        .text("Hello again.")
        .text("Once more.")
        .text("Once.")
        .call("read", json!({"path": "a.txt"}))
        .call("read", json!({"path": "none.txt"}))
        .text("There is no such file.")
        .call("write", write("b.txt"))
        .text("Written.")
        .call("write", write("c.txt"))
        .text("Not written.")
        .call("write", write("c.txt"))
        .text("Not written again.")
        .call("write", write("d.txt"))
        .text("Written, edited.")
        .call("getLocation", json!({}))
        .text("In Oslo.")
        .text("Invoices.")
        .text(numbers(50))
        .text(numbers(2_000))
        .failure("no luck today")
}

/// The models of the team whose lead asks a worker.
fn models_of_pair() -> [ScriptedModel; 2] {
    let question = json!({"agent": "helper", "question": "How many?"});
    let lead = ScriptedModel::named("lead").call("ask_agent", question);
    [
        lead.text("Seven, says the helper."),
        ScriptedModel::named("helper").text("Seven."),
    ]
}

/// Writes the teams that the scenes name.
fn write_teams(folder: &Path) {
    let teams = [
        (
            "chat",
            json!([{"type": "chat", "tools": ["read", "write"]}]),
        ),
        (
            "pair",
            json!([
                {"type": "lead", "model_id": "scripted:lead", "tools": ["spawn_agent", "ask_agent"]},
                {"type": "helper", "model_id": "scripted:helper", "tools": []},
            ]),
        ),
        (
            "shaped",
            json!([{"type": "lead", "model_id": "scripted:shaped", "tools": [], "output": {
                "schema": {"type": "object", "required": ["city", "degrees"]}}}]),
        ),
    ];
    for (name, members) in teams {
        let team = folder.join(name);
        std::fs::create_dir_all(&team).unwrap();
        std::fs::write(team.join("TEAM.json"), members.to_string()).unwrap();
    }
}

fn options() -> FrontOptions {
    FrontOptions {
        start: StartDefaults {
            workspace: Some("talk".into()),
            dir: None,
        },
        ..FrontOptions::default()
    }
}

/// Starts a node that has the teams and plays the models.
async fn node(folder: &Path, teams: &Path, models: Vec<ScriptedModel>) -> Runtime {
    write_teams(teams);
    let builder = Runtime::builder()
        .name("talk")
        .workspace(folder)
        .set("teams.dirs", teams.display().to_string());
    let builder = models
        .into_iter()
        .fold(builder, |builder, model| builder.scripted_model(model));
    builder.start().await.unwrap()
}

#[tokio::test]
#[ignore = "needs the client of AG-UI: make test-all"]
async fn client_of_ag_ui_works() {
    if !Sdk::AgUi.is_there() {
        return;
    }
    let (folder, teams) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("a.txt"), "hi there").unwrap();
    let [lead, helper] = models_of_pair();
    let shaped = ScriptedModel::named("shaped")
        .call("submit_output", json!({"city": "Rome", "degrees": 21}));
    let models = vec![model(), lead, helper, shaped];
    let runtime = node(folder.path(), teams.path(), models).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let front = Front::new(runtime.client().clone(), options());
    let serving = tokio::spawn(Arc::clone(&front).serve(listener, stop.clone()));

    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = std::fs::File::open(root.join("tests/judges/ag-ui/judge.mjs")).unwrap();
    let mut judge = Sdk::AgUi.interpreter();
    judge
        .env("PLANCK_FRONT", format!("http://{address}"))
        .stdin(Stdio::from(script))
        .kill_on_drop(true);
    let judge = timeout(PATIENCE, judge.output()).await;
    let judge = judge.expect("the judge ends").unwrap();
    let said = String::from_utf8_lossy(&judge.stdout);
    let errors = String::from_utf8_lossy(&judge.stderr);
    assert!(judge.status.success(), "{said}\n{errors}");
    println!("{said}");
    let edited = std::fs::read_to_string(folder.path().join("e.txt")).unwrap();
    assert_eq!(edited, "edited");
    for denied in ["c.txt", "d.txt"] {
        assert!(!folder.path().join(denied).exists(), "{denied}");
    }

    stop.cancel();
    serving.await.unwrap();
    runtime.shut_down().await;
}

/// Sends a run to a front, and returns the status and the whole answer.
async fn sent(routes: &Router, team: &str, body: &Value) -> (StatusCode, String) {
    let request = Request::builder()
        .method("POST")
        .uri(format!("/ag-ui/{team}"))
        .header(header::HOST, "127.0.0.1:8400")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    let answer = routes.clone().oneshot(request);
    let answer = timeout(PATIENCE, answer).await.expect("an answer").unwrap();
    let status = answer.status();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Returns the events of a run that is answered.
async fn events(routes: &Router, team: &str, body: &Value) -> Vec<Value> {
    let (status, stream) = sent(routes, team, body).await;
    assert_eq!(status, StatusCode::OK, "{stream}");
    let frames = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    frames
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn of_kind<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let events = events.iter();
    events.filter(|event| event["type"] == kind).collect()
}

fn body(thread: &str, messages: Value) -> Value {
    json!({"threadId": thread, "runId": "r", "messages": messages})
}

#[tokio::test]
async fn run_is_performed_once_and_read_again_by_who_lacks_it() {
    let (folder, teams) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [lead, helper] = models_of_pair();
    let runtime = node(folder.path(), teams.path(), vec![lead, helper]).await;
    let routes = Front::new(runtime.client().clone(), options()).routes();
    let prompt = json!({"id": "ask me.", "role": "user", "content": "How many?"});
    let request = body("talk", json!([prompt]));
    let live = events(&routes, "pair", &request).await;
    assert_eq!(live[0]["type"], "RUN_STARTED");
    assert_eq!(live.last().unwrap()["outcome"]["type"], "success");
    let deltas = of_kind(&live, "TEXT_MESSAGE_CONTENT");
    let text: String = deltas
        .iter()
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(text, "Seven, says the helper.");
    let results = of_kind(&live, "TOOL_CALL_RESULT");
    assert_eq!(results.len(), 1);

    // The repeated request, and a client that has nothing, get the messages and no second answer.
    for request in [&request, &body("talk", json!([]))] {
        let again = events(&routes, "pair", request).await;
        let [started, snapshot, finished] = again.as_slice() else {
            panic!("{again:?}")
        };
        assert_eq!(started["type"], "RUN_STARTED");
        assert_eq!(finished["metadata"], live.last().unwrap()["metadata"]);
        let messages = snapshot["messages"].as_array().unwrap();
        let roles: Vec<_> = messages.iter().map(|message| &message["role"]).collect();
        assert_eq!(
            roles,
            ["user", "assistant", "tool", "activity", "assistant"]
        );
        assert_eq!(messages[4]["content"], "Seven, says the helper.");
        let is_own = request["messages"].as_array().unwrap().len() == 1;
        assert_eq!(messages[0]["id"] == "ask me.", is_own);
    }
    // A client that has a part of the answer gets it whole.
    let part = json!({"id": "talk-1-2-0", "role": "assistant", "content": "Seven, sa"});
    let more = events(&routes, "pair", &body("talk", json!([prompt, part]))).await;
    assert_eq!(of_kind(&more, "MESSAGES_SNAPSHOT").len(), 1);

    let (status, problem) = sent(&routes, "chat", &request).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let changed = json!([{"id": "ask me.", "role": "user", "content": "How few?"}]);
    let (status, problem) = sent(&routes, "pair", &body("talk", changed)).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    assert!(problem.contains("/v1/sessions/talk/rewind"), "{problem}");
    runtime.shut_down().await;
}

/// Returns a run that answers an interrupt.
fn resume(id: &Value, payload: Value) -> Value {
    let answer = json!({"interruptId": id, "status": "resolved", "payload": payload});
    json!({"threadId": "talk", "runId": "r", "resume": [answer]})
}

#[tokio::test]
async fn only_a_clear_yes_allows_a_call() {
    let (folder, teams) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |path: &str| json!({"path": path, "content": "x"});
    let model = ScriptedModel::new()
        .call("write", write("a.txt"))
        .text("Written.");
    let runtime = node(folder.path(), teams.path(), vec![model]).await;
    let routes = Front::new(runtime.client().clone(), options()).routes();
    let mut request = body(
        "talk",
        json!([{"id": "m1", "role": "user", "content": "Write."}]),
    );
    request["forwardedProps"] = json!({"permissions": "careful", "theme": "dark"});
    let live = events(&routes, "chat", &request).await;
    let interrupt = &live.last().unwrap()["outcome"]["interrupts"][0];
    let (id, call) = (&interrupt["id"], &interrupt["toolCallId"]);
    assert_eq!(
        id,
        &format!(
            "{}:{}",
            call.as_str().unwrap(),
            interrupt["metadata"]["planck"]["digest"].as_str().unwrap()
        )
    );

    for payload in [
        json!(true),
        json!("yes"),
        json!({"approved": "true"}),
        json!({}),
        Value::Null,
    ] {
        let (status, problem) = sent(&routes, "chat", &resume(id, payload)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert!(problem.contains("approved"), "{problem}");
    }
    let stale = json!(format!("{}:0000", call.as_str().unwrap()));
    let yes = json!({"approved": true});
    let (status, problem) = sent(&routes, "chat", &resume(&stale, yes.clone())).await;
    assert!(
        status.is_client_error() && problem.contains("has changed"),
        "{problem}"
    );
    assert!(!folder.path().join("a.txt").exists());

    // Without history the client gets the messages before the result.
    let resumed = events(&routes, "chat", &resume(id, yes.clone())).await;
    let kinds = [1, 2].map(|at| resumed[at]["type"].as_str().unwrap());
    assert_eq!(kinds, ["MESSAGES_SNAPSHOT", "TOOL_CALL_RESULT"]);
    assert!(folder.path().join("a.txt").exists());
    // The same answer again reads the turn.
    let again = events(&routes, "chat", &resume(id, yes)).await;
    assert_eq!(again[1]["messages"].as_array().unwrap().len(), 4);
    assert_eq!(again.last().unwrap()["outcome"]["type"], "success");
    runtime.shut_down().await;
}
