//! Commands whose stdin is the pipe to their reaper.

use std::time::{Duration, Instant};

use planck_toolbox::{Launcher, process::PipedCommand};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::{PLANCK, TREES, launch, marked::Mark};

fn start(command: &str, mark: &Mark) -> PipedCommand {
    Launcher::alone(PLANCK.into())
        .start_piped(&launch(command, mark))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piped_command_reads_and_answers_until_its_input_ends() {
    let mark = Mark::new();
    let mut command = start("cat; echo end", &mark);
    let mut lines = BufReader::new(command.stdout).lines();
    for _ in 0..3 {
        command.stdin.write_all(b"hello\n").await.unwrap();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "hello");
    }
    drop(command.stdin);
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "end");
    let (status, left) = command.process.ended().await;
    assert!(status.success() && left.is_empty(), "{status:?}");
    assert_eq!(mark.living(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piped_command_that_ignores_the_end_of_its_input_is_killed() {
    let mark = Mark::new();
    let mut command = start("trap '' TERM; sleep 1000 & sleep 1000; sleep 1000", &mark);
    mark.grows_to(3).await;
    let began = Instant::now();
    drop(command.stdin);
    let (status, left) = command.process.ended().await;
    let took = began.elapsed();
    assert!(!status.success() && left.is_empty(), "{status:?}");
    assert!(took >= Duration::from_millis(1900), "{took:?}");
    assert_eq!(mark.living(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_piped_command_that_is_ended() {
    for (tree, least) in TREES {
        let mark = Mark::new();
        let command = start(tree, &mark);
        mark.grows_to(*least).await;
        assert_eq!(command.process.end().await, [], "{tree}");
        assert_eq!(mark.living(), Vec::<String>::new(), "{tree}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piped_command_that_exits_ends_its_output() {
    let mark = Mark::new();
    let mut command = start("(setsid sleep 1000 &); echo gone >&2; exit 3", &mark);
    let mut said = String::new();
    command.stderr.read_to_string(&mut said).await.unwrap();
    let (status, _) = command.process.ended().await;
    assert_eq!((status.code(), said.as_str()), (Some(3), "gone\n"));
    assert_eq!(mark.living(), Vec::<String>::new());
}
