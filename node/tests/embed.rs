//! Tests of the runtime as a library, through its public interface only.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test ends at the first surprise, and looks at a few events of many"
)]

use std::{convert::Infallible, time::Duration};

use planck_node::{
    Agent, AnswerError, Client, ClientError, Event, Follow, FollowEvent, Runtime, RuntimeBuilder,
    RuntimeError, ScriptedModel, Session, Tool, ToolContext,
    protocol::{SessionId, command::SessionState, event::ToolEnd, spec::Member},
};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::timeout;

#[path = "embed/cluster.rs"]
mod cluster;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Count {
    text: String,
}

/// Returns a tool whose answer contains the name of the program, so that a test can tell which
/// program ran the tool.
fn count(program: &'static str) -> Tool {
    let count = move |_: ToolContext, args: Count| async move {
        let words = args.text.split_whitespace().count();
        Ok::<_, Infallible>(format!("{words} words, says {program}"))
    };
    Tool::new("count", "Counts the words of a text.", count).pure()
}

fn counting(program: &'static str, model: ScriptedModel) -> RuntimeBuilder {
    Runtime::builder()
        .scripted_model(model)
        .tool(count(program))
}

fn calls_count(model: ScriptedModel) -> ScriptedModel {
    model.call("count", json!({"text": "to be or not to be"}))
}

/// The tool calls of a turn, and how the turn ended.
struct Turn {
    calls: Vec<ToolEnd>,
    end: Result<String, String>,
}

async fn next_turn(events: &mut Follow) -> Turn {
    let mut calls = Vec::new();
    let end = async {
        loop {
            match events.next().await.unwrap().event() {
                Some(Event::ToolEnd(call)) => calls.push(call),
                Some(Event::TurnEnd(end)) => return Ok(end.message.unwrap_or_default()),
                Some(Event::Error(error)) => return Err(error.reason),
                _ => {}
            }
        }
    };
    let end = timeout(PATIENCE, end).await.expect("the turn ends");
    Turn { calls, end }
}

/// Starts a runtime with only this model, and a session in it.
async fn started(model: ScriptedModel) -> (Runtime, Session) {
    let builder = Runtime::builder().scripted_model(model);
    let runtime = builder.start().await.unwrap();
    let session = runtime.start(Agent::new("speaker")).await.unwrap();
    (runtime, session)
}

/// Prompts a session through a client, waits for the end of the turn, and returns the turn.
async fn prompted(client: &Client, session: &SessionId) -> Turn {
    let prompt = client.prompt(session, "Again.").await.unwrap();
    let mut events = client.follow(session, prompt.seq + 1).await.unwrap();
    next_turn(&mut events).await
}

async fn turn(session: &Session) -> Turn {
    let mut events = session.events().await.unwrap();
    session.prompt("How many words?").await.unwrap();
    next_turn(&mut events).await
}

#[tokio::test(flavor = "multi_thread")]
async fn program_gives_its_agents_a_tool() {
    let model = calls_count(ScriptedModel::new()).text("Six words.");
    let runtime = counting("one", model).start().await.unwrap();
    let session = runtime.start(Agent::new("counter")).await.unwrap();
    let turn = turn(&session).await;
    assert_eq!(turn.end, Ok("Six words.".into()));
    assert_eq!(turn.calls[0].result, "6 words, says one");
    runtime.shut_down().await;
}

