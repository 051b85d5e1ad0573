//! The names of the front's callers, as the log and the decisions of the cluster show them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use planck_common::{
    command::{Sessions, SessionsVerb},
    decision::DecisionKind,
    envelope::Envelope,
    event::{EventKind, InputKind},
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    caller::sessions,
    eventually::eventually,
    front::Front,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{cluster::scene::Decisions, flows::prompts::streaming};

/// How long the node may take to leave.
const LEAVE: Duration = Duration::from_secs(60);

/// A caller of the front, who has a key.
struct KeyHolder {
    bearer: String,
    /// The key's entry of `http.keys`.
    entry: Value,
}

impl KeyHolder {
    async fn new(world: &World, name: &str, role: &str) -> Result<Self> {
        let mut command = world.planck()?;
        let made = command.args(["serve", "key", name, "--role", role]);
        let made = String::from_utf8(made.output().await?.stdout)?;
        let line = |start: &str| {
            let mut lines = made.lines().map(str::trim);
            lines
                .find(|line| line.starts_with(start))
                .context(start.to_owned())
        };
        let keys = line("PLANCK_HTTP_KEYS=")?.trim_start_matches("PLANCK_HTTP_KEYS=");
        let keys: Value = serde_json::from_str(keys.trim_matches('\''))?;
        Ok(Self {
            bearer: format!("Bearer {}", line("pk_")?),
            entry: keys[0].clone(),
        })
    }

    async fn post(&self, front: &Front, path: &str, body: Value) -> Result<Value> {
        let headers = [("Authorization", self.bearer.as_str())];
        let answer = front.try_post(path, &body, &headers).await?;
        assert!(answer.status < 300, "{path}: {}", answer.body);
        answer.json()
    }
}

/// Starts a front with these keys.
async fn front(world: &World, holders: &[&KeyHolder]) -> Result<Front> {
    let keys: Vec<&Value> = holders.iter().map(|holder| &holder.entry).collect();
    let mut command = world.planck()?;
    command.env("PLANCK_HTTP_KEYS", json!(keys).to_string());
    Front::start(command, world.folder(), &["--front-only"]).await
}

fn data(event: &Envelope) -> Value {
    serde_json::from_str(event.data.get()).unwrap_or_default()
}

/// Waits until the log has a number of events of a kind, and returns their data.
async fn events(world: &World, session: &str, kind: EventKind, count: usize) -> Result<Vec<Value>> {
    let what = format!("the log has {count} times {}", kind.name());
    let found = eventually(&what, async || {
        let log = world.caller.log(session, 1).await.ok()?;
        let fitting = log.iter().filter(|event| event.kind == kind.name());
        let found: Vec<Value> = fitting.map(data).collect();
        (found.len() == count).then_some(found)
    });
    found.await
}

fn script() -> Script {
    let slow = Reply::text("word ".repeat(600)).pace(Pace::per_second(20.0).chunk(4));
    Script::new()
        .rule(When::any().last("slowly"), slow)
        .always("Quick.")
}

