use std::collections::VecDeque;
use std::sync::{Mutex, atomic::AtomicU32, atomic::Ordering};

use futures_util::{StreamExt as _, stream, stream::BoxStream};
use planck_common::{AgentId, CallId, NodeId, SessionId, TeamId, subject::Address};
use tokio_util::sync::CancellationToken;

use super::super::{directory::Directory, discovery::SidecarInstance};
use super::*;
use crate::bus::{
    BusError, CommandHandler, Delivery, Published, ReplyStream, ServiceGuard, StreamedReply,
};
use planck_toolbox::{CallProgress, spec};

/// The messages that answer one try, each with the delay before it.
type Script = Vec<(Duration, Result<StreamedReply, BusError>)>;

/// A bus that answers each try with the next script, and records requests and published subjects.
#[derive(Default)]
struct ScriptedBus {
    scripts: Mutex<VecDeque<Script>>,
    asked: Mutex<Vec<Bytes>>,
    published: Mutex<Vec<String>>,
}

#[async_trait]
impl Bus for ScriptedBus {
    fn publish(&self, subject: String, _: Bytes) {
        self.published.lock().unwrap().push(subject);
    }
    fn publish_event(&self, _: Published) {}
    fn turn_open(&self, _: &SessionId, _: &AgentId, _: bool) {}
    async fn request(&self, to: &Address, _: Bytes, _: Duration) -> Result<Bytes, BusError> {
        Err(BusError::NoResponders(to.to_string()))
    }
    async fn request_stream(&self, subject: &str, body: Bytes) -> Result<ReplyStream, BusError> {
        self.asked.lock().unwrap().push(body);
        let script = self
            .scripts
            .lock()
            .unwrap()
            .pop_front()
            .ok_or_else(|| BusError::Denied(subject.into()))?;
        let messages = stream::iter(script).then(|(after, said)| async move {
            tokio::time::sleep(after).await;
            said
        });
        Ok(messages.chain(stream::pending()).boxed())
    }
    async fn subscribe(&self, _: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        Ok(stream::pending().boxed())
    }
    async fn serve(
        &self,
        _: &NodeId,
        _: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        Err(BusError::Unfit("nobody serves here".into()))
    }
    fn is_connected(&self) -> bool {
        true
    }
    async fn flush(&self, _: Duration) -> Result<(), BusError> {
        Ok(())
    }
}

fn said(payload: &str) -> Result<StreamedReply, BusError> {
    Ok(StreamedReply {
        payload: payload.to_owned().into(),
        error: None,
    })
}

fn at_once(payload: &str) -> Script {
    vec![(Duration::ZERO, said(payload))]
}

fn nobody() -> Script {
    vec![(
        Duration::ZERO,
        Err(BusError::NoResponders("tool.s.t".into())),
    )]
}

struct RunResult {
    outcome: ToolOutcome,
    asked: Vec<Value>,
    published: Vec<String>,
    reports: u32,
}

async fn run(effect: ToolEffect, schema: Value, args: Value, scripts: Vec<Script>) -> RunResult {
    run_try(false, effect, (schema, args), scripts).await
}

async fn run_try(
    is_repeat: bool,
    effect: ToolEffect,
    arguments: (Value, Value),
    scripts: Vec<Script>,
) -> RunResult {
    run_known(None, is_repeat, effect, arguments, scripts).await
}

async fn run_known(
    known: Option<Arc<KnownSidecars>>,
    is_repeat: bool,
    effect: ToolEffect,
    (schema, args): (Value, Value),
    scripts: Vec<Script>,
) -> RunResult {
    let bus = Arc::new(ScriptedBus {
        scripts: Mutex::new(scripts.into()),
        ..ScriptedBus::default()
    });
    let target = CallTarget::Sidecar(SidecarId::parse("s").unwrap());
    let spec = spec("t", "a tool", effect, &schema);
    let tool = RemoteTool {
        known,
        ..RemoteTool::new(
            spec,
            "t".into(),
            "tool.s.t".into(),
            target,
            Duration::from_secs(5),
            bus.clone(),
        )
    };
    let reports = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&reports);
    let call = Invocation {
        session_id: SessionId::parse("se").unwrap(),
        team_id: TeamId::parse("te").unwrap(),
        agent_id: AgentId::parse("ag").unwrap(),
        epoch: 3,
        call_id: CallId::parse("ca").unwrap(),
        is_repeat,
        answer: None,
        args: RawValue::from_string(args.to_string()).unwrap().into(),
        dir: "/".into(),
        second_judgement: None,
        cancel: CancellationToken::new(),
        progress: Arc::new(move |_: CallProgress| {
            counted.fetch_add(1, Ordering::Relaxed);
        }),
    };
    let outcome = tool.run(call).await;
    let asked = bus
        .asked
        .lock()
        .unwrap()
        .iter()
        .map(|body| serde_json::from_slice(body).unwrap())
        .collect();
    let published = bus.published.lock().unwrap().clone();
    RunResult {
        outcome,
        asked,
        published,
        reports: reports.load(Ordering::Relaxed),
    }
}

