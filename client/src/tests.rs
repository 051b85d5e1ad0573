use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use planck_common::{
    AgentId, NodeId, SessionId, TeamId,
    command::{InputMode, Prompt, Start},
    reply::{Code, Refusal, encode},
    subject::{Address, Topic},
};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{AnswerError, Client, ClientError, FollowEvent};
use planck_bus::{
    Bus, BusError, CommandHandler, Delivery, MemoryBus, MemoryHub, Published, ServiceGuard,
};

/// A bus that answers with prepared replies and records the requests.
#[derive(Default)]
struct Answers {
    replies: Mutex<VecDeque<Result<String, BusError>>>,
    asked: Mutex<Vec<(String, Value)>>,
    patience: Mutex<Vec<u64>>,
}

#[async_trait]
impl Bus for Answers {
    fn publish(&self, _: String, _: Bytes) {}
    fn publish_event(&self, _: Published) {}
    fn turn_open(&self, _: &SessionId, _: &AgentId, _: bool) {}

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        patience: Duration,
    ) -> Result<Bytes, BusError> {
        self.patience.lock().unwrap().push(patience.as_secs());
        self.asked
            .lock()
            .unwrap()
            .push((to.to_string(), serde_json::from_slice(&body).unwrap()));
        self.replies
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| Err(timed_out()))
            .map(Bytes::from)
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        Err(BusError::Denied(subject.into()))
    }

    async fn serve(
        &self,
        node: &NodeId,
        _: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        Err(BusError::Denied(node.to_string()))
    }

    fn is_connected(&self) -> bool {
        true
    }

    async fn flush(&self, _: Duration) -> Result<(), BusError> {
        Ok(())
    }
}

fn timed_out() -> BusError {
    BusError::TimedOut {
        subject: "x".into(),
        after: Duration::from_secs(1),
    }
}

fn refused(code: Code) -> Result<String, BusError> {
    Ok(encode(&Err::<(), _>(Refusal::new(code, "no"))))
}

