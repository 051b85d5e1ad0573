//! What a tool process can read, write and connect to in its sandbox, in each tier that this
//! machine has.

mod choice;
mod files;
mod network;
mod programs;
mod protected;
mod roots;

use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use planck_common::{
    InputId, SessionId,
    command::{SessionVerb, SessionsVerb, Started, WaitRow, Waits},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    bubblewrap::bubblewrap,
    caller::{session_at, sessions},
    eventually::within,
    node::Node,
    recorder::ends,
    world::{Backend, World},
};
use serde_json::{Value, json};

use crate::teams::scene::{by, member};

/// The time that a command has, in milliseconds. Some commands create thousands of files.
const TIMEOUT_MS: u64 = 60_000;
/// How long a test waits for the end of a turn with one command.
const PATIENCE: Duration = Duration::from_secs(120);

/// A path without a file. A node that is configured to use it has Landlock alone.
pub const NO_BUBBLEWRAP: &str = "/nonexistent/bwrap";

/// A tier of the sandbox that this machine has.
#[derive(Debug, Clone)]
pub struct Tier {
    pub name: &'static str,
    pub bubblewrap: String,
    /// Whether a part of `/proc` is hidden around bubblewrap, as container engines hide some. The
    /// kernel then mounts no new `/proc` inside.
    in_container: bool,
}

pub fn landlock() -> Tier {
    Tier {
        name: "landlock",
        bubblewrap: NO_BUBBLEWRAP.into(),
        in_container: false,
    }
}

/// Returns Landlock, and bubblewrap if it is available.
pub fn tiers() -> Vec<Tier> {
    let in_bubblewrap = |program: PathBuf| Tier {
        name: "bubblewrap",
        bubblewrap: program.display().to_string(),
        in_container: false,
    };
    std::iter::once(landlock())
        .chain(bubblewrap().map(in_bubblewrap))
        .collect()
}

/// Returns [`tiers`], and bubblewrap as it is in a container.
pub fn tiers_and_container() -> Vec<Tier> {
    let tiers = tiers();
    let in_container = tiers.iter().filter(|tier| tier.name == "bubblewrap");
    let in_container = in_container.map(|tier| Tier {
        in_container: true,
        ..tier.clone()
    });
    tiers.iter().cloned().chain(in_container).collect()
}

/// A node with a sandbox, and an agent in its workspace that does what an attacker wants.
pub struct Walled {
    pub world: World,
    pub node: Node,
    tier: Tier,
}

impl Walled {
    pub async fn start(tier: &Tier, backend: Backend, settings: &[(&str, &str)]) -> Result<Self> {
        let world = World::start(backend, Script::new()).await?;
        Self::start_in(world, tier, settings).await
    }

    pub async fn start_in(world: World, tier: &Tier, settings: &[(&str, &str)]) -> Result<Self> {
        let bubblewrap = match tier.in_container {
            true => in_container(&world, &tier.bubblewrap)?,
            false => tier.bubblewrap.clone(),
        };
        let own = [
            ("PLANCK_TOOLS_BUBBLEWRAP", bubblewrap.as_str()),
            ("ANTHROPIC_API_KEY", "sk-ant-SECRET"),
        ];
        let node = world.node_with(&[&own, settings].concat()).await?;
        Ok(Self {
            world,
            node,
            tier: tier.clone(),
        })
    }

    /// Kills the node, and starts another one in its place.
    pub async fn restart(&mut self) -> Result<()> {
        self.node.kill().await?;
        let bubblewrap = self.tier.bubblewrap.as_str();
        let settings = [("PLANCK_TOOLS_BUBBLEWRAP", bubblewrap)];
        self.node = self.world.node_with(&settings).await?;
        Ok(())
    }

    /// Has the agent make these calls one after the other, and returns their results.
    pub async fn calls(&self, calls: &[(&str, Value)]) -> Result<Vec<String>> {
        let replies = calls
            .iter()
            .map(|(tool, args)| Reply::call(tool, args.clone()));
        self.world.model.set_script(
            Script::new()
                .without_auth()
                .rounds(by("agent"), replies.chain([Reply::text("done")])),
        );
        let recorder = self.world.record().await?;
        let agent = member("agent", &["bash", "read", "write", "edit"]);
        let started = self
            .world
            .caller
            .start(&json!({ "dir": self.world.dir(), "members": [agent], "prompt": "go" }))
            .await?;
        let prompt = started.prompt_id.as_ref().context("no prompt")?;
        recorder.answered_within(PATIENCE, prompt).await?;
        let log = self.world.caller.log(&started.session_id, 1).await?;
        let ends = log
            .into_iter()
            .filter_map(|envelope| match envelope.event() {
                Some(Ok(planck_common::event::Event::ToolEnd(end))) => Some(end.result),
                _ => None,
            });
        Ok(ends.collect())
    }

    pub async fn bash(&self, command: &str) -> Result<String> {
        let said = self
            .calls(&[("bash", json!({ "command": command, "timeout": TIMEOUT_MS }))])
            .await?;
        said.into_iter().next().context("the call did not end")
    }

