//! Tests of `planck reap` with real process trees: no process of a command is left behind when the
//! command, its reaper or the node ends.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

#[path = "reap/limits.rs"]
mod limits;
#[path = "reap/marked.rs"]
mod marked;
#[path = "reap/piped.rs"]
mod piped;

use std::{
    env,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use marked::Mark;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_toolbox::{
    Launcher, ReaperHeartbeat, process::CommandEnd, process::Finished, process::Launch,
};
use tokio_util::sync::CancellationToken;

const PLANCK: &str = env!("CARGO_BIN_EXE_planck");
/// The time between two heartbeats to the reapers.
const INTERVAL: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(600);

/// Commands, most of whose processes try to escape. Each is followed by the number of processes,
/// with its reaper, that it must reach.
const TREES: &[(&str, usize)] = &[
    ("sleep 1000", 2),
    ("trap '' TERM HUP INT; sleep 1000 & sleep 1000 & wait", 4),
    ("(setsid sh -c 'sleep 1000 & sleep 1000' &); sleep 1000", 5),
    (
        "(setsid sh -c '(setsid sleep 1000 &) ; exit' &) ; sleep 1000",
        3,
    ),
    ("setsid nohup sleep 1000 >/dev/null 2>&1 & sleep 1000", 3),
    ("sleep 1000 & kill -STOP $!; sleep 1000", 3),
    (
        "for i in $(seq 100); do setsid sleep 1000 & done; sleep 1000",
        100,
    ),
    (
        "(while :; do setsid sleep 1000 & sleep 0.01; done) & sleep 1000",
        10,
    ),
    ("hop() { sleep 0.005; hop & }; hop; hop; hop; sleep 1000", 5),
    ("exec >/dev/null 2>&1 </dev/null; cd /; sleep 1000", 2),
];

fn launch(command: &str, mark: &Mark) -> Launch {
    Launch {
        program: "bash".into(),
        args: vec!["-c".into(), command.into()],
        dir: env::temp_dir(),
        env: vec![
            ("PATH".into(), env::var_os("PATH").unwrap()),
            mark.variable(),
        ],
        sandbox: None,
        input: Vec::new(),
        keep: 1000,
    }
}

async fn run(
    launcher: &Launcher,
    command: &str,
    mark: &Mark,
    limit: Duration,
    cancel: &CancellationToken,
) -> Finished {
    launcher
        .run(&launch(command, mark), limit, cancel)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_leaves_nothing() {
    let launcher = Launcher::alone(PLANCK.into());
    for (command, least) in TREES {
        let (mark, cancel) = (Mark::new(), CancellationToken::new());
        let (finished, ()) = tokio::join!(run(&launcher, command, &mark, LONG, &cancel), async {
            mark.grows_to(*least).await;
            cancel.cancel();
        });
        assert_eq!(finished.end, CommandEnd::Aborted, "{command}");
        assert_eq!(mark.living(), Vec::<String>::new(), "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_leaves_nothing_and_keeps_the_output() {
    let launcher = Launcher::alone(PLANCK.into());
    let mark = Mark::new();
    let command = "echo one; echo two >&2; (setsid sleep 1000 &); sleep 1000";
    let finished = run(
        &launcher,
        command,
        &mark,
        Duration::from_secs(2),
        &CancellationToken::new(),
    )
    .await;
    assert_eq!(finished.end, CommandEnd::TimedOut);
    assert_eq!(
        (finished.stdout.text.as_str(), finished.stderr.text.as_str()),
        ("one\n", "two\n")
    );
    assert_eq!(mark.living(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_left_by_a_command_end_with_it() {
    let launcher = Launcher::alone(PLANCK.into());
    for (command, code, signal) in [
        ("(setsid sleep 1000 &); exit 3", Some(3), None),
        ("sleep 1000 & disown; exit 0", Some(0), None),
        (
            "setsid sh -c 'sleep 1000 & sleep 1000' & kill -TERM $$",
            None,
            Some(Signal::SIGTERM),
        ),
        // The reaper reports a signal that has no name as SIGKILL.
        (
            "(setsid bash -c 'kill -RTMIN $$' &); (setsid sleep 1000 &); kill -RTMIN $$",
            None,
            Some(Signal::SIGKILL),
        ),
    ] {
        let mark = Mark::new();
        let finished = run(&launcher, command, &mark, LONG, &CancellationToken::new()).await;
        let CommandEnd::Exited(status) = finished.end else {
            panic!("{command}: {:?}", finished.end)
        };
        assert_eq!(status.code(), code, "{command}");
        assert_eq!(
            status.signal(),
            signal.map(|signal| signal as i32),
            "{command}"
        );
        assert_eq!(mark.living(), Vec::<String>::new(), "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_leaves_nothing() {
    let launcher = Launcher::watched(PLANCK.into(), ReaperHeartbeat::new(10 * INTERVAL));
    let (mark, cancel) = (Mark::new(), CancellationToken::new());
    tokio::select! {
        _ = run(&launcher, "(setsid sleep 1000 &); sleep 1000", &mark, LONG, &cancel) => panic!("it should not end"),
        () = mark.grows_to(3) => {}
    }
    mark.dies_out(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_and_endless_output_are_passed_on() {
    let launcher = Launcher::alone(PLANCK.into());
    let (mark, cancel) = (Mark::new(), CancellationToken::new());
    let input = b"0123456789".repeat(100_000);
    let counted = Launch {
        input: input.clone(),
        ..launch("wc -c", &mark)
    };
    assert_eq!(
        launcher
            .run(&counted, LONG, &cancel)
            .await
            .unwrap()
            .stdout
            .text
            .trim(),
        "1000000"
    );
    let ignored = Launch {
        input,
        ..launch("exit 4", &mark)
    };
    let CommandEnd::Exited(status) = launcher.run(&ignored, LONG, &cancel).await.unwrap().end
    else {
        panic!()
    };
    assert_eq!(status.code(), Some(4), "a command need not read its input");
    let flood = run(
        &launcher,
        "head -c 300000000 /dev/zero | tr '\\0' x",
        &mark,
        LONG,
        &cancel,
    )
    .await;
    assert_eq!(
        (flood.stdout.text.len(), flood.stdout.truncated),
        (1000, true)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reaper_that_is_asked_to_end_takes_all_along_and_a_killed_one_the_command() {
    let launcher = Launcher::alone(PLANCK.into());
    for command in [
        "(setsid sleep 1000 &); kill -TERM $PPID; sleep 1000",
        "kill -KILL $PPID; exec sleep 1000",
    ] {
        let mark = Mark::new();
        let finished = run(&launcher, command, &mark, LONG, &CancellationToken::new()).await;
        let CommandEnd::Exited(status) = finished.end else {
            panic!("{:?}", finished.end)
        };
        assert_eq!(status.signal(), Some(9), "{command}");
        mark.dies_out(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_started_is_an_error() {
    let launcher = Launcher::alone(PLANCK.into());
    let (mark, cancel) = (Mark::new(), CancellationToken::new());
    let missing = Launch {
        program: "no-such-program".into(),
        ..launch("", &mark)
    };
    let finished = launcher.run(&missing, LONG, &cancel).await.unwrap();
    let CommandEnd::Exited(status) = finished.end else {
        panic!("{:?}", finished.end)
    };
    assert_eq!(status.code(), Some(127));
    assert!(
        finished
            .stderr
            .text
            .contains("cannot start no-such-program: No such file"),
        "{}",
        finished.stderr.text
    );
    assert!(
        Launcher::alone("/no/planck".into())
            .run(&missing, LONG, &cancel)
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_node_leaves_nothing() {
    for (command, least) in TREES {
        for watched in ["", "yes"] {
            let mark = Mark::new();
            let node = start_node(command, watched, &mark);
            mark.grows_to(*least).await;
            drop(node);
            mark.dies_out(Duration::from_secs(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_leaves_nothing_in_a_cluster_and_everything_when_alone() {
    let command = "(setsid sh -c 'sleep 1000 & sleep 1000' &); sleep 1000";
    let (watched, alone) = (Mark::new(), Mark::new());
    let nodes = [
        start_node(command, "yes", &watched),
        start_node(command, "", &alone),
    ];
    watched.grows_to(5).await;
    alone.grows_to(5).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(watched.living().len() >= 5, "the heartbeat keeps it alive");
    let stopped = Instant::now();
    for node in &nodes {
        kill(
            Pid::from_raw(node.0.id().try_into().unwrap()),
            Signal::SIGSTOP,
        )
        .unwrap();
    }
    watched.dies_out(Duration::from_secs(6)).await;
    assert!(
        stopped.elapsed() > Duration::from_millis(2200),
        "not before its time"
    );
    assert!(alone.living().len() >= 5, "a laptop may sleep");
    drop(nodes);
    alone.dies_out(Duration::from_secs(5)).await;
}

/// The test stops the node and its reaper together, as a pause of the whole machine does. The
/// reaper must count the pause as silence of the node, because the node cannot notice it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_of_the_whole_machine_counts() {
    let mark = Mark::new();
    let node = start_node("sleep 1000", "yes", &mark);
    mark.grows_to(2).await;
    let reaper = mark
        .pids()
        .into_iter()
        .find(|pid| marked::command_line(*pid).contains("--watch"))
        .unwrap();
    let both = [Pid::from_raw(node.0.id().try_into().unwrap()), reaper];
    both.iter()
        .for_each(|pid| kill(*pid, Signal::SIGSTOP).unwrap());
    tokio::time::sleep(Duration::from_millis(2800)).await;
    both.iter()
        .for_each(|pid| kill(*pid, Signal::SIGCONT).unwrap());
    mark.dies_out(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_stops_its_reaper_is_ended_long_before_its_time() {
    let launcher = Launcher::alone(PLANCK.into());
    let mark = Mark::new();
    let begun = Instant::now();
    let finished = run(
        &launcher,
        "(setsid sleep 1000 &); kill -STOP $PPID; sleep 1000",
        &mark,
        LONG,
        &CancellationToken::new(),
    )
    .await;
    let CommandEnd::Exited(status) = finished.end else {
        panic!("{:?}", finished.end)
    };
    assert_eq!((status.signal(), finished.left), (Some(9), Vec::new()));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(mark.living(), Vec::<String>::new());
}

/// A node process. Dropping this value kills it.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this test binary again as a node that runs one command.
fn start_node(command: &str, watched: &str, mark: &Mark) -> Node {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "node"])
        .env("NODE_COMMAND", command)
        .env("NODE_WATCHED", watched)
        .env("NODE_MARK", mark.name())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Node(child.unwrap())
}

/// The process that [`start_node`] starts and a test kills. It is a test because only this binary
/// contains the launcher and the helpers; without the variables of `start_node` it has no command.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is no check: start_node runs it as a child process with `--ignored --exact node`"]
async fn node() {
    let heartbeat = ReaperHeartbeat::new(10 * INTERVAL);
    let beating = heartbeat.clone();
    std::thread::spawn(move || {
        loop {
            beating.beat();
            std::thread::sleep(INTERVAL);
        }
    });
    let launcher = match env::var("NODE_WATCHED").unwrap().as_str() {
        "" => Launcher::alone(PLANCK.into()),
        _ => Launcher::watched(PLANCK.into(), heartbeat),
    };
    let mark = Mark::named(env::var("NODE_MARK").unwrap());
    run(
        &launcher,
        &env::var("NODE_COMMAND").unwrap(),
        &mark,
        LONG,
        &CancellationToken::new(),
    )
    .await;
}
