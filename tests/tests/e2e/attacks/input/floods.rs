//! More bytes than a node can hold: concurrent prompts, prompts that are too large, inboxes that no
//! agent reads.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use planck_common::{
    command::{SessionVerb, SessionsVerb},
    reply::{Code, Refusal},
};
use planck_scripted_model::{Reply, Script, ScriptedFault};
use planck_tests::{
    caller::{session_at, sessions},
    eventually::within,
    nats::NatsServer,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// Returns the peak memory of a process, in KiB.
fn memory(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("no VmHWM")?;
    Ok(line
        .split_whitespace()
        .next()
        .context("no number")?
        .parse()?)
}

/// How long a node under a flood may take to answer.
const LONG: Duration = Duration::from_secs(90);

/// The size of one prompt, in bytes. Nine such prompts exceed an inbox.
const PROMPT: usize = 7_900_000;

/// Returns whether a refusal is that of a full inbox and names the limit, or that of an unavailable
/// node and is not empty.
fn says_why(refusal: &Refusal) -> bool {
    match refusal.code {
        Code::Limit => refusal.message.contains("64 MiB may wait"),
        Code::Unavailable => !refusal.message.is_empty(),
        _ => false,
    }
}

/// Checks that an inbox has a limit, that the node uses less than 640 MiB, and that it still
/// answers. Sends prompts to an agent that is always busy: twelve at once, then one after the other
/// until the inbox is full.
async fn is_bounded(backend: Backend) -> Result<()> {
    let script =
        Script::new().always(Reply::text("a b c").with_fault(ScriptedFault::Hang { after: 1 }));
    let world = World::start_on(
        NatsServer::start_with("max_payload: 8MB\n")?,
        backend,
        script,
    )
    .await?;
    let node = world.node().await?;
    let mut start = world.solo();
    start["prompt"] = "go".into();
    let started = world.caller.start(&start).await?;
    let prompt = json!({ "text": "x".repeat(PROMPT) });
    let to = session_at(&started.session_id, SessionVerb::Prompt);
    // On a busy machine some prompts are not answered within the test's time. Their missing replies
    // are ignored, but each refusal must state its reason.
    let answers = join_all((0..12).map(|_| world.caller.try_request::<Value>(&to, &prompt))).await;
    for refusal in answers
        .into_iter()
        .filter_map(Result::ok)
        .filter_map(Result::err)
    {
        assert!(says_why(&refusal), "{refusal:?}");
    }
    let peak = memory(node.pid())?;
    println!("{backend:?}: {} MiB at most", peak >> 10);
    assert!(peak < 640 << 10, "{} MiB at most", peak >> 10);
    within(LONG, "the inbox is full", async || {
        let answer = world.caller.try_request::<Value>(&to, &prompt).await.ok()?;
        answer
            .err()
            .filter(|refusal| refusal.code == Code::Limit && says_why(refusal))
    })
    .await?;
    let list = planck_tests::caller::list_of(planck_common::subject::Target::Nodes);
    within(LONG, "the node answers others", async || {
        world
            .caller
            .try_request::<Value>(&list, &json!({}))
            .await
            .ok()?
            .ok()
    })
    .await?;
    drop(node);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn flood_of_large_prompts_is_bounded_on_sqlite() -> Result<()> {
    is_bounded(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn flood_of_large_prompts_is_bounded_on_postgres() -> Result<()> {
    is_bounded(Backend::Postgres).await
}

/// Checks the limit of an inbox that two nodes fill at the same time: 24 prompts are sent at once,
/// and exactly eight of them fit. Then checks that a prompt over `limits.max_prompt` is refused.
async fn fits_exactly(backend: Backend) -> Result<()> {
    let script =
        Script::new().always(Reply::text("a b c").with_fault(ScriptedFault::Hang { after: 1 }));
    let world = World::start(backend, script).await?;
    let bounds = [
        ("PLANCK_LIMITS_MAX_PROMPT", "128KiB"),
        ("PLANCK_LIMITS_INBOX_MAX_BYTES", "1MiB"),
    ];
    let nodes = [
        world.node_with(&bounds).await?,
        world.node_with(&bounds).await?,
    ];
    let mut start = world.solo();
    start["prompt"] = "go".into();
    let started = world.caller.start(&start).await?;
    let to = session_at(&started.session_id, SessionVerb::Prompt);
    let asked = || world.model.request_count() > 0;
    within(LONG, "the first prompt is read", async || {
        asked().then_some(())
    })
    .await?;
    let prompt = json!({ "text": "x".repeat(120_000) });
    let answers = join_all((0..24).map(|_| world.caller.try_request::<Value>(&to, &prompt))).await;
    let (mut taken, mut refused) = (0, 0);
    for answer in answers {
        match answer? {
            Ok(_) => taken += 1,
            Err(refusal) => {
                assert!(
                    refusal.code == Code::Limit && refusal.message.contains("1 MiB may wait"),
                    "{refusal:?}"
                );
                refused += 1;
            }
        }
    }
    assert_eq!((taken, refused), (8, 16));
    let large = world
        .caller
        .refusal(&to, &json!({ "text": "x".repeat(140_000) }))
        .await?;
    assert!(
        large.code == Code::TooLarge && large.message.contains("over the limit of 131072"),
        "{large}"
    );
    drop(nodes);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn prompts_at_once_fit_the_inbox_on_sqlite() -> Result<()> {
    fits_exactly(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn prompts_at_once_fit_the_inbox_on_postgres() -> Result<()> {
    fits_exactly(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn prompt_over_the_limit_is_refused_whatever_size_nats_accepts() -> Result<()> {
    let nats = NatsServer::start_with("max_payload: 16MB\n")?;
    let world = World::start_on(nats, Backend::Sqlite, Script::new().always("hi")).await?;
    let node = world.node().await?;
    let text = "x".repeat(8 * 1024 * 1024);
    let mut start = world.solo();
    let started = world.caller.start(&start).await?;
    let to = session_at(&started.session_id, SessionVerb::Prompt);
    start["prompt"] = text.clone().into();
    for (to, body) in [
        (to, json!({ "text": text })),
        (sessions(SessionsVerb::Start), start),
    ] {
        let refused = world.caller.refusal(&to, &body).await?;
        assert!(
            refused.code == Code::TooLarge && refused.message.contains("over the limit of 8388608"),
            "{refused}"
        );
    }
    assert_eq!(world.model.request_count(), 0);
    node.leave().await
}