    /// Has an agent of a new session run a command. Returns the session, and the wait that the call
    /// opened, if it did not end.
    pub async fn bash_or_wait(&self, command: &str) -> Result<(Started, Option<WaitRow>)> {
        let calls = [
            Reply::call("bash", json!({ "command": command, "timeout": TIMEOUT_MS })),
            Reply::text("done"),
        ];
        let script = Script::new().without_auth().rounds(by("agent"), calls);
        self.world.model.set_script(script);
        let agent = member("agent", &["bash"]);
        let start = json!({ "dir": self.world.dir(), "members": [agent], "prompt": "go" });
        let started = self.world.caller.start(&start).await?;
        let prompt = started.prompt_id.clone().context("no prompt")?;
        let wait = self.ended_or_waits(&started.session_id, &prompt).await?;
        Ok((started, wait))
    }

    /// Waits until the turn that consumed an input has ended or waits, and returns its wait.
    pub async fn ended_or_waits(
        &self,
        session: &SessionId,
        input: &InputId,
    ) -> Result<Option<WaitRow>> {
        let found = within(PATIENCE, "the turn ends or waits", async || {
            let waits = self.waits(session).await.ok()?;
            if let Some(wait) = waits.into_iter().next() {
                return Some(Some(wait));
            }
            let log = self.world.caller.log(session, 1).await.ok()?;
            log.iter()
                .any(|envelope| ends(envelope, input))
                .then_some(None)
        });
        found.await
    }

    pub async fn waits(&self, session: &SessionId) -> Result<Vec<WaitRow>> {
        let filter = json!({ "session": session });
        let to = sessions(SessionsVerb::Waits);
        let waits: Waits = self.world.caller.read(&to, &filter).await?;
        Ok(waits.waits)
    }

    pub async fn answer(&self, wait: &WaitRow, decision: &str) -> Result<()> {
        let to = session_at(&wait.session_id, SessionVerb::Answer);
        let answer = json!({ "wait": wait.id, "decision": decision, "digest": wait.digest });
        self.world.caller.ask::<Value>(&to, &answer).await?;
        Ok(())
    }

    /// Runs each attempt by itself. Attempts marked `+` must succeed, which shows that attempts of
    /// their kind can succeed. Attempts marked `-` must fail. An attempt marked `?` may seem to
    /// succeed in bubblewrap, where it changes a copy; the test checks the machine.
    pub async fn attempts(&self, prelude: &str, attempts: &[(char, &str, String)]) -> Result<()> {
        let tried = attempts.iter().enumerate().map(|(at, (_, _, attempt))| {
            format!("if ( {attempt}\n) >/dev/null 2>&1 </dev/null; then echo \"{at} +\"; else echo \"{at} -\"; fi\n")
        });
        let said = self
            .bash(&format!("{prelude}\n{}", tried.collect::<String>()))
            .await?;
        for (at, (wanted, name, attempt)) in attempts.iter().enumerate() {
            let found = said.lines().any(|line| line == format!("{at} {wanted}")) || *wanted == '?';
            ensure!(
                found,
                "{}: {name} ({attempt}) should be {wanted}:\n{said}",
                self.tier.name
            );
        }
        Ok(())
    }

    /// Returns a path outside of the workspace that belongs to the node's user.
    pub fn outside(&self, path: &str) -> PathBuf {
        self.world.folder().join(path)
    }

    pub async fn end(self, excused: &[&str]) -> Result<()> {
        ensure!(
            self.node
                .log()
                .contains(&format!("\"sandbox\":\"{}\"", self.tier.name)),
            "{}: {}",
            self.tier.name,
            self.node.log()
        );
        ensure!(
            !self.tier.in_container || self.node.log().contains("no new one can be mounted"),
            "{:?}: {}",
            self.tier,
            self.node.log()
        );
        self.node.leave_despite(excused).await
    }
}

/// Writes a program that runs bubblewrap where a file of `/proc` is hidden, and returns its path.
fn in_container(world: &World, bubblewrap: &str) -> Result<String> {
    let program = world.folder().join("bwrap");
    let hiding = "--die-with-parent --dev-bind / / --ro-bind /dev/null /proc/cmdline";
    put(
        program.clone(),
        &format!("#!/bin/sh\nexec {bubblewrap} {hiding} -- {bubblewrap} \"$@\"\n"),
    )?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(program.display().to_string())
}

/// Returns whether this machine has a program below `/usr` or `/bin`, and prints a warning if not.
pub fn has(program: &str) -> bool {
    let found = env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| {
        (folder.starts_with("/usr") || folder.starts_with("/bin")) && folder.join(program).is_file()
    });
    if !found {
        eprintln!("skipped: no {program} on this machine");
    }
    found
}

/// Writes a file, and creates its parent folders.
pub fn put(path: PathBuf, content: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("no parent")?)?;
    Ok(fs::write(path, content)?)
}
