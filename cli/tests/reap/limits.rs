//! Tests of the resource limits of a command, and of the file descriptors that it inherits.

use std::{env, io, process::Command};

use super::*;
use planck_toolbox::reap::CommandLimits;

async fn limited(limits: CommandLimits, command: &str, mark: &Mark) -> Finished {
    run(
        &Launcher::alone(PLANCK.into()).limited(limits),
        command,
        mark,
        LONG,
        &CancellationToken::new(),
    )
    .await
}

fn signal_of(finished: &Finished) -> Option<i32> {
    match finished.end {
        CommandEnd::Exited(status) => status.signal(),
        CommandEnd::TimedOut | CommandEnd::Aborted => None,
    }
}

#[test]
fn a_command_inherits_its_standard_streams_only() {
    let (input, _alive) = io::pipe().unwrap();
    let script =
        format!("exec 9</ 37</etc/passwd 250</; exec {PLANCK} reap -- ls -l /proc/self/fd");
    let output = Command::new("bash")
        .args(["-c", &script])
        .stdin(input)
        .output()
        .unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let open: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_once(" -> ")?.0.split_whitespace().next_back())
        .collect();
    // `ls` itself has the folder open that it lists.
    assert_eq!(
        open,
        ["0", "1", "2", "3"],
        "{listed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_limited_and_is_the_first_to_die_when_memory_runs_out() {
    let command = "ulimit -n; ulimit -Hn; ulimit -f; ulimit -c; cat /proc/self/oom_score_adj";
    let finished = limited(
        CommandLimits {
            open_files: 99,
            file_size: 1 << 20,
            ..CommandLimits::default()
        },
        command,
        &Mark::new(),
    )
    .await;
    assert_eq!(
        finished.stdout.text, "99\n99\n1024\n0\n1000\n",
        "{}",
        finished.stderr.text
    );
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert_ne!(own.trim(), "1000", "the node's own score is left as it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_grows_only_to_its_limit() {
    let file = env::temp_dir().join(Mark::new().name());
    let command = format!("exec head -c 20000000 /dev/zero > {}", file.display());
    let finished = limited(
        CommandLimits {
            file_size: 1 << 20,
            ..CommandLimits::default()
        },
        &command,
        &Mark::new(),
    )
    .await;
    let length = std::fs::metadata(&file).unwrap().len();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(
        (signal_of(&finished), length),
        (Some(Signal::SIGXFSZ as i32), 1 << 20)
    );
}

/// Each of the first three commands starts at least 400 processes if it is not killed earlier. The
/// last one stays below the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_is_ended() {
    let limits = CommandLimits {
        processes: 60,
        ..CommandLimits::default()
    };
    for command in [
        "for i in $(seq 400); do setsid sleep 1000 & done; sleep 1000",
        "twice() { [ $1 -gt 8 ] && sleep 1000; twice $(($1+1)) & twice $(($1+1)) & wait; }; twice 0",
        "trap '' TERM; for i in $(seq 400); do (setsid bash -c 'trap \"\" TERM; (sleep 1000 & sleep 1000) & sleep 1000' &); done; sleep 1000",
    ] {
        let mark = Mark::new();
        let finished = limited(limits, command, &mark).await;
        assert_eq!(
            signal_of(&finished),
            Some(Signal::SIGKILL as i32),
            "{command}"
        );
        let told = "planck: ended: the command used more than 60 processes at one time (`tools.limits.processes`)";
        assert!(
            finished.stderr.text.contains(told),
            "{command}: {}",
            finished.stderr.text
        );
        assert_eq!(mark.living(), Vec::<String>::new(), "{command}");
    }
    let mark = Mark::new();
    let fits = limited(
        limits,
        "for i in $(seq 40); do sleep 1 & done; wait; echo done",
        &mark,
    )
    .await;
    assert_eq!(fits.stdout.text, "done\n", "{}", fits.stderr.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_counted_over_all_processes_and_shared_memory_once() {
    let limits = CommandLimits {
        memory: 200 << 20,
        ..CommandLimits::default()
    };
    let holds = |bytes: u32| format!("x=$(head -c {bytes} /dev/zero | tr '\\0' x)");
    // If `sleep` were the last command, it would replace the shell and free the shell's memory.
    let alone = format!("{}; sleep 1000; true", holds(250_000_000));
    let together = format!(
        "for i in 1 2 3; do ({}; sleep 1000; true) & done; wait",
        holds(80_000_000)
    );
    for command in [alone, together] {
        let mark = Mark::new();
        let finished = limited(limits, &command, &mark).await;
        assert_eq!(
            signal_of(&finished),
            Some(Signal::SIGKILL as i32),
            "{command}"
        );
        let told = "more than 200 MiB of memory at one time (`tools.limits.memory`)";
        assert!(
            finished.stderr.text.contains(told),
            "{command}: {}",
            finished.stderr.text
        );
        assert_eq!(mark.living(), Vec::<String>::new(), "{command}");
    }
    let shared = format!(
        "{}; for i in $(seq 8); do (sleep 1.5; true) & done; wait; echo done",
        holds(50_000_000)
    );
    let finished = limited(limits, &shared, &Mark::new()).await;
    assert_eq!(finished.stdout.text, "done\n", "{}", finished.stderr.text);
}
