//! Calls that wait for an answer from outside: approvals, questions and the client's tools.

mod faults;

use std::time::Duration;

use anyhow::{Context, Result};
use planck_common::{
    CallId,
    command::{AgentState, Answered, SessionVerb, SessionsVerb, Started, WaitRow, Waits},
    envelope::Envelope,
    event::{Event, EventKind},
    reply::Code,
    wait::{WaitDecision, WaitKind, WaitState},
};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    caller::{session_at, sessions},
    eventually::{eventually, within},
    node::Node,
    recorder::ends,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// How long another node may take to take up the session of a killed one.
const TAKEN_UP: Duration = Duration::from_secs(30);

fn script() -> Script {
    Script::new()
        .rule(When::any().result("not run"), "Then I leave it.")
        .rule(When::any().result_of("write"), "Written.")
        .rule(When::any().result_of("ask_user"), "Blue it is.")
        .rule(When::any().result_of("customer"), "It is Ann.")
        .rule(
            When::any().last("write it"),
            Reply::call("write", json!({ "path": "out.txt", "content": "hello" })),
        )
        .rule(
            When::any().last("ask me"),
            Reply::call(
                "ask_user",
                json!({ "question": "Which colour?", "options": ["blue", "red"] }),
            ),
        )
        .rule(
            When::any().last("who is it"),
            Reply::call("customer", json!({ "id": 7 })),
        )
        .always("Quick.")
}

/// A session whose agent asks before it changes anything.
struct Asking {
    world: World,
    node: Node,
    started: Started,
}

impl Asking {
    async fn begin(backend: Backend, prompt: &str, node: &[(&str, &str)]) -> Result<Self> {
        let world = World::start(backend, script()).await?;
        let node = world.node_with(node).await?;
        let body = json!({
            "dir": world.dir(),
            "members": [{ "type": "agent", "tools": ["read", "write", "ask_user"] }],
            "permissions": "careful",
            "client_tools": [{
                "name": "customer",
                "description": "Looks a customer up.",
                "parameters": { "type": "object", "properties": { "id": { "type": "integer" } } },
            }],
            "prompt": prompt,
        });
        let started = world.caller.start(&body).await?;
        Ok(Self {
            world,
            node,
            started,
        })
    }

    async fn waits(&self, filter: Value) -> Result<Vec<WaitRow>> {
        let page: Waits = self
            .world
            .caller
            .read(&sessions(SessionsVerb::Waits), &filter)
            .await?;
        Ok(page.waits)
    }

    /// Returns the one open wait, once there is one and the agent does nothing else.
    async fn waiting(&self) -> Result<WaitRow> {
        let found = eventually("the agent waits", async || {
            let agent = self.world.caller.agent(&self.started.orchestrator).await;
            let waits = self.waits(json!({})).await.ok()?;
            let is_waiting = agent.ok()?.state == AgentState::Waiting;
            waits.into_iter().next().filter(|_| is_waiting)
        });
        found.await
    }

    async fn answer(&self, body: &Value) -> Result<Answered> {
        let to = session_at(&self.started.session_id, SessionVerb::Answer);
        self.world.caller.read(&to, body).await
    }

    async fn refused(&self, body: &Value) -> Result<(Code, String)> {
        let to = session_at(&self.started.session_id, SessionVerb::Answer);
        let refusal = self.world.caller.refusal(&to, body).await?;
        Ok((refusal.code, refusal.message))
    }

    /// Returns the log once the turn of the session's first prompt has ended.
    async fn ended(&self) -> Result<Vec<Envelope>> {
        let prompt = self.started.prompt_id.as_ref().context("a prompt")?;
        within(TAKEN_UP, "the turn has ended", async || {
            let log = self.world.caller.log(&self.started.session_id, 1).await;
            log.ok()
                .filter(|log| log.iter().any(|event| ends(event, prompt)))
        })
        .await
    }

    fn written(&self) -> Option<String> {
        std::fs::read_to_string(self.world.dir().join("out.txt")).ok()
    }
}

