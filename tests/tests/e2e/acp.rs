//! An editor on a cluster: what it is told while nodes, NATS and `planck acp` itself are killed.

use anyhow::{Context as _, Result, ensure};
use planck_common::command::AgentState;
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    editor::{Editor, calls, text_of},
    eventually::eventually,
    node::Node,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::process::Command;

/// Texts that a node may log when another part was killed.
const EXCUSED: &[&str] = &["NATS", "nats", "suspended", "registry", "dead", "lease"];

fn story() -> String {
    let words: Vec<String> = (0..60).map(|n| format!("slow-{n}")).collect();
    words.join(" ")
}

/// A reply with a call, and then a long one.
fn script() -> Script {
    let call = Reply::text("I write it.").and_call("bash", json!({"command": "echo x >> ledger"}));
    let slow = Reply::text(story()).pace(Pace::per_second(12.0).chunk(8));
    Script::new()
        .rule(When::any().last("Tell it."), call)
        .rule(When::any().result_of("bash"), slow)
        .always("Quick.")
}

fn acp(world: &World) -> Result<Command> {
    let mut command = world.planck()?;
    command.current_dir(world.dir()).arg("acp");
    Ok(command)
}

/// Reads updates until the second reply streams. Returns them.
async fn until_slow(editor: &mut Editor) -> Result<Vec<Value>> {
    let mut updates = Vec::new();
    while !text_of(&updates, "agent_message_chunk").contains("slow-2") {
        let message = editor.read().await?;
        ensure!(message["method"] == "session/update", "{message}");
        updates.push(message["params"]["update"].clone());
    }
    Ok(updates)
}

/// Checks that an editor was told of one call and one whole story, whose beginning may be there twice.
fn check(world: &World, updates: &[Value], done: &Value) -> Result<()> {
    ensure!(done["result"]["stopReason"] == "end_turn", "{done}");
    let said = text_of(updates, "agent_message_chunk");
    ensure!(said.ends_with(&story()), "{said}");
    let calls = calls(updates);
    let (id, _) = calls.first().context("no call")?;
    ensure!(calls.iter().all(|(other, _)| other == id), "{calls:?}");
    let states: Vec<_> = calls
        .iter()
        .filter_map(|(_, state)| state.as_str())
        .collect();
    ensure!(
        states == ["pending", "in_progress", "completed"],
        "{states:?}"
    );
    let ledger = std::fs::read_to_string(world.dir().join("ledger"))?;
    ensure!(ledger == "x\n", "{ledger}");
    world.check_model()
}

/// Returns which node hosts the lead of a session, once it is in a state.
async fn host(world: &World, session: &Value, nodes: &[Node], state: AgentState) -> Result<usize> {
    let session = session.as_str().context("no session")?;
    eventually("the lead is in the state", async || {
        let info = world.caller.session(session).await.ok()?;
        let lead = info.agents.first()?;
        let at = nodes
            .iter()
            .position(|node| Some(node.id()) == lead.node_id.as_ref());
        at.filter(|_| lead.state == state)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn editor_sees_no_error_when_the_node_of_its_session_is_killed() -> Result<()> {
    let world = World::start(Backend::Postgres, script()).await?;
    let mut nodes = vec![world.node().await?, world.node().await?];
    let mut editor = Editor::greeted(acp(&world)?, json!({})).await?;
    let session = editor.open(&world.dir()).await?;
    editor.prompt(2, &session, "Tell it.").await?;
    let mut updates = until_slow(&mut editor).await?;
    let at = host(&world, &session, &nodes, AgentState::Streaming).await?;
    nodes.remove(at).kill().await?;
    let (rest, done) = editor.updates(&session).await?;
    updates.extend(rest);
    check(&world, &updates, &done)?;
    editor.ends().await?;
    nodes.remove(0).leave_despite(EXCUSED).await
}

/// A question stays open while no node hosts its agent.
#[tokio::test(flavor = "multi_thread")]
async fn permission_is_given_once_although_the_node_of_the_call_is_killed() -> Result<()> {
    let world = World::start(Backend::Postgres, script()).await?;
    let mut nodes = vec![world.node().await?, world.node().await?];
    let mut command = acp(&world)?;
    command.args(["--permissions", "careful"]);
    let mut editor = Editor::greeted(command, json!({})).await?;
    let session = editor.open(&world.dir()).await?;
    editor.prompt(2, &session, "Tell it.").await?;
    let (mut updates, asked) = editor.updates(&session).await?;
    ensure!(asked["method"] == "session/request_permission", "{asked}");
    let at = host(&world, &session, &nodes, AgentState::Waiting).await?;
    nodes.remove(at).kill().await?;
    // The answer comes before another node has the agent.
    editor.choose(&asked, "allow").await?;
    let (rest, done) = editor.updates(&session).await?;
    updates.extend(rest);
    check(&world, &updates, &done)?;
    editor.leaves().await?;
    nodes.remove(0).leave_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn editor_sees_no_error_when_nats_is_killed_and_comes_back() -> Result<()> {
    let mut world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let mut editor = Editor::greeted(acp(&world)?, json!({})).await?;
    let session = editor.open(&world.dir()).await?;
    editor.prompt(2, &session, "Tell it.").await?;
    let mut updates = until_slow(&mut editor).await?;
    world.nats.kill()?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    world.nats.restart()?;
    let (rest, done) = editor.updates(&session).await?;
    updates.extend(rest);
    check(&world, &updates, &done)?;
    editor.leaves().await?;
    node.leave_despite(EXCUSED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_ends_without_its_editor_and_is_told_to_the_next_one() -> Result<()> {
    let world = World::start(Backend::Sqlite, script()).await?;
    let node = world.node().await?;
    let mut editor = Editor::greeted(acp(&world)?, json!({})).await?;
    let session = editor.open(&world.dir()).await?;
    editor.prompt(2, &session, "Tell it.").await?;
    until_slow(&mut editor).await?;
    editor.process.kill().await?;
    let mut editor = Editor::greeted(acp(&world)?, json!({})).await?;
    let load = json!({"sessionId": session, "cwd": world.dir(), "mcpServers": []});
    editor.request(3, "session/load", load).await?;
    let (mut updates, loaded) = editor.updates(&session).await?;
    ensure!(loaded["id"] == 3, "{loaded}");
    ensure!(
        !text_of(&updates, "agent_message_chunk").ends_with(&story()),
        "the work is over"
    );
    // A prompt waits for the end of the work that was loaded.
    editor.prompt(4, &session, "And now?").await?;
    let (rest, done) = editor.updates(&session).await?;
    updates.extend(rest);
    let said = text_of(&updates, "agent_message_chunk");
    let told = said.strip_suffix("Quick.").context(said.clone())?;
    let of_story = |update: &&Value| update["content"]["text"] != "Quick.";
    let updates: Vec<Value> = updates.iter().filter(of_story).cloned().collect();
    ensure!(told.ends_with(&story()), "{told}");
    check(&world, &updates, &done)?;
    editor.ends().await?;
    node.leave().await
}
