//! Tests with several processes on one folder. The test binary starts itself again as each of the
//! other processes.

use std::{
    io::{BufRead, BufReader, Lines},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::{AgentId, NodeId, Seq, SessionId};

use super::{Folder, SqliteOptions, SqliteStore};
use crate::{
    BatchOutcome, LeadIncarnation, LeaseClaim, Leases as _, Log as _, StoreError,
    conformance::{Team, assert_log_is_sound, events, team},
};

const FOLDER: &str = "PLANCK_TEST_FOLDER";
const HOLDERS_FOLDER: &str = "PLANCK_TEST_HOLDERS_FOLDER";

/// A separate process that uses the store. It is killed when the `Writer` is dropped.
struct Writer {
    child: Child,
    node: NodeId,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Writer {
    /// Starts a process that claims an agent and writes to its log.
    fn start(folder: &Path, team: &Team, agent: usize, seen: i64, batches: u32) -> Self {
        let node = NodeId::mint();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "sqlite::tests::processes::writer"])
            .env(FOLDER, folder)
            .env("PLANCK_TEST_NODE", node.as_str())
            .env("PLANCK_TEST_SESSION", team.session.as_str())
            .env("PLANCK_TEST_LEAD", team.lead().as_str())
            .env("PLANCK_TEST_AGENT", team.agents[agent].as_str())
            .env("PLANCK_TEST_SEEN", seen.to_string())
            .env("PLANCK_TEST_BATCHES", batches.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, node, lines }
    }

    /// Starts a process that claims the orchestrator for a node and stays in a transaction.
    fn hold(folder: &Path, node: &NodeId, team: &Team, seen: i64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "sqlite::tests::processes::holder"])
            .env(HOLDERS_FOLDER, folder)
            .env("PLANCK_TEST_NODE", node.as_str())
            .env("PLANCK_TEST_SESSION", team.session.as_str())
            .env("PLANCK_TEST_LEAD", team.lead().as_str())
            .env("PLANCK_TEST_SEEN", seen.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut holder = Self {
            child,
            node: node.clone(),
            lines,
        };
        assert_eq!(holder.next("in a transaction").as_deref(), Some(""));
        holder
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Returns the text after `what` in the next line that contains `what`, or `None` if the
    /// process ended.
    fn next(&mut self, what: &str) -> Option<String> {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once(what)?.1.trim().to_owned()))
    }

    fn acknowledged(&mut self, most: usize) -> Vec<Seq> {
        let mut seqs = vec![];
        while seqs.len() < most {
            let Some(line) = self.next("written ") else {
                break;
            };
            seqs.extend(line.split(' ').map(|seq| seq.parse::<Seq>().unwrap()));
        }
        seqs
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }
}

