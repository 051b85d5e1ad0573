//! More bytes than a node can hold: prompts at once, prompts that are too large, inboxes that nobody reads.

use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use planck_common::{
    command::{SessionVerb, SessionsVerb},
    reply::{Code, Refusal},
};
use planck_scripted_model::{Fault, Reply, Script};
use planck_tests::{
    caller::{session_at, sessions},
    nats::NatsServer,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// The most memory that a process ever had, in KiB.
fn memory(pid: i32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.split_whitespace().next().context("no number")?.parse()?)
}

/// A node whose one agent is busy for ever, and prompts of so many bytes to it, all at once; what each was answered with.
async fn flood(
    backend: Backend,
    prompts: usize,
    bytes: usize,
) -> Result<(World, planck_tests::node::Node, Vec<Result<Value, Refusal>>)> {
    let script = Script::new().always(Reply::text("a b c").with_fault(Fault::Hang { after: 1 }));
    let world = World::start_on(NatsServer::start_with("max_payload: 8MB\n")?, backend, script).await?;
    let node = world.node().await?;
    let mut start = world.solo();
    start["prompt"] = "go".into();
    let started = world.caller.start(&start).await?;
    let prompt = json!({ "text": "x".repeat(bytes) });
    let to = session_at(&started.session_id, SessionVerb::Prompt);
    let answers = join_all((0..prompts).map(|_| world.caller.try_ask::<Value>(&to, &prompt))).await;
    // On a busy machine a few may not be answered in the test's time; none may be answered with nothing.
    let answers: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
    assert!(answers.len() >= prompts / 2, "{} of {prompts} were answered", answers.len());
    Ok((world, node, answers))
}

async fn is_bounded(backend: Backend) -> Result<()> {
    let (world, node, answers) = flood(backend, 12, 7_900_000).await?;
    let (taken, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert!((1..=11).contains(&taken.len()), "{} were taken", taken.len());
    for refusal in refused.into_iter().filter_map(Result::err) {
        // A full inbox and a full node say how much they hold; a store on a busy disk says that it did not answer in time.
        let says_why = match refusal.code {
            Code::Limit => refusal.message.contains("64 MiB may wait"),
            Code::Unavailable => !refusal.message.is_empty(),
            _ => false,
        };
        assert!(says_why, "{refusal:?}");
    }
    let peak = memory(node.pid())?;
    println!("{backend:?}: {} of 12 prompts taken, {} MiB at most", taken.len(), peak >> 10);
    assert!(peak < 640 << 10, "{} MiB at most", peak >> 10);
    let small: Result<Value, Refusal> =
        world.caller.try_ask(&planck_tests::caller::list_of(planck_common::subject::Target::Nodes), &json!({})).await?;
    assert!(small.is_ok(), "the node answers others: {small:?}");
    drop(node);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_large_prompts_is_bounded_on_sqlite() -> Result<()> {
    is_bounded(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_large_prompts_is_bounded_on_postgres() -> Result<()> {
    is_bounded(Backend::Postgres).await
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_over_the_limit_is_refused_whatever_nats_carries() -> Result<()> {
    let nats = NatsServer::start_with("max_payload: 16MB\n")?;
    let world = World::start_on(nats, Backend::Sqlite, Script::new().always("hi")).await?;
    let node = world.node().await?;
    let text = "x".repeat(8 * 1024 * 1024);
    let mut start = world.solo();
    let started = world.caller.start(&start).await?;
    let to = session_at(&started.session_id, SessionVerb::Prompt);
    start["prompt"] = text.clone().into();
    for (to, body) in [(to, json!({ "text": text })), (sessions(SessionsVerb::Start), start)] {
        let refused = world.caller.refusal(&to, &body).await?;
        assert!(refused.code == Code::TooLarge && refused.message.contains("over the limit of 8388608"), "{refused}");
    }
    assert_eq!(world.model.request_count(), 0);
    node.leave().await
}