/// Returns the data of the events of one kind.
fn of_kind(log: &[Envelope], kind: EventKind) -> Vec<Value> {
    let fitting = log.iter().filter(|event| event.kind == kind.name());
    fitting
        .map(|event| serde_json::from_str(event.data.get()).unwrap())
        .collect()
}

fn result_of_the_call(log: &[Envelope]) -> String {
    let ends = of_kind(log, EventKind::ToolEnd);
    assert_eq!(ends.len(), 1, "{ends:?}");
    ends[0]["result"].as_str().unwrap().to_owned()
}

async fn allowed(backend: Backend) -> Result<()> {
    let asking = Asking::begin(backend, "write it", &[]).await?;
    let wait = asking.waiting().await?;
    assert_eq!(
        (wait.kind, wait.state, wait.title.as_str()),
        (WaitKind::Approval, WaitState::Open, "write: out.txt")
    );
    assert_eq!(asking.written(), None, "the call ran before it was allowed");
    let info = asking
        .world
        .caller
        .session(&asking.started.session_id)
        .await?;
    assert_eq!(info.waits, std::slice::from_ref(&wait.id));
    let allow = json!({ "wait": wait.id, "decision": "allow", "by": "ann", "digest": wait.digest });
    let first = asking.answer(&allow).await?;
    assert_eq!(first.decision, WaitDecision::Allow);
    let log = asking.ended().await?;
    assert_eq!(asking.written().as_deref(), Some("hello"));
    let again = asking.answer(&allow).await?;
    assert_eq!(
        again.answered_at, first.answered_at,
        "the same answer has the same reply"
    );
    let (code, message) = asking
        .refused(&json!({ "wait": wait.id, "decision": "deny" }))
        .await?;
    assert_eq!(code, Code::Exists);
    assert!(message.contains("allow by ann"), "{message}");
    let kinds: Vec<&str> = log
        .iter()
        .map(|event| event.kind.as_str())
        .filter(|kind| kind.starts_with("wait") || kind.starts_with("tool_"))
        .collect();
    assert_eq!(
        kinds,
        ["wait_opened", "wait_closed", "tool_start", "tool_end"]
    );
    assert!(asking.waits(json!({})).await?.is_empty());
    let closed = asking.waits(json!({ "state": "closed" })).await?;
    assert_eq!(closed[0].answered_by.as_deref(), Some("ann"));
    asking.world.check_model()?;
    asking.node.leave().await
}

#[tokio::test]
async fn allowed_call_runs_once_and_the_first_answer_holds_on_sqlite() -> Result<()> {
    allowed(Backend::Sqlite).await
}

#[tokio::test]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn allowed_call_runs_once_and_the_first_answer_holds_on_postgres() -> Result<()> {
    allowed(Backend::Postgres).await
}

#[tokio::test]
async fn denied_call_does_not_run_and_a_wrong_answer_is_refused() -> Result<()> {
    let asking = Asking::begin(Backend::Sqlite, "write it", &[]).await?;
    let id = asking.waiting().await?.id;
    for (body, code, words) in [
        (
            json!({ "wait": id, "decision": "answer", "value": 1 }),
            Code::BadRequest,
            "must be allow or deny",
        ),
        (
            json!({ "wait": id, "decision": "yes" }),
            Code::BadRequest,
            "unknown variant",
        ),
        (json!({ "wait": id }), Code::BadRequest, "decision"),
        (
            json!({ "wait": id, "decision": "deny", "args": {} }),
            Code::BadRequest,
            "`args`",
        ),
        (
            json!({ "wait": id, "decision": "allow", "args": { "path": 1 } }),
            Code::BadRequest,
            "path",
        ),
        (
            json!({ "wait": id, "decision": "allow", "digest": "0" }),
            Code::Exists,
            "read it again",
        ),
        (
            json!({ "wait": "none", "decision": "allow" }),
            Code::NotFound,
            "no wait none",
        ),
    ] {
        let (found, message) = asking.refused(&body).await?;
        assert_eq!(found, code, "{body}: {message}");
        assert!(message.contains(words), "{body}: {message}");
    }
    let deny = json!({ "wait": id, "decision": "deny", "reason": "not now", "by": "ann" });
    asking.answer(&deny).await?;
    let log = asking.ended().await?;
    assert_eq!(result_of_the_call(&log), "not run: ann denied it: not now");
    assert_eq!(asking.written(), None);
    asking.node.leave().await
}

