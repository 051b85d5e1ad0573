use std::{fs::File, io::Read as _, os::fd::OwnedFd};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{events, http::post};
use crate::{Reply, Script, Server, When};

const PATH: &str = "/v1/chat/completions";

fn asking(messages: Value) -> Value {
    json!({"model": "m", "stream": true, "messages": messages})
}

async fn said(server: &Server, messages: Value) -> String {
    let answer = post(server, PATH, &[], &asking(messages)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let events = events(&answer);
    let field = |name: &str| {
        events
            .iter()
            .filter_map(|event| event.pointer(name)?.as_str())
            .collect::<String>()
    };
    field("/choices/0/delta/content") + &field("/choices/0/delta/tool_calls/0/function/arguments")
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Returns a user's message, a call of `list_team`, and its result.
fn after_list(text: &str, result: &str) -> Value {
    let call = json!({"id": "a", "type": "function", "function": {"name": "list_team", "arguments": "{}"}});
    json!([
        {"role": "user", "content": text},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": result}
    ])
}

#[tokio::test]
async fn first_rule_that_matches_answers() {
    let script = Script::parse(
        r#"{"auth": "off", "rules": [
            {"when": {"user": "once"}, "times": 1, "replies": ["the first time"]},
            {"when": {"user": "once"}, "replies": ["later"]},
            {"when": {"model": "other"}, "replies": ["never"]},
            {"when": {"user": "team"}, "replies": [
                [{"call": {"name": "list_team"}}],
                [{"call": {"name": "delegate_task", "args": {"agent": "{{result:list_team.name=coder.id}}", "task": "{{last_user}}!"}}}]]},
            {"when": {"user": "task"}, "replies": ["doing {{word_after:task }}"]}
        ]}"#,
    );
    let server = Server::start(script.unwrap()).await.unwrap();
    assert_eq!(said(&server, user("once")).await, "the first time");
    assert_eq!(said(&server, user("once")).await, "later");
    assert_eq!(said(&server, user("team")).await, "{}");
    let team = r#"[{"id": "x1", "name": "lead"}, {"id": "x2", "name": "coder"}]"#;
    assert_eq!(
        said(&server, after_list("team", team)).await,
        r#"{"agent":"x2","task":"team!"}"#
    );
    assert_eq!(said(&server, user("do task 7f, now")).await, "doing 7f");
    assert_eq!(
        said(&server, user("nothing of the kind")).await,
        "nothing of the kind"
    );
    assert_eq!(server.violations(), []);
}

#[tokio::test]
async fn request_without_a_reply_is_refused_and_recorded() {
    let script = Script::new()
        .rule(When::any().user("id"), "{{result:spawn_agent.id}}")
        .refuse_otherwise()
        .without_auth();
    let server = Server::start(script).await.unwrap();
    for (text, says) in [
        ("id", "nothing to put for {{result:spawn_agent.id}}"),
        ("other", "no rule of the script matches"),
    ] {
        let answer = post(&server, PATH, &[], &asking(user(text))).await;
        assert_eq!(answer.status, 400);
        assert!(answer.body.contains(says), "{}", answer.body);
    }
    assert_eq!(server.violations().len(), 2);
    server.set_script(Script::new().always(Reply::text("now")).without_auth());
    assert_eq!(said(&server, user("other")).await, "now");
}

#[tokio::test]
async fn requests_are_kept_up_to_a_bound() {
    let server = Server::start(Script::new().keep(2)).await.unwrap();
    for text in ["a", "b", "c"] {
        post(
            &server,
            PATH,
            &[("authorization", "Bearer k")],
            &asking(user(text)),
        )
        .await;
    }
    let kept: Vec<(u64, u64, String)> = server
        .requests()
        .iter()
        .map(|request| {
            (
                request.serial,
                request.connection,
                request.asked.as_ref().unwrap().last_user().to_owned(),
            )
        })
        .collect();
    assert_eq!(kept, [(1, 2, "b".to_owned()), (2, 3, "c".to_owned())]);
    assert_eq!(
        (
            server.connections(),
            server.request_count(),
            server.most_streams()
        ),
        (3, 3, 1)
    );
}

#[tokio::test]
async fn log_has_each_request_each_end_and_each_refusal() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let file = File::from(OwnedFd::from(writer));
    let script = Script::new().without_auth();
    let server = Server::serve_with_log(listener, script, file).unwrap();
    let long = "x".repeat(300);
    post(&server, PATH, &[], &asking(user(&long))).await;
    post(&server, PATH, &[], &json!({"model": "m", "stream": true})).await;
    server.stop().await.unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0]["messages"], json!([{"user": "x".repeat(200)}]));
    assert_eq!(lines[1]["end"], lines[0]["request"]);
    assert!(lines[0]["at"].as_f64() <= lines[1]["at"].as_f64(), "{text}");
    assert_eq!(lines[2]["messages"], Value::Null);
    assert_eq!(lines[3]["refused"], lines[2]["request"]);
}