fn accepted() -> Result<String, BusError> {
    Ok(r#"{"v":1,"ok":{"prompt_id":"p","session_id":"s","agent_id":"a","seq":7}}"#.into())
}

fn client(replies: impl IntoIterator<Item = Result<String, BusError>>) -> (Client, Arc<Answers>) {
    let bus = Arc::new(Answers {
        replies: Mutex::new(replies.into_iter().collect()),
        asked: Mutex::default(),
        patience: Mutex::default(),
    });
    (Client::over(bus.clone()), bus)
}

fn prompt(mode: InputMode) -> Prompt {
    Prompt {
        text: Some("hi".into()),
        content: None,
        prompt_id: None,
        mode,
        agent: None,
        by: None,
        output: None,
    }
}

#[tokio::test(start_paused = true)]
async fn error_tells_that_an_earlier_attempt_may_have_been_executed() {
    let nobody = || Err(BusError::NoResponders("x".into()));
    for (first, expected) in [(Err(timed_out()), true), (nobody(), false)] {
        let answers = std::iter::once(first).chain(std::iter::repeat_with(nobody).take(20));
        let (client, _bus) = client(answers.collect::<Vec<_>>());
        let error = client
            .prompt("s", prompt(InputMode::Queue))
            .await
            .unwrap_err();
        assert_eq!(error.may_have_been_executed(), expected, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_is_sent_again_with_its_id_until_it_is_accepted() {
    let foreign = Ok(r#"{"stream":"X","seq":1}"#.to_owned());
    let nobody = Err(BusError::NoResponders("x".into()));
    let (client, bus) = client([
        refused(Code::Unavailable),
        foreign,
        Err(timed_out()),
        nobody,
        accepted(),
    ]);
    let began = Instant::now();
    assert_eq!(
        client
            .prompt("s", prompt(InputMode::Queue))
            .await
            .unwrap()
            .seq,
        7
    );
    assert_eq!(began.elapsed(), Duration::from_secs(8));
    let asked = bus.asked.lock().unwrap();
    assert_eq!(asked.len(), 5);
    assert!(asked.iter().all(|ask| *ask == asked[0]));
    assert!(asked[0].1["prompt_id"].is_string());
}

#[tokio::test]
async fn malformed_name_is_refused_before_it_is_sent() {
    let (client, bus) = client([]);
    for name in ["a.b", "", "*", "a b"] {
        let error = client.session(name).await.unwrap_err();
        assert!(
            error.to_string().contains("malformed id or name"),
            "{error}"
        );
    }
    assert!(bus.asked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn request_is_given_up_after_five_retries() {
    let (client, bus) = client([]);
    let error = client
        .start(Start {
            prompt: Some("hi".into()),
            ..start()
        })
        .await
        .unwrap_err();
    assert!(
        matches!(error, ClientError::Unreachable(BusError::TimedOut { .. })),
        "{error}"
    );
    assert_eq!(
        *bus.patience.lock().unwrap(),
        [2, 4, 8, 10, 10, 10],
        "the first attempt is short because its node may be dead"
    );
    let asked = bus.asked.lock().unwrap();
    assert_eq!(asked.len(), 6);
    assert!(asked[0].1["session_id"].is_string() && asked[5] == asked[0]);
}

fn start() -> Start {
    serde_json::from_value(json!({})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn final_refusal_is_not_retried() {
    for code in [
        Code::NotFound,
        Code::BadRequest,
        Code::Denied,
        Code::Limit,
        Code::TooLarge,
    ] {
        let (client, bus) = client([refused(code)]);
        let error = client
            .prompt("s", prompt(InputMode::Queue))
            .await
            .unwrap_err();
        assert!(matches!(error, ClientError::Refused(refusal) if refusal.code == code));
        assert_eq!(bus.asked.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_with_reject_is_tried_once() {
    let (client, bus) = client([refused(Code::Busy), accepted()]);
    client
        .prompt("s", prompt(InputMode::Reject))
        .await
        .unwrap_err();
    assert_eq!(bus.asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn command_that_may_have_been_executed_is_not_sent_again() {
    let agent = AgentId::parse("a").unwrap();
    let (done, bus) = client([
        Err(timed_out()),
        Ok(r#"{"v":1,"ok":{"state":"streaming"}}"#.into()),
    ]);
    done.nudge(&agent, None).await.unwrap_err();
    assert_eq!(bus.asked.lock().unwrap().len(), 1);

    let (relayed, bus) = client([
        refused(Code::OutcomeUnknown),
        Ok(r#"{"v":1,"ok":{"state":"streaming"}}"#.into()),
    ]);
    let error = relayed.checkpoint(&agent, "so far".into()).await;
    assert!(error.unwrap_err().may_have_been_executed());
    assert_eq!(bus.asked.lock().unwrap().len(), 1);

    let (not_done, bus) = client([
        refused(Code::Unavailable),
        Ok(r#"{"v":1,"ok":{"state":"streaming"}}"#.into()),
    ]);
    not_done.nudge(&agent, None).await.unwrap();
    assert_eq!(bus.asked.lock().unwrap().len(), 2);
}

#[test]
fn readme_shows_the_example_that_is_built() {
    let example = include_str!("../examples/ask.rs");
    let (_title, program) = example.split_once("\n\n").unwrap();
    assert!(include_str!("../README.md").contains(&format!("```rust,no_run\n{program}```")));
}

#[test]
fn only_a_lost_reply_leaves_open_whether_a_command_was_executed() {
    let refused = |code| ClientError::Refused(Refusal::new(code, "no"));
    let unreachable = ClientError::Unreachable;
    for (error, expected) in [
        (refused(Code::Busy), false),
        (refused(Code::OutcomeUnknown), true),
        (refused(Code::Internal), true),
        (unreachable(BusError::NoResponders("x".into())), false),
        (unreachable(timed_out()), true),
    ] {
        assert_eq!(error.may_have_been_executed(), expected, "{error}");
    }
}

#[test]
fn error_of_a_lost_reply_names_the_command_and_the_way_out() {
    assert_eq!(
        ClientError::Unreachable(timed_out()).to_string(),
        "no answer from x within 1s; a node may be dead or overloaded, and `planck nodes ls` shows them all"
    );
}

#[tokio::test]
async fn published_events_come_after_the_log_in_their_order() {
    let (session, agent) = (SessionId::mint(), AgentId::mint());
    let event = |seq: Option<i64>, kind: &str, data: Value| {
        json!({
            "v": 1, "type": kind, "agent_id": agent, "session_id": session,
            "team_id": TeamId::mint(), "node_id": NodeId::mint(), "epoch": 1, "seq": seq,
            "prev": seq.map(|seq| seq - 1), "turn": 1, "request": 1,
            "at": "2026-11-27T12:00:00Z", "data": data,
        })
    };
    let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(MemoryHub::new()));
    let log = event(Some(1), "turn_start", json!({"index": 1, "inputs": []}));
    let (readable, page) = (
        Arc::new(Notify::new()),
        json!({"events": [log], "next": 2, "head": 1}),
    );
    let is_readable = readable.clone();
    let answer: CommandHandler = Arc::new(move |command, _| {
        let (page, is_readable) = (page.to_string(), is_readable.clone());
        Box::pin(async move {
            if !command.to_string().ends_with(".events") {
                return Err(Refusal::new(Code::NotFound, "no"));
            }
            is_readable.notified().await;
            Ok(page)
        })
    });
    let _serving = bus.serve(&NodeId::mint(), answer).await.unwrap();

    let mut follow = Client::over(bus.clone()).follow(&session, 1).await.unwrap();
    let progress = json!({"call_id": "c", "message": "half", "percent": 50});
    let message = json!({"message": {"role": "assistant", "content": [], "metadata": {}}});
    for published in [
        event(None, "tool_progress", progress),
        event(Some(2), "message", message),
    ] {
        bus.publish(
            Topic::Session(&session).to_string(),
            published.to_string().into(),
        );
    }
    let early = timeout(Duration::from_millis(100), follow.next()).await;
    assert!(early.is_err(), "{early:?} came before the log");
    readable.notify_one();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(match follow.next().await.unwrap() {
            FollowEvent::Durable(event) | FollowEvent::Live(event) => event.kind,
            FollowEvent::CaughtUp => "caught up".into(),
            other @ (FollowEvent::Retracted(_) | FollowEvent::Retrying(_)) => format!("{other:?}"),
        });
    }
    assert_eq!(
        seen,
        ["turn_start", "tool_progress", "message", "caught up"]
    );
}

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Sum {
    sum: u32,
    steps: Option<Vec<Sum>>,
}

/// Returns the reply with the outcome of work that is over.
fn over(fields: Value) -> Result<String, BusError> {
    let mut outcome =
        json!({"agent_id": "a", "state": "over", "outcome": "completed", "seq": 9, "head": 9});
    let all = outcome.as_object_mut().unwrap();
    all.extend(fields.as_object().unwrap().clone());
    Ok(json!({"v": 1, "ok": outcome}).to_string())
}

async fn sum(
    replies: impl IntoIterator<Item = Result<String, BusError>>,
) -> (Result<Sum, AnswerError>, Vec<(String, Value)>) {
    let (client, bus) = client(std::iter::once(accepted()).chain(replies));
    let answer = client.prompt_as("s", "Add.").await;
    let asked = bus.asked.lock().unwrap().clone();
    (answer, asked)
}

#[tokio::test(start_paused = true)]
async fn answer_is_a_value_of_the_type_whose_schema_the_prompt_has() {
    let value = json!({"sum": 5, "steps": [{"sum": 2}]});
    let (answer, asked) = sum([over(json!({ "output": value }))]).await;
    let step = Sum {
        sum: 2,
        steps: None,
    };
    let expected = Sum {
        sum: 5,
        steps: Some(vec![step]),
    };
    assert_eq!(answer.unwrap(), expected);
    let schema = &asked[0].1["output"]["schema"];
    assert_eq!(
        (&schema["type"], &schema["required"]),
        (&json!("object"), &json!(["sum"]))
    );
}

#[tokio::test(start_paused = true)]
async fn absent_answer_has_the_outcome_and_says_why() {
    let error =
        json!({"reason": "no sum", "code": "output_invalid", "retryable": false, "inputs": []});
    for (fields, expected) in [
        (json!({"outcome": "error", "error": error}), "no sum"),
        (json!({"outcome": "aborted"}), "\"aborted\""),
        (json!({"state": "waiting", "outcome": null}), "from outside"),
    ] {
        let (answer, _) = sum([over(fields.clone())]).await;
        let error = answer.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(
            matches!(error, AnswerError::Absent(_)),
            "{fields}: {error:?}"
        );
    }
    let (answer, _) = sum([over(json!({"output": {"sum": -1}}))]).await;
    assert!(matches!(answer, Err(AnswerError::Type(_))), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn answer_that_was_cut_is_read_from_the_log() {
    let cut = || over(json!({"truncated": true, "output": {"sum": 1}}));
    let log = |is_cut: bool| {
        let usage = json!({"input_tokens": 1, "output_tokens": 1, "cost_usd": 0.0});
        let end = json!({"outcome": "completed", "message": null, "usage": usage, "inputs": [], "output": {"sum": 5}});
        let event = json!({
            "v": 1, "type": "turn_end", "agent_id": "a", "session_id": "s", "team_id": "t", "node_id": "n",
            "epoch": 1, "seq": 9, "prev": 8, "turn": 1, "request": 1, "at": "2026-11-27T12:00:00Z",
            "truncated": is_cut, "data": end,
        });
        Ok(json!({"v": 1, "ok": {"events": [event], "next": 10, "head": 9}}).to_string())
    };
    let (answer, asked) = sum([cut(), log(false)]).await;
    assert_eq!(answer.unwrap().sum, 5);
    assert_eq!(asked[2].1["from"], 9);
    let (answer, _) = sum([cut(), log(true)]).await;
    assert!(matches!(answer, Err(AnswerError::Absent(_))), "{answer:?}");
}