/// Runs `planck` with NATS, and returns what it writes and its exit code.
async fn planck(world: &World, arguments: &[&str]) -> Result<(String, Option<i32>)> {
    let done = world.planck()?.args(arguments).output().await?;
    let text = [done.stdout, done.stderr].concat();
    Ok((String::from_utf8(text)?, done.status.code()))
}

#[tokio::test]
async fn command_line_lists_and_answers_waits() -> Result<()> {
    let asking = Asking::begin(Backend::Sqlite, "write it", &[]).await?;
    let id = asking.waiting().await?.id;
    let short = &id[..8];
    let (list, _) = planck(&asking.world, &["waits"]).await?;
    assert!(
        list.contains(short) && list.contains("write: out.txt"),
        "{list}"
    );
    for (arguments, code, words) in [
        (
            vec!["answer", short, "perhaps"],
            2,
            "with `allow` or `deny`",
        ),
        (vec!["answer", "zzzz", "allow"], 3, "no wait begins with"),
        (vec!["answer", short, "allow"], 0, "allow: write: out.txt"),
        (
            vec!["answer", short, "deny"],
            1,
            "was answered before, with allow",
        ),
    ] {
        let (text, exit) = planck(&asking.world, &arguments).await?;
        assert_eq!(exit, Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
        if code == 0 {
            asking.ended().await?;
        }
    }
    assert_eq!(asking.written().as_deref(), Some("hello"));
    asking.node.leave().await
}

#[tokio::test]
async fn person_may_change_the_arguments() -> Result<()> {
    let asking = Asking::begin(Backend::Sqlite, "write it", &[]).await?;
    let id = asking.waiting().await?.id;
    let args = json!({ "path": "out.txt", "content": "good day" });
    asking
        .answer(&json!({ "wait": id, "decision": "allow", "args": args }))
        .await?;
    asking.ended().await?;
    assert_eq!(asking.written().as_deref(), Some("good day"));
    asking.node.leave().await
}

#[tokio::test]
async fn rule_of_an_answer_holds_for_the_whole_session() -> Result<()> {
    let asking = Asking::begin(Backend::Sqlite, "write it", &[]).await?;
    let id = asking.waiting().await?.id;
    asking
        .answer(&json!({ "wait": id, "decision": "allow", "scope": "session", "by": "ann" }))
        .await?;
    asking.ended().await?;
    let session = &asking.started.session_id;
    let second = asking
        .world
        .caller
        .prompt(session, "write it again")
        .await?;
    let log = eventually("the second turn has ended without a question", async || {
        let log = asking.world.caller.log(session, 1).await.ok()?;
        log.iter()
            .any(|event| ends(event, &second.prompt_id))
            .then_some(log)
    });
    let closed = of_kind(&log.await?, EventKind::WaitClosed);
    assert_eq!(closed.len(), 2);
    assert_eq!(closed[1]["by"], "ann");
    assert!(closed[1]["reason"].as_str().unwrap().contains(id.as_str()));
    asking.node.leave().await
}

#[tokio::test]
async fn model_asks_a_person_and_the_client_runs_its_own_tool() -> Result<()> {
    for (prompt, kind, value, result) in [
        ("ask me", WaitKind::Question, json!("blue"), "blue"),
        (
            "who is it",
            WaitKind::ClientTool,
            json!({ "name": "Ann" }),
            r#"{"name":"Ann"}"#,
        ),
    ] {
        let asking = Asking::begin(Backend::Sqlite, prompt, &[]).await?;
        let wait = asking.waiting().await?;
        assert_eq!(wait.kind, kind);
        asking
            .answer(&json!({ "wait": wait.id, "decision": "answer", "value": value }))
            .await?;
        assert_eq!(result_of_the_call(&asking.ended().await?), result);
        asking.node.leave().await?;
    }
    Ok(())
}

#[tokio::test]
async fn wait_that_expires_is_a_denial() -> Result<()> {
    let asking = Asking::begin(
        Backend::Sqlite,
        "write it",
        &[("PLANCK_WAITS_EXPIRE_AFTER", "1s")],
    )
    .await?;
    let log = asking.ended().await?;
    let why = "nobody answered within 1s";
    assert_eq!(result_of_the_call(&log), format!("not run: {why}"));
    let closed = of_kind(&log, EventKind::WaitClosed);
    assert_eq!(closed[0]["decision"], "expired");
    assert_eq!(closed[0]["reason"], why);
    let id = closed[0]["id"].as_str().unwrap();
    let (code, message) = asking
        .refused(&json!({ "wait": id, "decision": "allow" }))
        .await?;
    assert_eq!(code, Code::Exists);
    assert!(
        message.contains(&format!("has expired; {why}")),
        "{message}"
    );
    assert_eq!(asking.written(), None);
    asking.node.leave().await
}

#[tokio::test]
async fn abort_withdraws_a_wait() -> Result<()> {
    let asking = Asking::begin(Backend::Sqlite, "write it", &[]).await?;
    let id = asking.waiting().await?.id;
    let abort = session_at(&asking.started.session_id, SessionVerb::Abort);
    let _aborted: Value = asking.world.caller.ask(&abort, &json!({})).await?;
    asking.ended().await?;
    let (code, message) = asking
        .refused(&json!({ "wait": id, "decision": "allow" }))
        .await?;
    assert_eq!(code, Code::Exists);
    assert!(message.contains("withdrawn"), "{message}");
    assert_eq!(asking.written(), None);
    asking.node.leave().await
}

#[tokio::test]
async fn person_raises_a_limit_or_ends_the_turn() -> Result<()> {
    for (decision, value, outcome) in [("allow", Some(5), "completed"), ("deny", None, "limit")] {
        let world = World::start(Backend::Sqlite, script()).await?;
        let node = world.node().await?;
        let limits = json!({ "max_requests_per_turn": 1, "on_limit": "ask" });
        let body = json!({
            "dir": world.dir(),
            "members": [{ "type": "agent", "tools": ["write"], "limits": limits }],
            "prompt": "write it",
        });
        let started = world.caller.start(&body).await?;
        let asking = Asking {
            world,
            node,
            started,
        };
        let wait = asking.waiting().await?;
        assert_eq!(wait.title, "max_requests_per_turn is reached: 1 of 1");
        let too_low = json!({ "wait": wait.id, "decision": "allow", "value": 1 });
        assert_eq!(asking.refused(&too_low).await?.0, Code::BadRequest);
        asking
            .answer(&json!({ "wait": wait.id, "decision": decision, "value": value }))
            .await?;
        let log = asking.ended().await?;
        assert_eq!(of_kind(&log, EventKind::TurnEnd)[0]["outcome"], outcome);
        asking.node.leave().await?;
    }
    Ok(())
}

/// Checks that a waiting agent is unloaded, and is found again by the answer.
#[tokio::test]
async fn waiting_agent_is_unloaded_until_it_is_answered() -> Result<()> {
    let environment = [("RUST_LOG", "planck=debug")];
    let asking = Asking::begin(Backend::Sqlite, "write it", &environment).await?;
    let id = asking.waiting().await?.id;
    let is_parked = || {
        let log = asking.node.log();
        log.lines().any(|line| line.contains("\"parked\""))
    };
    eventually("the agent is unloaded", async || is_parked().then_some(())).await?;
    asking
        .answer(&json!({ "wait": id, "decision": "allow" }))
        .await?;
    asking.ended().await?;
    assert_eq!(asking.written().as_deref(), Some("hello"));
    asking.node.leave().await
}

/// Kills the host of a waiting agent. The answer is accepted by another node, before or after this
/// node has taken the session up.
#[tokio::test]
async fn wait_and_its_answer_survive_the_host() -> Result<()> {
    for is_answered_first in [false, true] {
        let mut asking = Asking::begin(Backend::Postgres, "write it", &[]).await?;
        let id = asking.waiting().await?.id;
        let other = asking.world.node().await?;
        let allow = json!({ "wait": id, "decision": "allow" });
        asking.node.kill().await?;
        if !is_answered_first {
            within(TAKEN_UP, "another node has the session", async || {
                let session = &asking.started.session_id;
                let info = asking.world.caller.session(session).await.ok()?;
                (info.owner.as_ref() == Some(other.id())).then_some(())
            })
            .await?;
            assert_eq!(asking.waits(json!({})).await?[0].id, id);
        }
        asking.answer(&allow).await?;
        let log = asking.ended().await?;
        assert_eq!(asking.written().as_deref(), Some("hello"));
        assert_eq!(of_kind(&log, EventKind::ToolStart).len(), 1);
        assert_eq!(of_kind(&log, EventKind::WaitClosed).len(), 1);
        asking.node = other;
    }
    Ok(())
}

/// Sends three different answers to each wait of many sessions at once. Each wait has one decision,
/// the acknowledged one.
#[tokio::test]
async fn of_several_answers_the_acknowledged_one_holds() -> Result<()> {
    const SESSIONS: usize = 10;
    let asking = Asking::begin(Backend::Postgres, "write it", &[]).await?;
    let other = asking.world.node().await?;
    for n in 1..SESSIONS {
        let body = json!({
            "dir": asking.world.dir(),
            "members": [{ "type": "agent", "tools": ["write"] }],
            "permissions": "careful",
            "prompt": format!("write it {n}"),
        });
        asking.world.caller.start(&body).await?;
    }
    let waits = eventually("every session waits", async || {
        let waits = asking.waits(json!({})).await.ok()?;
        (waits.len() == SESSIONS).then_some(waits)
    });
    for wait in waits.await? {
        let to = session_at(&wait.session_id, SessionVerb::Answer);
        let given = async |by: &str, decision: &str| -> Result<Option<(CallId, String)>> {
            let body = json!({ "wait": wait.id, "decision": decision, "by": by });
            let answer = asking
                .world
                .caller
                .try_request::<Answered>(&to, &body)
                .await?;
            Ok(answer.ok().map(|answered| (answered.wait, by.to_owned())))
        };
        let (one, two, three) = tokio::try_join!(
            given("ann", "allow"),
            given("bob", "deny"),
            given("cid", "allow")
        )?;
        // The answers of ann and cid are the same one, so both may get a reply.
        let accepted: Vec<(CallId, String)> = [one, two, three].into_iter().flatten().collect();
        let is_denied = accepted.iter().any(|(_, by)| by == "bob");
        assert!(
            !accepted.is_empty() && (!is_denied || accepted.len() == 1),
            "{accepted:?}"
        );
        let closed = eventually("the agent has read the answer", async || {
            let log = asking.world.caller.log(&wait.session_id, 1).await.ok()?;
            let closed = log.iter().find_map(|event| {
                if let Event::WaitClosed(closed) = event.event()?.ok()? {
                    Some(closed)
                } else {
                    None
                }
            });
            closed.map(|closed| (closed, log.len()))
        });
        let (closed, _) = closed.await?;
        assert_eq!(closed.decision == WaitDecision::Deny, is_denied);
        assert!(
            accepted
                .iter()
                .any(|(_, by)| Some(by) == closed.by.as_ref())
        );
    }
    other.leave().await?;
    asking.node.leave().await
}