async fn run_plainly(effect: ToolEffect, scripts: Vec<Script>) -> RunResult {
    run(effect, json!({"type": "object"}), json!({}), scripts).await
}

#[tokio::test(start_paused = true)]
async fn the_request_to_a_sidecar_follows_the_protocol() {
    let answers = vec![at_once(r#"{"v":1,"ok":"done"}"#)];
    let ran = run(
        ToolEffect::Pure,
        json!({"type": "object"}),
        json!({"a": 1, "timeout_ms": 7}),
        answers,
    )
    .await;
    assert_eq!(
        (ran.outcome.text.as_str(), ran.outcome.is_error()),
        ("done", false)
    );
    let expected = json!({"v": 1, "call_id": "ca", "tool": "t", "args": {"a": 1}, "agent_id": "ag", "session_id": "se",
        "team_id": "te", "epoch": 3, "deadline_ms": 70, "may_ask": true});
    assert_eq!(ran.asked, [expected]);
    assert!(ran.published.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_argument_of_the_tool_belongs_to_the_sidecar() {
    let schema = json!({"type": "object", "properties": {"timeout_ms": {"type": "integer"}}});
    let ran = run(
        ToolEffect::Pure,
        schema,
        json!({"timeout_ms": 7}),
        vec![at_once(r#"{"v":1,"ok":""}"#)],
    )
    .await;
    assert_eq!(
        (&ran.asked[0]["args"], &ran.asked[0]["deadline_ms"]),
        (&json!({"timeout_ms": 7}), &json!(50_000))
    );
}

#[tokio::test(start_paused = true)]
async fn silence_is_an_error_and_cancels_the_call() {
    let ran = run_plainly(ToolEffect::Pure, vec![vec![]]).await;
    let told = "it timed out: no sign of life for 5000 ms; it may or may not have taken effect";
    assert_eq!(
        (ran.outcome.text.as_str(), ran.outcome.is_error()),
        (told, true)
    );
    assert_eq!(ran.published, ["cancel.s"]);
}

fn found(id: &str) -> SidecarInstance {
    SidecarInstance {
        sidecar: SidecarId::parse("s").unwrap(),
        id: id.into(),
        version: "1.0.0".into(),
        offers: vec![],
        faults: vec![],
    }
}

/// Makes a mutating call while the instance `a` is known. Every second a search ends, and finds what
/// `finds` returns for its number. Returns the text that the model reads.
async fn call_during(
    scripts: Vec<Script>,
    mut finds: impl FnMut(u32, &mut Directory) -> Vec<SidecarInstance>,
) -> RunResult {
    let mut directory = Directory::default();
    directory.swept(vec![found("a")]);
    let known = Arc::new(KnownSidecars::new(directory));
    let searched = Arc::clone(&known);
    let searches = async {
        for search in 1.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut directory = searched.directory();
            let answers = finds(search, &mut directory);
            directory.swept(answers);
            drop(directory);
            searched.has_looked();
        }
    };
    let arguments = (json!({"type": "object"}), json!({}));
    let call = run_known(Some(known), false, ToolEffect::Mutating, arguments, scripts);
    tokio::select! {
        ran = call => ran,
        () = searches => unreachable!("the searches do not end"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_when_every_instance_is_gone_that_may_have_taken_it() {
    let told = "it went away: no instance of the sidecar `s` is left that can have taken the call; it may or may not have taken effect";
    let since = tokio::time::Instant::now();
    let ran = call_during(vec![vec![]], |_, _| vec![]).await;
    assert_eq!((ran.outcome.text.as_str(), ran.asked.len()), (told, 1));
    assert_eq!(ran.published, ["cancel.s"]);
    assert_eq!(since.elapsed().as_secs(), 3);
    let replaced = call_during(vec![vec![]], |search, _| match search {
        1 => vec![],
        _ => vec![found("b")],
    });
    assert_eq!(
        replaced.await.outcome.text,
        told,
        "the new one has not got it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_continues_while_an_instance_may_run_it() {
    let timed_out = "it timed out: no sign of life for 5000 ms";
    let unseen = call_during(vec![vec![]], |_, _| vec![found("b")]);
    let unseen = unseen.await.outcome.text;
    assert!(
        unseen.starts_with(timed_out),
        "it may have been there: {unseen}"
    );
    let sidecar = SidecarId::parse("s").unwrap();
    let stopped = call_during(vec![vec![]], |search, directory| {
        if search == 1 {
            directory.left(&sidecar, "a");
        }
        vec![]
    });
    let stopped = stopped.await.outcome.text;
    assert!(stopped.starts_with(timed_out), "it may finish: {stopped}");
    let progress = r#"{"v":1,"progress":{"message":"on it"}}"#;
    let mut script: Script = vec![(Duration::from_millis(2500), said(progress)); 2];
    script.push((Duration::from_secs(1), said(r#"{"v":1,"ok":"done"}"#)));
    let ran = call_during(vec![script], |_, _| vec![]).await;
    assert_eq!(ran.outcome.text, "done", "it gave signs of life");
}

#[tokio::test(start_paused = true)]
async fn progress_extends_the_time_to_ten_idle_timeouts() {
    let report = || {
        (
            Duration::from_secs(4),
            said(r#"{"v":1,"progress":{"message":"on it"}}"#),
        )
    };
    let mut script: Script = (0..10).map(|_| report()).collect();
    script.push((Duration::from_secs(4), said(r#"{"v":1,"ok":"done"}"#)));
    let ran = run_plainly(ToolEffect::Pure, vec![script]).await;
    assert_eq!((ran.outcome.text.as_str(), ran.reports), ("done", 10));
    let ran = run_plainly(ToolEffect::Pure, vec![(0..100).map(|_| report()).collect()]).await;
    assert!(
        ran.outcome.text.contains("too long in all") && ran.reports == 12,
        "{} {}",
        ran.outcome.text,
        ran.reports
    );
}

#[tokio::test(start_paused = true)]
async fn foreign_answers_are_ignored() {
    let script = vec![
        (Duration::ZERO, said(r#"{"stream":"ALL","seq":7}"#)),
        (Duration::from_secs(4), said("hello")),
        (Duration::from_millis(900), said(r#"{"v":1,"error":"no"}"#)),
    ];
    let ran = run_plainly(ToolEffect::Pure, vec![script]).await;
    assert_eq!(
        (ran.outcome.text.as_str(), ran.outcome.is_error()),
        ("no", true)
    );
    let garbage = run_plainly(ToolEffect::Pure, vec![at_once(r#"{"v":1,"okay":"no"}"#)]).await;
    assert!(
        garbage.outcome.is_error() && garbage.outcome.text.contains("cannot be read"),
        "{}",
        garbage.outcome.text
    );
}

#[tokio::test(start_paused = true)]
async fn an_absent_sidecar_is_asked_twice() {
    let ran = run_plainly(
        ToolEffect::Mutating,
        vec![nobody(), at_once(r#"{"v":1,"ok":"moved"}"#)],
    )
    .await;
    assert_eq!(ran.outcome.text, "moved");
    let ran = run_plainly(ToolEffect::Mutating, vec![nobody(), nobody(), nobody()]).await;
    assert!(
        ran.outcome.text.starts_with("nobody is there")
            && ran.outcome.text.ends_with("Nothing was done")
    );
    assert_eq!((ran.asked.len(), ran.published.len()), (2, 0));
    let denied = run_plainly(ToolEffect::Mutating, vec![]).await;
    assert!(
        denied.outcome.text.starts_with("denied"),
        "{}",
        denied.outcome.text
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_still_runs_is_awaited_if_it_may_run_again() {
    let running = || at_once(r#"{"v":1,"error":"in progress"}"#);
    let ran = run_plainly(
        ToolEffect::Idempotent,
        vec![running(), running(), at_once(r#"{"v":1,"ok":"done"}"#)],
    )
    .await;
    assert_eq!((ran.outcome.text.as_str(), ran.asked.len()), ("done", 3));
    assert!(ran.asked.iter().all(|asked| asked["call_id"] == "ca"));
    let ran = run_plainly(ToolEffect::Mutating, vec![running()]).await;
    assert_eq!(
        (ran.outcome.text.as_str(), ran.asked.len()),
        ("in progress", 1)
    );
    let gone = vec![running(), nobody(), nobody()];
    let ran = run_plainly(ToolEffect::Idempotent, gone).await;
    assert!(
        ran.outcome
            .text
            .ends_with("it may or may not have taken effect"),
        "{}",
        ran.outcome.text
    );
    assert_eq!((ran.asked.len(), ran.published.len()), (3, 1));
    let never = run_plainly(ToolEffect::Pure, (0..1000).map(|_| running()).collect()).await;
    assert!(
        never.outcome.text.starts_with("it timed out"),
        "{}",
        never.outcome.text
    );
}

#[tokio::test(start_paused = true)]
async fn repeat_that_finds_nobody_may_have_taken_effect_before() {
    for scripts in [vec![nobody(), nobody()], vec![]] {
        let schema = json!({"type": "object"});
        let ran = run_try(true, ToolEffect::Idempotent, (schema, json!({})), scripts).await;
        let told = &ran.outcome.text;
        assert!(
            told.ends_with("it may or may not have taken effect"),
            "{told}"
        );
        assert_eq!(
            ran.published,
            ["cancel.s"],
            "an instance may still run the earlier try"
        );
    }
}
