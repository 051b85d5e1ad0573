//! A node is killed at critical moments and started again on the same store. Every acknowledged
//! prompt is still in the inbox and is answered.

use std::time::Duration;

use anyhow::Result;
use planck_common::{
    InputId,
    command::{Accepted, AgentState, SessionState, SessionVerb, Started},
    envelope::Envelope,
    event::{Event, ToolEnd},
    message::Part,
    reply::Code,
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    attached::Attached,
    caller::session_at,
    eventually::{eventually, within},
    node::{Node, runs},
    recorder::{Recorder, ends},
    world::{Backend, World},
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    events::assert_dense,
    prompts::{slow_words, streaming},
};

/// How long a started node may take to answer prompts that the killed node had accepted.
const TAKEN_UP: Duration = Duration::from_secs(20);

struct Crash {
    backend: Backend,
    world: World,
    node: Node,
    recorder: Recorder,
    started: Started,
    asked: Vec<InputId>,
}

impl Crash {
    async fn prepare(backend: Backend, script: Script) -> Result<Self> {
        let world = World::start(backend, script).await?;
        add_stamp_tool(&world)?;
        let (node, recorder) = (world.node().await?, world.record().await?);
        let members = json!([{ "type": "agent", "tools": ["read", "write", "bash", "stamp"] }]);
        let started = world
            .caller
            .start(&json!({ "dir": world.dir(), "members": members }))
            .await?;
        Ok(Self {
            backend,
            world,
            node,
            recorder,
            started,
            asked: Vec::new(),
        })
    }

    async fn prompt(&mut self, text: &str) -> Result<()> {
        let Accepted { prompt_id, .. } = self
            .world
            .caller
            .prompt(&self.started.session_id, text)
            .await?;
        self.asked.push(prompt_id);
        Ok(())
    }

    async fn in_state(&self, state: AgentState) -> Result<()> {
        eventually("the agent works", async || {
            (self
                .world
                .caller
                .agent(&self.started.orchestrator)
                .await
                .ok()?
                .state
                == state)
                .then_some(())
        })
        .await
    }

    async fn file(&self, name: &str) -> Result<()> {
        let path = self.world.dir().join(name);
        eventually(&format!("there is a file {name}"), async || {
            path.exists().then_some(())
        })
        .await
    }

