use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use planck_common::{CallId, SessionId, event::ToolEffect};
use serde_json::{Value, json};
use tokio::task::yield_now;

use super::*;
use crate::{
    ABORTED, CallBaselines,
    files::spec,
    testing::{World, toolbox},
};
use planck_agent::model::ToolSpec;

/// A tool whose argument `do` chooses how it misbehaves.
struct MisbehavingTool {
    spec: ToolSpec,
    waits: bool,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl MisbehavingTool {
    fn new() -> Self {
        let modes = ["answer", "panic", "hang", "obey", "flood", "count"];
        let parameters =
            json!({"type": "object", "properties": {"do": {"enum": modes}}, "required": ["do"]});
        let spec = spec("odd", "", ToolEffect::Pure, &parameters);
        Self {
            spec,
            waits: false,
            running: Arc::default(),
            most: Arc::default(),
        }
    }
}

#[async_trait]
impl Tool for MisbehavingTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn timeout(&self, _usual: Duration) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    fn waits(&self) -> bool {
        self.waits
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let args: Value = serde_json::from_str(call.args.get()).unwrap();
        match args["do"].as_str().unwrap() {
            "answer" => ToolOutcome::ok("done"),
            "panic" => panic!("it broke at {}", 3),
            "hang" => std::future::pending().await,
            "obey" => {
                call.cancel.cancelled().await;
                ToolOutcome::error("half of it")
            }
            "flood" => ToolOutcome::ok("x".repeat(100_000)),
            _ => {
                let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(running, Ordering::SeqCst);
                yield_now().await;
                self.running.fetch_sub(1, Ordering::SeqCst);
                ToolOutcome::ok("")
            }
        }
    }
}

fn bounds(at_once: usize) -> CallBounds {
    CallBounds {
        at_once,
        timeout: Duration::from_secs(1),
        ..CallBounds::default()
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_has_an_outcome_whatever_its_tool_does() {
    let world = World::new();
    for (what, told) in [
        ("answer", "done"),
        ("panic", "error: `odd` failed: it broke at 3"),
        (
            "hang",
            "error: `odd` was stopped: it took longer than 1000 ms",
        ),
        (
            "obey",
            "error: `odd` was stopped: it took longer than 1000 ms\nhalf of it",
        ),
    ] {
        assert_eq!(
            world.run(MisbehavingTool::new(), json!({"do": what})).await,
            told,
            "{what}"
        );
    }
    let flood = world
        .run(MisbehavingTool::new(), json!({"do": "flood"}))
        .await;
    assert_eq!(flood, "x".repeat(50_000) + "\n[output truncated]");
}

#[tokio::test(start_paused = true)]
async fn an_aborted_call_keeps_its_partial_result() {
    let world = World::new();
    for (what, told) in [
        ("obey", "aborted by request\nhalf of it"),
        ("hang", "aborted by request"),
    ] {
        let call = world.call(&json!({"do": what}));
        let cancel = call.cancel.clone();
        let (runner, toolbox) = (Runner::default(), toolbox(MisbehavingTool::new()));
        let (outcome, ()) = tokio::join!(runner.run(&toolbox, "odd", call), async {
            sleep(Duration::from_millis(100)).await;
            cancel.cancel();
        });
        assert_eq!(
            (outcome.text_for_model(ABORTED).as_ref(), outcome.end),
            (told, CallEnd::Stopped)
        );
    }
}

#[tokio::test]
async fn calls_at_once_are_limited() {
    let world = World::new();
    for (waits, bound) in [(false, 3), (true, WAITING)] {
        let odd = MisbehavingTool {
            waits,
            ..MisbehavingTool::new()
        };
        let most = odd.most.clone();
        let (runner, toolbox) = (Runner::new(bounds(3), None), toolbox(odd));
        let calls = (0..WAITING + 9)
            .map(|_| runner.run(&toolbox, "odd", world.call(&json!({"do": "count"}))));
        assert!(
            futures_util::future::join_all(calls)
                .await
                .iter()
                .all(|outcome| outcome.end == CallEnd::Done)
        );
        assert_eq!(most.load(Ordering::SeqCst), bound, "waits: {waits}");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_slot_can_be_aborted() {
    let world = World::new();
    let (runner, toolbox) = (
        Runner::new(bounds(1), None),
        toolbox(MisbehavingTool::new()),
    );
    let waiting = world.call(&json!({"do": "answer"}));
    waiting.cancel.cancel();
    let first = runner.run(&toolbox, "odd", world.call(&json!({"do": "count"})));
    let (_, second) = tokio::join!(first, runner.run(&toolbox, "odd", waiting));
    assert_eq!((second.end, second.text.as_str()), (CallEnd::Stopped, ""));
}

#[tokio::test]
async fn a_call_with_wrong_arguments_is_not_run() {
    let world = World::new();
    let runner = Runner::default();
    let toolbox = toolbox(MisbehavingTool::new());
    let told =
        async |name: &str, args: Value| runner.run(&toolbox, name, world.call(&args)).await.text;
    insta::assert_snapshot!(told("odd", json!({"do": "sing"})).await, @r#"
        `odd` was not run, its arguments do not fit:
        - `do` must be one of "answer", "panic", "hang", "obey", "flood", "count", got "sing"
        "#);
    insta::assert_snapshot!(told("od", json!({})).await, @"there is no tool `od`; did you mean `odd`? your tools are: odd");
    insta::assert_snapshot!(told("launch_rocket", json!({})).await, @"there is no tool `launch_rocket`; your tools are: odd");
    let nothing = runner
        .run(&Toolbox::default(), "odd", world.call(&json!({})))
        .await;
    assert_eq!(nothing.text, "there is no tool `odd`; you have no tools");
}

/// Baselines of which none is undecided, or which cannot be read.
struct Undecided(Result<(), String>);

#[async_trait]
impl CallBaselines for Undecided {
    async fn put(&self, _: &Invocation, _: String) -> Result<(), String> {
        Ok(())
    }

    async fn undecided(&self, _: &SessionId) -> Result<Vec<(CallId, String)>, String> {
        self.0.clone().map(|()| Vec::new())
    }

    async fn changed(&self, _: &SessionId, _: &CallId) -> Result<(), String> {
        Ok(())
    }

    async fn remove(&self, _: &SessionId, _: &[CallId]) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn call_with_an_effect_runs_only_if_no_change_is_undecided() {
    let world = World::new();
    let tool = |effect| {
        let mut tool = MisbehavingTool::new();
        tool.spec.effect = effect;
        toolbox(tool)
    };
    let run = async |baselines, effect| {
        let runner = Runner::new(bounds(1), Some(Wall::new(Arc::new(Undecided(baselines)))));
        let call = world.call(&json!({"do": "answer"}));
        runner.run(&tool(effect), "odd", call).await.text
    };
    let away = || Err("the store is away".to_owned());
    let told = "not run: cannot tell whether protected files were changed: the store is away";
    assert_eq!(run(away(), ToolEffect::Mutating).await, told);
    assert_eq!(run(away(), ToolEffect::Pure).await, "done");
    assert_eq!(run(Ok(()), ToolEffect::Mutating).await, "done");
}
