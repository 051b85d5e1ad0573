//! Runs a workload in a program of another library, such as `bench/rig`, for comparison.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Output,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use tokio::{process::Command, time::timeout};

use super::{
    measure::BenchLine,
    once::{Once, PATIENCE},
    workload::{FILE, lines},
};

/// The line of JSON that the program prints.
#[derive(Debug, Deserialize)]
struct PeerLine {
    /// How many times the workload was repeated while it was measured.
    waves: usize,
    /// The number of tool calls whose results the agents got.
    calls: usize,
    wall_s: f64,
    cpu_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    peak_kib: u64,
}

/// Runs one repetition. Fails if the program did not make the calls of the workload.
pub async fn run(program: &Path, once: &Once) -> Result<BenchLine> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join(FILE);
    std::fs::write(&file, lines())?;
    let mut command = Command::new(program);
    command.args(arguments(once, file)).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output())
        .await
        .with_context(|| format!("{} does not end", program.display()))?
        .with_context(|| format!("cannot run {}", program.display()))?;
    bench_line(once, &output).with_context(|| format!("{} failed", program.display()))
}

fn arguments(once: &Once, file: PathBuf) -> Vec<OsString> {
    let workload = once.workload;
    let mut arguments: Vec<OsString> = vec![
        format!("--workload={}", workload.name()).into(),
        format!("--agents={}", once.size.agents).into(),
        format!("--turns={}", workload.turns()).into(),
        format!("--model={}", once.model).into(),
        "--file".into(),
        file.into(),
    ];
    arguments.extend(workload.is_short().then(|| "--repeat".into()));
    arguments
}

fn bench_line(once: &Once, output: &Output) -> Result<BenchLine> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("it ended with {}: {said}", output.status);
    }
    let line: PeerLine =
        serde_json::from_slice(&output.stdout).context("it printed no line of a repetition")?;
    let (workload, agents) = (once.workload, once.size.agents * line.waves);
    let tools = agents * workload.tools();
    if line.calls != tools {
        bail!("it made {} tool calls, not {tools}", line.calls);
    }
    Ok(BenchLine {
        workload: workload.name().into(),
        contender: once.contender,
        turns: agents * workload.turns(),
        wall_s: line.wall_s,
        cpu_s: line.cpu_s,
        start_wall_s: 0.0,
        start_cpu_s: 0.0,
        aux_cpu_s: 0.0,
        p50_ms: line.p50_ms,
        p99_ms: line.p99_ms,
        peak_kib: line.peak_kib,
        deltas: agents * workload.deltas(),
        tools,
        idle: None,
    })
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

    use super::*;
    use crate::{measure::Contender, workload::Workload};

    fn once() -> Once {
        Once {
            workload: Workload::Rounds,
            size: Workload::Rounds.size(None, None),
            model: "http://127.0.0.1:1".into(),
            server: None,
            nats_pid: None,
            contender: Contender::Peer,
        }
    }

    fn said(status: i32, stdout: String, stderr: &str) -> Result<BenchLine> {
        let output = Output {
            status: ExitStatus::from_raw(status),
            stdout: stdout.into_bytes(),
            stderr: stderr.into(),
        };
        bench_line(&once(), &output)
    }

    fn line(calls: usize) -> String {
        format!(
            r#"{{"waves":2,"calls":{calls},"wall_s":1,"cpu_s":0.5,"p50_ms":3,"p99_ms":4,"peak_kib":5}}"#
        )
    }

    #[test]
    fn line_of_a_peer_counts_all_its_waves() {
        let line = said(0, line(100), "").unwrap();
        assert_eq!((line.turns, line.tools, line.deltas), (2, 100, 2));
        assert_eq!(line.contender, Contender::Peer);
    }

    #[test]
    fn peer_that_left_out_calls_is_refused() {
        let refused = said(0, line(99), "").unwrap_err().to_string();
        assert_eq!(refused, "it made 99 tool calls, not 100");
    }

    #[test]
    fn failure_of_a_peer_is_shown() {
        let refused = said(3 << 8, String::new(), "no model").unwrap_err();
        assert!(refused.to_string().contains("no model"), "{refused:#}");
    }
}
