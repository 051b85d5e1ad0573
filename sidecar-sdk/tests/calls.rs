//! Tests of tools and compactors without NATS, through the harness.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use planck_sidecar::{
    CompactMessage, Compactor, Context, Conversation, Decision, Harness, Sidecar, Tool,
    message::Message,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::sleep;

#[derive(Deserialize, JsonSchema)]
struct Wait {
    ms: u64,
}

async fn wait(context: Context, args: Wait) -> Result<String, String> {
    context.progress("waiting", Some(250.0));
    sleep(Duration::from_millis(args.ms)).await;
    Ok(format!(
        "{} {:?} {}",
        context.agent_id(),
        context.epoch(),
        context.call_id()
    ))
}

/// Waits until the call is cancelled, and then returns by itself.
async fn heed(context: Context, _: Wait) -> Result<String, String> {
    context.cancelled().await;
    Err("tidied up".into())
}

async fn fall(_: Context, _: Wait) -> Result<String, String> {
    panic!("over its own feet")
}

struct Head;

#[async_trait]
impl Compactor for Head {
    async fn compact(&self, _: Context, conversation: Conversation) -> Result<Decision, String> {
        let cut = conversation.cut(2);
        Ok(cut.map_or(Decision::Skip, |keep_from| Decision::Compact {
            summary: "short".into(),
            keep_from,
        }))
    }
}

fn harness() -> Harness {
    let sidecar = Sidecar::new("test", "1.0.0").unwrap().at_once(2);
    let tools = [
        Tool::new("wait", "Waits.", wait),
        Tool::new("heed", "Heeds.", heed),
        Tool::new("fall", "Falls.", fall),
    ];
    Harness::of(
        tools
            .into_iter()
            .fold(sidecar, Sidecar::tool)
            .compactor("head", Head),
    )
}

#[tokio::test(start_paused = true)]
async fn context_has_the_ids_of_the_caller() {
    let harness = harness();
    let answer = harness
        .request("wait", r#"{"ms":1}"#)
        .agent("a")
        .epoch(7)
        .call_id("c")
        .send()
        .await;
    assert_eq!(answer.said, Ok("a Some(7) c".into()));
    assert_eq!(answer.progress, [("waiting".to_owned(), Some(100.0))]);
}

#[tokio::test(start_paused = true)]
async fn wrong_request_is_answered_with_an_error() {
    let harness = harness();
    let error = async |tool: &str, args: &str| harness.call(tool, args).await.unwrap_err();
    assert!(
        error("wait", r#"{"ms":"1"}"#)
            .await
            .starts_with("the arguments do not fit: invalid type")
    );
    assert!(error("wait", "{}").await.contains("missing field `ms`"));
    assert_eq!(
        error("fall", r#"{"ms":1}"#).await,
        "the tool failed: over its own feet"
    );
    assert!(error("none", "{}").await.contains("no tool `none`"));
    for body in ["{", "[]", "", "{}", r#"{"v":1,"call_id":"a.b"}"#] {
        let said = harness.send("wait", body.as_bytes()).await.said;
        assert!(
            said.as_ref()
                .is_err_and(|error| error.starts_with("malformed request")),
            "{body}: {said:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lower_epoch_is_refused() {
    let harness = harness();
    let call = async |agent: &str, epoch| {
        harness
            .request("wait", r#"{"ms":1}"#)
            .agent(agent)
            .epoch(epoch)
            .send()
            .await
            .said
    };
    assert!(call("a", 5).await.is_ok());
    assert!(
        call("a", 4)
            .await
            .is_err_and(|error| error.contains("stale epoch 4"))
    );
    assert!(call("b", 4).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn running_call_is_not_run_twice() {
    let harness = harness();
    let call = || {
        harness
            .request("wait", r#"{"ms":1000}"#)
            .call_id("c")
            .send()
    };
    let (first, second) = tokio::join!(call(), call());
    assert_eq!(
        (first.said.is_ok(), second.said),
        (true, Err("in progress".into()))
    );
    assert!(call().await.said.is_ok(), "the id is free again");
}

#[tokio::test(start_paused = true)]
async fn cancelled_and_late_calls_end() {
    let harness = harness();
    let cancelled = async |tool| {
        let call = harness
            .request(tool, r#"{"ms":3600000}"#)
            .call_id("c")
            .send();
        let cancel = async {
            sleep(Duration::from_millis(10)).await;
            harness.cancel("c");
        };
        tokio::join!(call, cancel).0.said.unwrap_err()
    };
    assert!(cancelled("wait").await.starts_with("cancelled"));
    assert_eq!(cancelled("heed").await, "tidied up");
    let late = harness
        .request("wait", r#"{"ms":3600000}"#)
        .deadline(Duration::from_secs(1))
        .send()
        .await;
    assert!(
        late.said
            .is_err_and(|error| error.starts_with("out of time"))
    );
}

#[tokio::test(start_paused = true)]
async fn number_of_running_and_waiting_calls_is_bounded() {
    let harness = harness();
    let began = tokio::time::Instant::now();
    let said = join_all((0..40).map(|_| harness.call("wait", r#"{"ms":1000}"#))).await;
    let refused: Vec<_> = said.iter().filter_map(|said| said.as_ref().err()).collect();
    assert_eq!(refused.len(), 6, "two run, 32 wait");
    assert!(refused.iter().all(|error| error.starts_with("busy")));
    assert_eq!(began.elapsed().as_secs(), 17, "two calls run at once");
}

fn message(id: i64, part: &str) -> Message {
    let text = format!(
        r#"{{"id":{id},"agent_id":"a","at":"2026-01-02T03:04:05.000Z","role":"user","content":[{part}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn cut_keeps_calls_and_results_together() {
    let text = r#"{"type":"text","text":"a"}"#;
    let call = r#"{"type":"tool_call","id":"x","call_id":"x","name":"n","args":{}}"#;
    let result = r#"{"type":"tool_result","id":"x","call_id":"x","text":"r","error":false}"#;
    let messages = [
        message(7, text),
        message(8, call),
        message(9, result),
        message(10, text),
    ];
    let said = harness().compact("head", &messages, 1000).await;
    assert_eq!(
        said,
        CompactMessage::Compact {
            summary: "short".into(),
            keep_from: 8
        }
    );
    let said = harness()
        .compact("head", messages.get(..2).unwrap(), 1000)
        .await;
    assert_eq!(said, CompactMessage::Skip(true));
}

#[test]
fn names_and_versions_are_checked() {
    assert!(Sidecar::new("a.b", "1.0.0").is_err());
    assert!(Sidecar::new("a", "1.0").is_err());
    assert!(Sidecar::new("a", "1.0.x").is_err());
}