#[test]
fn page_shows_the_example() {
    let read = |path: &str| {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap();
        std::fs::read_to_string(root.join(path)).unwrap()
    };
    let program = read("examples/embed/src/main.rs");
    let (_, program) = program.split_once("\n\n").unwrap();
    assert!(read("docs/embedding.md").contains(&format!("```rust\n{program}```")));
    let lines = program.lines().filter(|line| !line.trim().is_empty());
    assert!(lines.count() < 30);
}

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Part {
    name: String,
    kind: Kind,
    parts: Vec<Part>,
}

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
enum Kind {
    Frame,
    Wheel { inches: u8 },
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_is_a_value_of_a_type_or_an_error() {
    let wheel = json!({"name": "front", "kind": {"Wheel": {"inches": 28}}, "parts": []});
    let model = ScriptedModel::new()
        .call("submit_output", json!({"name": "bicycle"}))
        .call(
            "submit_output",
            json!({"name": "bicycle", "kind": "Frame", "parts": [wheel]}),
        )
        .text("A bicycle.")
        .text("As I said.");
    let (runtime, session) = started(model).await;
    let part: Part = session.prompt_as("Describe a bicycle.").await.unwrap();
    assert_eq!((part.name.as_str(), part.kind), ("bicycle", Kind::Frame));
    let wheel = Part {
        name: "front".into(),
        kind: Kind::Wheel { inches: 28 },
        parts: Vec::new(),
    };
    assert_eq!(part.parts, [wheel]);

    let absent = session.prompt_as::<Part>("Again.").await.unwrap_err();
    let code = match &absent {
        AnswerError::Absent(outcome) => outcome.error.as_ref().map(|error| error.code.as_str()),
        other => panic!("{other}"),
    };
    assert_eq!(code, Some("output_invalid"), "{absent}");
    let no_object = session.prompt_as::<Vec<Part>>("Again.").await.unwrap_err();
    assert!(
        matches!(&no_object, AnswerError::Client(ClientError::Refused(why)) if why.message.contains("object")),
        "{no_object}"
    );
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_arrives_in_pieces() {
    let model = ScriptedModel::new()
        .pace(Duration::from_millis(100))
        .text("one two three");
    let (runtime, session) = started(model).await;
    let mut events = session.events().await.unwrap();
    session.prompt("Speak.").await.unwrap();
    let mut streamed = String::new();
    let read = async {
        loop {
            match events.next().await.unwrap() {
                FollowEvent::Live(event) => {
                    if let Some(Ok(Event::TextDelta(delta))) = event.event() {
                        streamed.push_str(&delta.text);
                    }
                }
                event => {
                    if let Some(Event::TurnEnd(_)) = event.event() {
                        break;
                    }
                }
            }
        }
    };
    timeout(PATIENCE, read).await.unwrap();
    assert_eq!(streamed, "one two three");
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn script_that_is_over_is_an_error_with_a_way_out() {
    let (runtime, session) = started(ScriptedModel::named("short").text("once")).await;
    let mut events = session.events().await.unwrap();
    session.prompt("Speak.").await.unwrap();
    assert_eq!(next_turn(&mut events).await.end, Ok("once".into()));
    session.prompt("Again.").await.unwrap();
    let why = next_turn(&mut events).await.end.unwrap_err();
    assert!(
        why.contains("`scripted:short` has no more replies"),
        "{why}"
    );
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_report_progress_fail_and_panic() {
    let report = |context: ToolContext, _: serde_json::Map<String, serde_json::Value>| async move {
        context.progress("halfway", Some(50.0));
        Err::<String, _>("there is no such page")
    };
    let panics = |_: ToolContext, args: serde_json::Map<String, serde_json::Value>| async move {
        assert!(args.contains_key("never"), "no such luck");
        Ok::<_, Infallible>("")
    };
    let model = ScriptedModel::new()
        .call("report", json!({}))
        .call("panics", json!({}))
        .call("panics", json!("text"))
        .text("Done.");
    let runtime = Runtime::builder()
        .scripted_model(model)
        .tool(Tool::new("report", "Reports.", report))
        .tool(Tool::new("panics", "Panics.", panics))
        .start()
        .await
        .unwrap();
    let session = runtime.start(Agent::new("caller")).await.unwrap();
    let mut events = session.events().await.unwrap();
    // Live events that come while the log is read are returned after it, which can be after the turn.
    while !matches!(events.next().await.unwrap(), FollowEvent::CaughtUp) {}
    session.prompt("Go.").await.unwrap();
    let mut progress = None;
    let (mut results, mut over) = (Vec::new(), false);
    while !over {
        let event = timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        match event.event() {
            Some(Event::ToolProgress(report)) => progress = report.percent,
            Some(Event::ToolEnd(call)) => results.push((call.error, call.result)),
            Some(Event::TurnEnd(_) | Event::Error(_)) => over = true,
            _ => {}
        }
    }
    assert_eq!(progress, Some(50.0));
    assert_eq!(results[0], (true, "there is no such page".into()));
    assert_eq!(results[1], (true, "the tool failed: no such luck".into()));
    assert!(
        results[2].0 && results[2].1.contains("not a JSON object"),
        "{results:?}"
    );
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workspace_gives_tools_for_its_files() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("note.txt"), "remember the milk").unwrap();
    let model = ScriptedModel::new()
        .call("read", json!({"path": "note.txt"}))
        .call("bash", json!({"command": "true"}))
        .text("Milk.");
    let runtime = Runtime::builder()
        .scripted_model(model)
        .workspace(folder.path())
        .start()
        .await
        .unwrap();
    let session = runtime.start(Agent::new("reader")).await.unwrap();
    let turn = turn(&session).await;
    assert!(turn.calls[0].result.contains("remember the milk"));
    assert!(
        turn.calls[1].error,
        "an embedded runtime starts no processes"
    );
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn team_works_inside_the_process() {
    let lead = ScriptedModel::named("lead")
        .call(
            "ask_agent",
            json!({"agent": "counter", "question": "How many?"}),
        )
        .text("The counter says six.");
    let counter = calls_count(ScriptedModel::named("counter")).text("Six.");
    let (lead_model, counter_model) = (lead.model(), counter.model());
    let runtime = counting("one", lead)
        .scripted_model(counter)
        .start()
        .await
        .unwrap();
    let team = [
        Agent::new("lead")
            .model(lead_model)
            .tools(["spawn_agent", "ask_agent"]),
        Agent::new("counter")
            .model(counter_model)
            .system_prompt("You count.")
            .tools(["count"]),
    ];
    let session = runtime.start_team(team).await.unwrap();
    let mut events = session.events().await.unwrap();
    session.prompt("Ask the counter.").await.unwrap();
    let mut answers = Vec::new();
    while answers.len() < 2 {
        let turn = next_turn(&mut events).await;
        answers.push(turn.end.unwrap());
    }
    assert_eq!(answers, ["Six.", "The counter says six."]);
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn saved_session_continues_in_the_next_runtime() {
    let folder = TempDir::new().unwrap();
    let store = format!("sqlite:{}", folder.path().display());
    let first = counting("one", ScriptedModel::new().text("First."))
        .store(&store)
        .start()
        .await
        .unwrap();
    let session = first.start(Agent::new("counter")).await.unwrap();
    assert_eq!(turn(&session).await.end, Ok("First.".into()));
    let id = session.id().clone();
    first.shut_down().await;

    let model = calls_count(ScriptedModel::new()).text("Second.");
    let second = counting("two", model).store(&store).start().await.unwrap();
    let client = second.client();
    let found = client.session(&id).await.unwrap();
    assert_eq!(found.state, SessionState::Open);
    let turn = prompted(client, &id).await;
    assert_eq!(turn.calls[0].result, "6 words, says two");
    assert_eq!(turn.end, Ok("Second.".into()));
    second.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_named_at_the_start() {
    let wrong = |builder: RuntimeBuilder| async { builder.start().await.err().unwrap() };
    let unknown = wrong(Runtime::builder().set("limits.max_promt", "1 MiB")).await;
    let text = unknown.to_string();
    assert!(matches!(unknown, RuntimeError::Settings(_)));
    assert!(
        text.contains(
            "the program: `limits.max_promt`: unknown key; did you mean `limits.max_prompt`?"
        ),
        "{text}"
    );
    let twice = wrong(Runtime::builder().tool(count("one")).tool(count("two"))).await;
    assert!(
        matches!(&twice, RuntimeError::Tool(why) if why.contains("`count`")),
        "{twice}"
    );
    let name = wrong(Runtime::builder().name("a.b")).await;
    assert!(
        matches!(&name, RuntimeError::Settings(why) if why.contains("`a.b`")),
        "{name}"
    );
    let away = Runtime::builder()
        .nats("nats://127.0.0.1:1")
        .set("nats.connect_timeout", "200ms");
    let away = wrong(away).await;
    assert!(
        matches!(&away, RuntimeError::Start(why) if why.contains("127.0.0.1:1")),
        "{away}"
    );

    let runtime = Runtime::builder().start().await.unwrap();
    let no_model = runtime.start(Agent::new("agent")).await.unwrap_err();
    assert!(
        no_model.to_string().contains("no model is named"),
        "{no_model}"
    );
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn environment_and_files_of_the_user_are_not_read() {
    // The test's own process has variables such as HOME. A runtime must not use any of them.
    let runtime = Runtime::builder()
        .scripted_model(ScriptedModel::new().text("Hello."))
        .start()
        .await
        .unwrap();
    let agent = Agent::from(Member {
        name: Some("only".into()),
        ..Member::from(Agent::new("agent"))
    });
    let session = runtime.start(agent).await.unwrap();
    assert_eq!(turn(&session).await.end, Ok("Hello.".into()));
    let nodes = runtime.client().session(session.id()).await.unwrap();
    assert_eq!(nodes.agents[0].name, "only");
    runtime.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_runtime_shuts_down_and_removes_its_folder() {
    // Other processes run this test too.
    let name = format!("dropped-{}", std::process::id());
    let folders = || {
        let entries = std::fs::read_dir(std::env::temp_dir()).unwrap();
        let file_name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
        let of_runtime = |file: &std::ffi::OsString| {
            file.to_string_lossy()
                .starts_with(&format!("planck-{name}-"))
        };
        entries.map(file_name).filter(of_runtime).count()
    };
    let before = folders();
    let runtime = Runtime::builder().name(&name).start().await.unwrap();
    assert_eq!(folders(), before + 1);
    drop(runtime);
    let gone = async {
        while folders() > before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, gone)
        .await
        .expect("the folder is removed");
}