#[tokio::test(flavor = "multi_thread")]
async fn log_and_decisions_say_whose_key_sent_a_command() -> Result<()> {
    let world = World::start(Backend::Postgres, script()).await?;
    let mut node = world.node().await?;
    let recorder = world.record().await?;
    let decisions = Decisions::hear(&world.caller).await?;
    let ann = KeyHolder::new(&world, "ann", "operate").await?;
    let bob = KeyHolder::new(&world, "bob", "operate").await?;
    let front = front(&world, &[&ann, &bob]).await?;

    let mut start = world.solo();
    start["prompt"] = "say it slowly".into();
    start["by"] = "mallory".into();
    let started = ann.post(&front, "/v1/sessions", start).await?;
    let session = started["session_id"].as_str().context("an id")?;
    let agent = started["orchestrator"].as_str().context("an id")?;
    streaming(&world, agent).await?;
    let of_session = |verb: &str| format!("/v1/sessions/{session}/{verb}");
    let next = json!({ "text": "next" });
    let queued = bob.post(&front, &of_session("prompt"), next).await?;
    let announced = recorder.until("the prompt waits", |event| {
        event.kind == EventKind::MessageQueued.name()
    });
    let announced = data(&announced.await?);
    assert_eq!(announced["id"], queued["prompt_id"]);
    assert_eq!(announced["by"], "bob");
    let abort = json!({ "reason": "too slow" });
    bob.post(&front, &of_session("abort"), abort).await?;
    events(&world, session, EventKind::TurnEnd, 2).await?;
    let path = format!("/v1/agents/{agent}/prompt");
    ann.post(&front, &path, json!({ "text": "last" })).await?;

    let ends = events(&world, session, EventKind::TurnEnd, 3).await?;
    assert_eq!(ends[0]["outcome"], "aborted");
    assert_eq!(ends[0]["reason"], "too slow (by bob)");
    let starts = events(&world, session, EventKind::TurnStart, 3).await?;
    let input = |n: usize| {
        (
            &starts[n]["inputs"][0]["kind"],
            &starts[n]["inputs"][0]["by"],
        )
    };
    for (n, by) in ["ann", "bob", "ann"].into_iter().enumerate() {
        let prompt = json!(InputKind::Prompt);
        assert_eq!(input(n), (&prompt, &json!(by)), "{starts:?}");
    }
    let log = world.caller.log(session, 1).await?;
    let said = log.iter().filter(|event| event.kind == "message");
    let prompts: Vec<(Option<i64>, Value)> = said
        .map(|event| (event.seq, data(event)["message"].clone()))
        .filter(|(_, message)| message["role"] == "user")
        .collect();
    assert_eq!(prompts[1].1["metadata"]["by"], "bob");

    let rewind = json!({ "to": prompts[2].0 });
    ann.post(&front, &of_session("rewind"), rewind).await?;
    let rewound = events(&world, session, EventKind::Rewound, 1).await?;
    assert_eq!(rewound[0]["by"], "ann");

    let path = format!("/v1/nodes/{}/drain", node.id());
    bob.post(&front, &path, json!({ "reason": "new disk" }))
        .await?;
    let reason = "its node is drained: new disk (by bob)";
    assert_eq!(
        decisions.until(DecisionKind::Drain).await?.data.reason,
        reason
    );
    let status = timeout(LEAVE, node.ended()).await.context("it stays")??;
    assert!(status.success(), "{status}");
    assert!(node.log().contains(reason), "{}", node.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_ready_made_clients_have_the_name_of_the_key() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let ann = KeyHolder::new(&world, "ann", "operate").await?;
    let bob = KeyHolder::new(&world, "bob", "use").await?;
    let front = front(&world, &[&ann, &bob]).await?;
    let dir = world.dir();
    let said = json!([{ "role": "user", "content": "hi" }]);
    let shown =
        json!([{ "id": "m1", "role": "user", "parts": [{ "type": "text", "text": "hi" }] }]);
    for (path, body) in [
        (
            "/openai/v1/chat/completions",
            json!({ "model": "planck", "messages": said, "metadata": { "dir": dir } }),
        ),
        (
            "/openai/v1/responses",
            json!({ "model": "planck", "input": "hi", "metadata": { "dir": dir } }),
        ),
        (
            "/ui/chat",
            json!({ "id": "chat", "dir": dir, "messages": shown }),
        ),
    ] {
        // The directory is an absolute path, which only an operator may name.
        let headers = [("Authorization", bob.bearer.as_str())];
        let refused = front.try_post(path, &body, &headers).await?;
        assert_eq!(refused.status, 403, "{path}: {}", refused.body);
        let headers = [("Authorization", ann.bearer.as_str())];
        let answer = front.try_post(path, &body, &headers).await?;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let to = sessions(SessionsVerb::List);
    let listed: Sessions = world.caller.read(&to, &json!({})).await?;
    assert_eq!(listed.sessions.len(), 3);
    for session in listed.sessions {
        let starts = events(&world, &session.id, EventKind::TurnStart, 1).await?;
        assert_eq!(starts[0]["inputs"][0]["by"], "ann", "{}", session.name);
    }
    node.leave().await
}
