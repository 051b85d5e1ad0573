//! MCP servers with a process for each session.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use planck_common::command::{SessionVerb, Started};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::session_at,
    eventually::within,
    node::Node,
    recorder::Recorder,
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::{PATIENCE, own::Configured, processes_of};
use crate::teams::scene::{by, member, said};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/e2e/sidecars/mcp/counting.py"
);

struct Sessions {
    world: World,
    configured: Configured,
    recorder: Recorder,
}

impl Sessions {
    async fn start(stay: &str) -> Result<(Self, Node)> {
        let prompts = ["go", "again"];
        let script = prompts.iter().fold(Script::new(), |script, prompt| {
            let rounds = [
                Reply::call("counting__count", json!({})),
                Reply::text("{{result:counting__count}}"),
            ];
            script.rounds(by("talker").user(prompt), rounds)
        });
        let world = World::start(Backend::Sqlite, script).await?;
        let mut configured = Configured::empty(&world);
        let mark = configured.mark.replace(' ', ",");
        configured.set("COUNTING_COMMAND", format!("python3,{PROGRAM},{mark}"));
        configured.set("COUNTING_SANDBOX", "off");
        configured.set("COUNTING_PER", "session");
        configured.set("COUNTING_STAY", stay);
        let node = configured.node(&world).await?;
        configured.listed(&world, &["counting", "count"]).await?;
        let recorder = world.record().await?;
        let sessions = Self {
            world,
            configured,
            recorder,
        };
        sessions.running(0).await?;
        Ok((sessions, node))
    }

    /// Waits until as many processes of the server run.
    async fn running(&self, number: usize) -> Result<()> {
        let what = format!("{number} processes run");
        within(PATIENCE, &what, async || {
            (processes_of(&self.configured.mark).len() == number).then_some(())
        })
        .await
    }

    /// Starts a session in a folder of its own, and returns what its agent says.
    async fn session(&self, folder: &str) -> Result<(Started, String)> {
        let dir = self.world.dir().join(folder);
        fs::create_dir_all(&dir)?;
        let talker = member("talker", &["counting__*"]);
        let body = json!({"dir": dir, "members": [talker], "prompt": "go"});
        let started = self.world.caller.start(&body).await?;
        let prompt = started.prompt_id.as_ref().context("no prompt")?;
        let end = self.recorder.answered(prompt).await?;
        Ok((started, said(&end)?))
    }

    async fn close(&self, session: &Started) -> Result<()> {
        let close = session_at(session.session_id.as_str(), SessionVerb::Close);
        let _closed: Value = self.world.caller.ask(&close, &json!({})).await?;
        Ok(())
    }

    async fn ask(&self, session: &Started) -> Result<String> {
        let session = session.session_id.as_str();
        let accepted = self.world.caller.prompt(session, "again").await?;
        said(&self.recorder.answered(&accepted.prompt_id).await?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_session_has_a_process_of_its_own_in_its_folder() -> Result<()> {
    let (sessions, mut node) = Sessions::start("1h").await?;
    let (one, said) = sessions.session("one").await?;
    assert_eq!(said, "1 in one");
    let (_, said) = sessions.session("two").await?;
    assert_eq!(said, "1 in two");
    sessions.running(2).await?;
    assert_eq!(sessions.ask(&one).await?, "2 in one");

    sessions.close(&one).await?;
    sessions.running(1).await?;
    node.kill().await?;
    sessions.configured.leaves_nothing().await
}

#[tokio::test(flavor = "multi_thread")]
async fn process_of_a_session_ends_when_the_session_rests() -> Result<()> {
    let (sessions, node) = Sessions::start("1s").await?;
    let (one, said) = sessions.session("one").await?;
    assert_eq!(said, "1 in one");
    sessions.running(0).await?;
    assert_eq!(sessions.ask(&one).await?, "1 in one");
    node.leave().await?;
    ensure!(processes_of(&sessions.configured.mark).is_empty());
    sessions.configured.leaves_nothing().await
}

/// The number of processes of sessions that a node runs.
const MOST: usize = 64;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts 65 processes of a server: make test-all"]
async fn processes_of_sessions_are_bounded() -> Result<()> {
    let (sessions, node) = Sessions::start("1h").await?;
    let (one, _) = sessions.session("one").await?;
    for number in 1..MOST {
        let (_, said) = sessions.session(&number.to_string()).await?;
        assert_eq!(said, format!("1 in {number}"));
    }
    let (refused, said) = sessions.session("more").await?;
    assert!(
        said.contains("runs 64 processes") && said.contains("`mcp.counting.per`"),
        "{said}"
    );
    sessions.running(MOST).await?;
    sessions.close(&one).await?;
    sessions.running(MOST - 1).await?;
    assert_eq!(sessions.ask(&refused).await?, "1 in more");
    node.leave().await?;
    sessions.configured.leaves_nothing().await
}