fn var(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// The main function of the writer process. It does nothing in a normal run of the tests.
#[tokio::test]
async fn writer() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let node = NodeId::parse(&var("PLANCK_TEST_NODE")).unwrap();
    let session = SessionId::parse(&var("PLANCK_TEST_SESSION")).unwrap();
    let [lead, agent] =
        ["PLANCK_TEST_LEAD", "PLANCK_TEST_AGENT"].map(|name| AgentId::parse(&var(name)).unwrap());
    let store = SqliteStore::open(SqliteOptions::new(folder), &node)
        .await
        .unwrap();
    let claim = if lead == agent {
        LeaseClaim::Lead { after_death: false }
    } else {
        LeaseClaim::Member(LeadIncarnation {
            lead,
            incarnation: 1,
        })
    };
    let Some(lease) = store
        .claim(
            &session,
            &agent,
            var("PLANCK_TEST_SEEN").parse().unwrap(),
            claim,
            &node,
        )
        .await
        .unwrap()
    else {
        println!("\nlost the claim");
        return;
    };
    println!("\nwon the claim");
    let mut prev = lease.last_seq;
    for _ in 0..var("PLANCK_TEST_BATCHES").parse::<u32>().unwrap() {
        let batch = crate::Batch {
            agent: agent.clone(),
            epoch: lease.epoch,
            prev,
            saves: vec![Arc::new(team::save(team::warnings(2)))],
        };
        let outcome = loop {
            match store
                .append(&session, &node, std::slice::from_ref(&batch))
                .await
            {
                Ok(mut done) => break done.batches.remove(0),
                Err(StoreError::Away(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        let BatchOutcome::Written(seqs) = outcome else {
            return;
        };
        prev = *seqs.last().unwrap();
        println!(
            "\nwritten {}",
            seqs.iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_write_to_one_file() {
    let folder = Folder::new();
    let team = Team::start(&folder, 3).await;
    let writers: Vec<_> = (0..3)
        .map(|agent| Writer::start(folder.path(), &team, agent, 1, 60))
        .collect();
    let mut acknowledged: Vec<Seq> = writers
        .into_iter()
        .flat_map(|mut writer| writer.acknowledged(usize::MAX))
        .collect();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, (1..=360).collect::<Vec<_>>());
    assert_log_is_sound(&events::all(&team, None).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_processes_claims() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let writers: Vec<_> = (0..4)
        .map(|_| Writer::start(folder.path(), &team, 0, 1, 0))
        .collect();
    let mut verdicts: Vec<_> = writers
        .into_iter()
        .filter_map(|mut writer| {
            writer
                .lines
                .by_ref()
                .map_while(Result::ok)
                .find(|line| line.ends_with("the claim"))
        })
        .collect();
    verdicts.sort();
    assert_eq!(
        verdicts,
        [
            "lost the claim",
            "lost the claim",
            "lost the claim",
            "won the claim"
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_rows_survive_a_kill() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let mut writer = Writer::start(folder.path(), &team, 0, 1, u32::MAX);
    let acknowledged = writer.acknowledged(100);
    writer.signal(Signal::SIGKILL);
    let rest = writer.acknowledged(usize::MAX);
    drop(writer);
    let log = events::all(&team, None).await;
    assert_log_is_sound(&log);
    let last = rest.last().or(acknowledged.last()).copied().unwrap();
    assert!(log.len() >= usize::try_from(last).unwrap());
}

/// The test process that [`Writer::hold`] starts: takes the lock of its node, claims the
/// orchestrator and stays in a transaction. Does nothing in the test run itself.
#[tokio::test]
async fn holder() {
    let Ok(folder) = std::env::var(HOLDERS_FOLDER) else {
        return;
    };
    let node = NodeId::parse(&var("PLANCK_TEST_NODE")).unwrap();
    let session = SessionId::parse(&var("PLANCK_TEST_SESSION")).unwrap();
    let lead = AgentId::parse(&var("PLANCK_TEST_LEAD")).unwrap();
    let opened = SqliteStore::open(SqliteOptions::new(&folder), &node).await;
    let store = opened.unwrap();
    let claim = LeaseClaim::Lead { after_death: false };
    let seen = var("PLANCK_TEST_SEEN").parse().unwrap();
    let lease = store.claim(&session, &lead, seen, claim, &node).await;
    assert!(lease.unwrap().is_some());
    let file = store.file(&session).await.unwrap();
    let begin = sqlx::query("BEGIN IMMEDIATE");
    file.db.execute(begin).await.unwrap();
    println!("\nin a transaction");
    std::thread::sleep(Duration::from_secs(120));
}

/// A process that is stopped in a transaction blocks every claim until it is killed. It is not
/// killed while it runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_is_ended_only_while_it_is_stopped() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let mut holder = Writer::hold(folder.path(), &NodeId::mint(), &team, 1);
    let me = NodeId::mint();
    let options = SqliteOptions {
        busy: Duration::from_millis(200),
        ..folder.options()
    };
    let store = SqliteStore::open(options, &me).await.unwrap();
    let lead = LeaseClaim::Lead { after_death: true };
    let claim = || store.claim(&team.session, team.lead(), 2, lead.clone(), &me);

    assert!(matches!(claim().await, Err(StoreError::Away(_))));
    assert!(!store.end_stopped_node(&holder.node).await.unwrap());
    assert!(holder.child.try_wait().unwrap().is_none(), "it still runs");

    planck_tests::process::freeze(holder.pid()).unwrap();
    assert_eq!(store.node_lives(&holder.node).await.unwrap(), Some(true));
    assert!(matches!(claim().await, Err(StoreError::Away(_))));
    assert!(store.end_stopped_node(&holder.node).await.unwrap());
    assert_eq!(store.node_lives(&holder.node).await.unwrap(), Some(false));
    assert!(!store.end_stopped_node(&holder.node).await.unwrap());
    assert!(claim().await.unwrap().is_some());
    assert!(holder.child.wait().unwrap().signal() == Some(Signal::SIGKILL as i32));
}

/// The lock file of a dead node may contain a pid that another process has now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_that_got_the_pid_later_is_left_alone() {
    let folder = Folder::new();
    let team = Team::start(&folder, 1).await;
    let holder = Writer::hold(folder.path(), &NodeId::mint(), &team, 1);
    planck_tests::process::freeze(holder.pid()).unwrap();
    let file = folder
        .path()
        .join(".nodes")
        .join(format!("{}.lock", holder.node));
    let text = std::fs::read_to_string(&file).unwrap();
    let words: Vec<_> = text.split(' ').collect();
    let earlier = words[1].parse::<u64>().unwrap() - 1;
    std::fs::write(&file, format!("{} {earlier} {}", words[0], words[2])).unwrap();
    assert!(!team.store.end_stopped_node(&holder.node).await.unwrap());
    std::fs::write(&file, text).unwrap();
    assert!(team.store.end_stopped_node(&holder.node).await.unwrap());
}
