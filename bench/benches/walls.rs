//! Measures how much longer a call of the `bash` tool takes in each kind of sandbox, and in a
//! control group without a sandbox. The bench runs `true` in each of them in turn, so that other
//! load on the machine affects all of them equally. The workspace is a repository of 1,000 files, and
//! the session store is in SQLite.
//!
//! `cargo build --release && cargo bench -p planck-bench --bench walls -- 300` runs 300 rounds.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement ends by a panic, and prints"
)]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use planck_common::{AgentId, CallId, NodeId, SessionId, TeamId};
use planck_node::baselines;
use planck_store::{
    SessionStore,
    sqlite::{SqliteOptions, SqliteStore},
};
use planck_toolbox::{
    CallBounds, Caps, Files, Invocation, Launcher, Roots, Runner, Sandbox, Shell, ToolCatalogue,
    Toolbox, Unsandboxed, Wall, built_in, cgroup::Groups, reap::CommandLimits,
    sandbox::SandboxSettings,
};
use serde_json::{json, value::to_raw_value};
use tokio_util::sync::CancellationToken;

#[path = "session.rs"]
mod session;

/// The tier without a sandbox, but with the comparison of protected files that a sandbox comes with.
const COMPARED: &str = "comparison";

/// Where the calls take place: an agent of a session in a store on this disk, as `planck run` has it.
struct Place {
    dir: PathBuf,
    store: Arc<dyn SessionStore>,
    session: SessionId,
    team: TeamId,
    agent: AgentId,
}

impl Place {
    async fn new(dir: PathBuf, store: &Path) -> Self {
        let node = NodeId::mint();
        let store = SqliteStore::open(SqliteOptions::new(store), &node);
        let store: Arc<dyn SessionStore> = Arc::new(store.await.unwrap());
        let new = session::session(1);
        let place = Self {
            dir,
            store: Arc::clone(&store),
            session: new.id.clone(),
            team: new.spec.team_id.clone(),
            agent: new.spec.lead.clone(),
        };
        store.create(new, &node).await.unwrap();
        place
    }

    fn wall(&self) -> Wall {
        baselines::wall(&self.store)
    }
}

struct Measured {
    tier: &'static str,
    toolbox: Toolbox,
    runner: Runner,
    times: Vec<Duration>,
}

impl Measured {
    fn new(tier: &'static str, sandbox: Sandbox, groups: Option<Groups>, place: &Place) -> Self {
        let launcher = Launcher::alone(planck()).grouped(groups);
        let files = Files::new(
            Roots::confined(vec![place.dir.clone()], Vec::new()),
            Caps::default(),
        );
        let is_compared = tier == COMPARED || !sandbox.is_off();
        let wall = is_compared.then(|| place.wall());
        let shell = Shell::new(launcher, sandbox, wall, &[], Caps::default());
        let catalogue = ToolCatalogue::default();
        built_in(&files, &shell, Duration::from_secs(30), Unsandboxed::Off)
            .into_iter()
            .for_each(|tool| catalogue.add(tool).unwrap());
        Self {
            tier,
            toolbox: catalogue.toolbox(["bash"], 40).0,
            runner: Runner::new(CallBounds::default(), Some(place.wall())),
            times: Vec::new(),
        }
    }

    async fn call(&mut self, place: &Place, round: usize) {
        let call = Invocation {
            session_id: place.session.clone(),
            team_id: place.team.clone(),
            agent_id: place.agent.clone(),
            epoch: 1,
            call_id: CallId::parse(&format!("call-{round}")).unwrap(),
            is_repeat: false,
            answer: None,
            args: to_raw_value(&json!({ "command": "true" })).unwrap().into(),
            dir: place.dir.clone(),
            second_judgement: None,
            cancel: CancellationToken::new(),
            progress: Arc::new(|_| {}),
        };
        let begun = Instant::now();
        let outcome = self.runner.run(&self.toolbox, "bash", call).await;
        assert!(!outcome.is_error(), "{}: {}", self.tier, outcome.text);
        self.times.push(begun.elapsed());
    }

    fn at(&self, percent: usize) -> f64 {
        let mut times = self.times.clone();
        times.sort();
        times
            .get((times.len() * percent / 100).min(times.len() - 1))
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }
}

/// Returns the `planck` that `cargo build --release` puts beside the benches. Each measured call runs
/// under it.
fn planck() -> PathBuf {
    let bench = std::env::current_exe().unwrap();
    let planck = bench.ancestors().nth(2).unwrap().join("planck");
    assert!(
        planck.is_file(),
        "no {}: run `cargo build --release` first",
        planck.display()
    );
    planck
}

async fn walls() -> Vec<Sandbox> {
    let mut walls = vec![Sandbox::off()];
    let unpacked = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../.tools/bubblewrap/usr/bin/bwrap"
    );
    for bubblewrap in ["/nonexistent/bwrap", "/usr/bin/bwrap", unpacked].map(PathBuf::from) {
        let planck = Some(planck());
        let settings = SandboxSettings {
            bubblewrap: Some(bubblewrap),
            planck,
            tmp: 1 << 30,
            ..SandboxSettings::default()
        };
        let wall = Sandbox::probe(settings).await;
        if walls.iter().all(|known| known.tier() != wall.tier()) {
            walls.push(wall);
        }
    }
    walls
}

/// Makes a repository with a commit of 1,000 files in 20 folders, because the wall compares what git runs.
fn repository(folder: &Path) {
    for part in 0..20 {
        let part = folder.join(format!("part-{part}"));
        std::fs::create_dir(&part).unwrap();
        for file in 0..50 {
            std::fs::write(part.join(format!("file-{file}.txt")), "text").unwrap();
        }
    }
    let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
    for args in [
        &["init", "-q"][..],
        &["add", "."],
        &["commit", "-qm", "one"],
    ] {
        let mut git = std::process::Command::new("git");
        let done = git.args(who).args(args).current_dir(folder).status();
        assert!(done.unwrap().success(), "git {args:?}");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let rounds = std::env::args()
        .find_map(|arg| arg.parse().ok())
        .unwrap_or(200);
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path());
    let kept = tempfile::tempdir().unwrap();
    let place = Place::new(folder.path().to_owned(), kept.path()).await;
    let mut measured: Vec<Measured> = walls()
        .await
        .into_iter()
        .map(|wall| Measured::new(wall.tier(), wall, None, &place))
        .collect();
    measured.push(Measured::new(COMPARED, Sandbox::off(), None, &place));
    if let Ok(groups) = Groups::prepare(CommandLimits::default()) {
        let grouped = Measured::new("in groups", Sandbox::off(), Some(groups), &place);
        measured.push(grouped);
    }
    for round in 0..rounds {
        for tier in &mut measured {
            tier.call(&place, round).await;
            // The first five rounds fill the caches and are not counted.
            if round < 5 {
                tier.times.clear();
            }
        }
    }
    println!("{rounds} rounds of `bash -c true`, ms: p50, p90, and what each adds to none at p50");
    let none = measured.first().map_or(0.0, |tier| tier.at(50));
    for tier in &measured {
        println!(
            "{:<12} {:>7.2} {:>7.2} {:>+7.2}",
            tier.tier,
            tier.at(50),
            tier.at(90),
            tier.at(50) - none
        );
    }
}
