//! Measures the cost of a repetition: CPU time, wall time and memory.

use std::{
    fs,
    ops::AddAssign,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::{Deserialize, Serialize};

use super::workload::Workload;

/// How long a short workload is repeated at least while it is measured.
pub const LEAST: Duration = Duration::from_millis(500);

/// The measurements of one repetition, as they are printed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchLine {
    pub workload: String,
    pub contender: Contender,
    pub turns: usize,
    /// The time of all turns in seconds.
    pub wall_s: f64,
    /// The CPU time of all turns in seconds.
    pub cpu_s: f64,
    /// The time in which the sessions and agents of these turns were started, in seconds.
    pub start_wall_s: f64,
    /// The CPU time of starting them, in seconds.
    pub start_cpu_s: f64,
    /// The CPU time that the NATS server used during the turns, in seconds.
    pub aux_cpu_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub peak_kib: u64,
    pub deltas: usize,
    pub tools: usize,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
}

/// The program that did the work of a repetition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    Node,
    /// The bare loop, which only sends the HTTP requests
    Bare,
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Bare => "bare",
        }
    }
}

/// The memory of idle agents in KiB, without the memory of the process itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Idle {
    pub agents: usize,
    pub loaded_kib: u64,
    pub parked_kib: u64,
}

/// An amount of wall and CPU time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    pub wall: Duration,
    /// The CPU time of this process.
    pub cpu: Duration,
    /// The CPU time of the NATS server.
    pub nats: Duration,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, more: Self) {
        self.wall += more.wall;
        self.cpu += more.cpu;
        self.nats += more.nats;
    }
}

/// The measured repetitions of a workload in one process.
#[derive(Debug, Default)]
pub struct Waves {
    pub count: usize,
    /// The cost of starting sessions and agents.
    pub starts: Cost,
    /// The cost of the turns.
    pub turns: Cost,
    /// How long each turn took.
    pub times: Vec<Duration>,
    /// The peak memory of the process at the end of its first wave, in KiB.
    pub peak_kib: u64,
}

impl Waves {
    /// Adds the turns of one wave.
    pub fn add(&mut self, times: impl IntoIterator<Item = Duration>) {
        self.count += 1;
        self.times.extend(times);
        if self.peak_kib == 0 {
            self.peak_kib = memory_kib("VmHWM");
        }
    }
}

/// An interval in which wall and CPU time are measured.
pub struct Span {
    began: Instant,
    cpu: Duration,
    /// The process id of the NATS server, and the CPU time that it had used before.
    nats: Option<(u32, Duration)>,
}

impl Span {
    /// Begins an interval. `nats` is the process id of the NATS server, if there is one.
    pub fn begin(nats: Option<u32>) -> Self {
        Self {
            began: Instant::now(),
            cpu: cpu(),
            nats: nats.map(|pid| (pid, cpu_of(pid))),
        }
    }

    /// Begins an interval. If the workload measures the start of a process, the interval includes
    /// the CPU time that this process has used before.
    pub fn of(workload: Workload, nats: Option<u32>) -> Self {
        let mut span = Self::begin(nats);
        if workload == Workload::Start {
            span.cpu = Duration::ZERO;
        }
        span
    }

    /// Returns the time since the beginning.
    pub fn end(&self) -> Cost {
        Cost {
            wall: self.began.elapsed(),
            cpu: cpu().saturating_sub(self.cpu),
            nats: self.nats.map_or(Duration::ZERO, |(pid, before)| {
                cpu_of(pid).saturating_sub(before)
            }),
        }
    }
}

/// Returns the CPU time that all threads of this process have used.
fn cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns the CPU time that the living threads of a process have used, with a resolution of one
/// nanosecond.
pub fn cpu_of(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns a field of the status of this process in KiB, or 0 if it cannot be read. The fields are
/// `VmHWM` (peak memory), `VmRSS` (current memory) and `RssAnon` (current memory without mapped
/// files).
pub fn memory_kib(field: &str) -> u64 {
    memory_kib_of(std::process::id(), field)
}

/// Returns a field of the status of a process in KiB.
pub fn memory_kib_of(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the number of processes that ran or waited for a CPU in the last minute, on average, or
/// 0 if the system does not tell.
pub fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or_default()
}

/// Returns the quantile of the sorted durations for a share from 0 to 1, in milliseconds. Returns 0
/// if there are no durations.
pub fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted
        .get(at.saturating_sub(1))
        .map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_times() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(
            (
                quantile(&times, 0.5),
                quantile(&times, 0.99),
                quantile(&times[..1], 0.99)
            ),
            (50.0, 99.0, 1.0)
        );
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn cpu_time_and_memory_come_from_the_kernel() {
        let span = Span::begin(None);
        while span.end().cpu < Duration::from_millis(20) {
            std::hint::black_box(fs::read_to_string("/proc/self/stat").unwrap());
        }
        assert!(cpu_of(std::process::id()) >= Duration::from_millis(15));
        let now = memory_kib("VmRSS");
        assert!(now > 0 && memory_kib("VmHWM") >= now);
    }
}