    fn ledger(&self) -> usize {
        std::fs::read_to_string(self.world.dir().join("ledger"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    /// Kills the node, starts another, waits until every prompt has been answered, and returns the
    /// log.
    async fn through_it(mut self) -> Result<(Self, Vec<Envelope>)> {
        let dead = self.node.id().clone();
        self.node.kill().await?;
        let started = Instant::now();
        self.node = self.world.node().await?;
        if self.backend == Backend::Postgres {
            self.in_the_window().await?;
        }
        let log = within(TAKEN_UP, "every request is answered", async || {
            let log = self
                .world
                .caller
                .log(&self.started.session_id, 1)
                .await
                .ok()?;
            let answered = |input: &InputId| log.iter().any(|event| ends(event, input));
            let resumed = log.iter().any(|event| event.kind == "session_resumed");
            (resumed && self.asked.iter().all(answered)).then_some(log)
        });
        let log = log.await?;
        assert!(
            started.elapsed() < TAKEN_UP + Duration::from_secs(1),
            "{:?}",
            started.elapsed()
        );
        assert_dense(&log);
        for input in &self.asked {
            assert_eq!(
                log.iter().filter(|event| ends(event, input)).count(),
                1,
                "{input} has one end"
            );
            let started = |event: &&Envelope| matches!(event.event(), Some(Ok(Event::TurnStart(start))) if start.inputs.iter().any(|known| known.id == *input));
            assert_eq!(
                log.iter().filter(started).count(),
                1,
                "{input} opens one turn"
            );
        }
        let resumed = log.iter().find_map(|event| match event.event() {
            Some(Ok(Event::SessionResumed(resumed))) => Some(resumed.from_node),
            _ => None,
        });
        assert_eq!(resumed, Some(Some(dead)));
        self.heard_all(&log).await?;
        self.world.check_model()?;
        Ok((self, log))
    }

    /// Checks the requests that arrive before it is certain that the old node is dead: an abort, a
    /// close and a rewind are refused as retryable, and a prompt is accepted.
    async fn in_the_window(&mut self) -> Result<()> {
        let session = self.started.session_id.clone();
        for verb in [SessionVerb::Abort, SessionVerb::Close, SessionVerb::Rewind] {
            let to = session_at(&session, verb);
            let message = self
                .world
                .caller
                .messages(&session, None)
                .await?
                .first()
                .map(|message| message.id);
            let refusal = self
                .world
                .caller
                .refusal(&to, &json!({ "to": message }))
                .await?;
            assert_eq!(refusal.code, Code::Unavailable, "{to}: {refusal}");
        }
        assert_eq!(
            self.world.caller.session(&session).await?.state,
            SessionState::Open
        );
        self.prompt("in between").await
    }

    /// Checks that a subscriber that stayed connected received the last event, and no event twice
    /// or out of order.
    async fn heard_all(&self, log: &[Envelope]) -> Result<()> {
        let subject = format!("session.{}", self.started.session_id);
        let last = log.last().and_then(|event| event.seq);
        self.recorder
            .until("the last event is heard", |event| event.seq == last)
            .await?;
        let heard: Vec<_> = self
            .recorder
            .events(&subject)
            .into_iter()
            .filter_map(|event| event.seq)
            .collect();
        let mut sorted = heard.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(heard, sorted, "in order, and none twice");
        Ok(())
    }
}

/// Adds a tool that may be run again, and that records each run.
fn add_stamp_tool(world: &World) -> Result<()> {
    let home = world.folder().join(".planck/tools/stamp");
    std::fs::create_dir_all(&home)?;
    let definition = json!({
        "name": "stamp", "description": "stamps", "effect": "idempotent", "parameters": { "type": "object" },
        "command": "sh -c 'echo x >> ledger; touch begun; while [ ! -e go ]; do sleep 0.05; done; echo stamped'",
    });
    Ok(std::fs::write(
        home.join("TOOL.json"),
        definition.to_string(),
    )?)
}

fn quick() -> Script {
    Script::new().without_auth().always(Reply::text("Quick."))
}

async fn when_idle(backend: Backend) -> Result<()> {
    let mut crash = Crash::prepare(
        backend,
        Script::new().always(Reply::text("Quick.").delay_ms(300)),
    )
    .await?;
    crash.prompt("one").await?;
    crash.in_state(AgentState::Idle).await?;
    crash.prompt("two").await?;
    crash.prompt("three").await?;
    let (crash, _) = crash.through_it().await?;
    crash.node.leave().await
}

async fn when_streaming(backend: Backend) -> Result<()> {
    let mut crash = Crash::prepare(backend, Script::new().always(slow_words())).await?;
    crash.prompt("slow").await?;
    streaming(&crash.world, &crash.started.orchestrator).await?;
    crash.prompt("and then").await?;
    crash.world.model.set_script(quick());
    let (crash, log) = crash.through_it().await?;
    let ends: Vec<_> = log
        .iter()
        .filter(|event| event.kind == "turn_end")
        .collect();
    assert!(ends.len() >= 2, "the second waited for the first");
    assert!(
        ends[0].request > 1 || ends[0].epoch > 1,
        "a new request of the same turn: {:?}",
        ends[0]
    );
    crash.node.leave().await
}

async fn when_a_mutating_tool_runs(backend: Backend) -> Result<()> {
    // A number of seconds that no other `sleep` on this machine has.
    let long = format!(
        "100.{}{}",
        std::process::id(),
        if backend == Backend::Sqlite { 1 } else { 2 }
    );
    let script = Script::new()
        .rule(When::any().user("in between"), Reply::text("Fine."))
        .rule(
            When::any().result("it may or may not have taken effect"),
            Reply::text("I see."),
        )
        .always(Reply::call(
            "bash",
            json!({ "command": format!("echo x >> ledger; touch begun; sleep {long}") }),
        ));
    let mut crash = Crash::prepare(backend, script).await?;
    crash.prompt("do it").await?;
    crash.file("begun").await?;
    assert!(runs(&long));
    let (crash, log) = crash.through_it().await?;
    assert_eq!(crash.ledger(), 1, "it was not run twice");
    assert!(!runs(&long), "the process is dead");
    let flagged = log.iter().filter_map(|event| match event.event() {
        Some(Ok(Event::ToolEnd(ToolEnd { result, error, .. }))) => Some((result, error)),
        _ => None,
    });
    assert_eq!(
        flagged.collect::<Vec<_>>(),
        [(
            "interrupted; it may or may not have taken effect".to_owned(),
            true
        )]
    );
    crash.node.leave().await
}

async fn when_an_idempotent_tool_runs(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rule(When::any().user("in between"), Reply::text("Fine."))
        .rule(When::any().result("stamped"), Reply::text("Stamped."))
        .always(Reply::call("stamp", json!({})));
    let mut crash = Crash::prepare(backend, script).await?;
    crash.prompt("stamp it").await?;
    crash.file("begun").await?;
    std::fs::remove_file(crash.world.dir().join("begun"))?;
    let dir = crash.world.dir();
    let go = async {
        eventually("it was run again", async || {
            dir.join("begun").exists().then_some(())
        })
        .await?;
        Ok::<_, anyhow::Error>(std::fs::write(dir.join("go"), "")?)
    };
    let ((crash, log), ()) = tokio::try_join!(crash.through_it(), go)?;
    assert_eq!(crash.ledger(), 2, "it was run again");
    let ids = |kind: &str| -> Vec<_> {
        let events = log.iter().filter(|event| event.kind == kind);
        events
            .map(|event| serde_json::to_value(&event.data).unwrap()["call_id"].clone())
            .collect()
    };
    assert_eq!(ids("tool_end").len(), 1);
    assert!(
        ids("tool_start")
            .iter()
            .all(|id| ids("tool_end").contains(id)),
        "under the same call id"
    );
    crash.node.leave().await
}

async fn between_a_tool_and_the_next_request(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rule(
            When::any().result_of("bash"),
            Reply::text("Too late.").delay_ms(100_000),
        )
        .always(Reply::call(
            "bash",
            json!({ "command": "echo x >> ledger; touch begun" }),
        ));
    let mut crash = Crash::prepare(backend, script).await?;
    crash.prompt("do it").await?;
    crash.file("begun").await?;
    crash
        .recorder
        .until("the tool has ended", |event| event.kind == "tool_end")
        .await?;
    crash.world.model.set_script(quick());
    let (crash, _) = crash.through_it().await?;
    assert_eq!(crash.ledger(), 1);
    let messages = crash
        .world
        .caller
        .messages(&crash.started.session_id, None)
        .await?;
    let results = messages
        .iter()
        .flat_map(|message| &message.content)
        .filter(|part| matches!(part, Part::ToolResult { .. }));
    assert_eq!(results.count(), 1);
    crash.node.leave().await
}

macro_rules! on_both {
    ($($name:ident)+) => {
        mod sqlite {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() -> Result<()> {
                super::$name(Backend::Sqlite).await
            })+
        }
        mod postgres {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread")]
            #[ignore = "the twin on SQLite is always run: make test-all"]
            async fn $name() -> Result<()> {
                super::$name(Backend::Postgres).await
            })+
        }
    };
}

on_both! {
    when_idle
    when_streaming
    when_a_mutating_tool_runs
    when_an_idempotent_tool_runs
    between_a_tool_and_the_next_request
}

/// An attached client sees one continuous log, however often the node dies. A call that a killed
/// node ran is not run again.
#[tokio::test(flavor = "multi_thread")]
async fn log_is_unbroken_when_nodes_are_killed_at_any_moment() -> Result<()> {
    const ROUNDS: usize = 8;
    let appends = json!({ "command": "echo {{last_user}} >> ledger" });
    let script = Script::new()
        .rule(When::any().round(1), Reply::text("Done."))
        .always(Reply::call("bash", appends));
    let world = World::start(Backend::Sqlite, script).await?;
    let mut node = world.node().await?;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        sessions.push(world.caller.start(&world.solo()).await?.session_id);
    }
    let attached = Attached::start(&world, &sessions[0])?;
    let mut asked: Vec<(planck_common::SessionId, InputId)> = Vec::new();
    for round in 0..=ROUNDS {
        for session in &sessions {
            let body =
                json!({ "text": format!("{session}-{round}"), "prompt_id": format!("p-{round}") });
            let accepted: Accepted = world
                .caller
                .ask(&session_at(session, SessionVerb::Prompt), &body)
                .await?;
            asked.push((session.clone(), accepted.prompt_id));
        }
        // The calls of the last round run. On a busy machine, those before may all be interrupted.
        if round == ROUNDS {
            break;
        }
        // Each round waits for a different time. A whole turn takes about a tenth of a second.
        tokio::time::sleep(Duration::from_millis(17 * round as u64)).await;
        node.kill().await?;
        node = world.node().await?;
    }
    for session in &sessions {
        let log = within(TAKEN_UP, "every request is answered", async || {
            let log = world.caller.log(session, 1).await.ok()?;
            let mine = || asked.iter().filter(|(known, _)| known == session);
            mine()
                .all(|(_, input)| log.iter().any(|event| ends(event, input)))
                .then_some(log)
        });
        let log = log.await?;
        assert_dense(&log);
        for (_, input) in asked.iter().filter(|(known, _)| known == session) {
            assert_eq!(
                log.iter().filter(|event| ends(event, input)).count(),
                1,
                "{input} has one end"
            );
        }
    }
    let ledger = std::fs::read_to_string(world.dir().join("ledger"))?;
    let mut lines: Vec<&str> = ledger.lines().collect();
    lines.sort_unstable();
    let runs = lines.len();
    lines.dedup();
    assert_eq!(lines.len(), runs, "nothing ran twice: {ledger}");
    let head = world.caller.session(&sessions[0]).await?.head;
    assert_dense(&attached.caught_up(head).await?);
    attached.leave().await?;
    world.check_model()?;
    node.leave().await
}

/// A node that shuts down in the middle of a turn does not end the turn; the next node continues
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_node_hands_over_its_running_turn() -> Result<()> {
    let mut crash = Crash::prepare(Backend::Sqlite, Script::new().always(slow_words())).await?;
    crash.prompt("slow").await?;
    streaming(&crash.world, &crash.started.orchestrator).await?;
    crash.world.model.set_script(quick());
    crash.node.leave().await?;
    let node = crash.world.node().await?;
    crash.recorder.answered(&crash.asked[0]).await?;
    assert_dense(&crash.world.caller.log(&crash.started.session_id, 1).await?);
    node.leave().await
}
