//! The cost of a repetition: CPU, time and memory.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::{Deserialize, Serialize};

/// One repetition in the form in which it is printed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchLine {
    pub workload: String,
    /// Whether this is the loop that only sends the HTTP requests.
    pub bare: bool,
    pub turns: usize,
    pub wall_s: f64,
    pub cpu_s: f64,
    /// The CPU time of the NATS server.
    pub aux_cpu_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub peak_kib: u64,
    pub deltas: usize,
    pub tools: usize,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
}

/// The memory of idle agents in KiB, beyond that of the process without agents.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Idle {
    pub agents: usize,
    pub loaded_kib: u64,
    pub parked_kib: u64,
}

/// A span of work.
pub struct Span {
    began: Instant,
    cpu: Duration,
}

impl Span {
    pub fn begin() -> Self {
        Self {
            began: Instant::now(),
            cpu: cpu(),
        }
    }

    /// Begins a span that has the CPU time since this process started, and the wall time from now
    /// on.
    pub fn of_process() -> Self {
        Self {
            began: Instant::now(),
            cpu: Duration::ZERO,
        }
    }

    /// Returns the wall and CPU time in seconds.
    pub fn end(&self) -> (f64, f64) {
        (
            self.began.elapsed().as_secs_f64(),
            cpu().saturating_sub(self.cpu).as_secs_f64(),
        )
    }
}

/// Returns the CPU time that this process has used on all threads.
fn cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns the CPU time that another process has used. The scheduler counts it in nanoseconds for
/// each thread.
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

/// Returns a field of this process's memory status in KiB: `VmHWM` (the peak), `VmRSS` (now) or
/// `RssAnon` (now, without pages that only map files).
pub fn memory_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the time within which this share of the durations lies, in milliseconds.
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
        let span = Span::begin();
        while span.end().1 < 0.02 {
            std::hint::black_box(fs::read_to_string("/proc/self/stat").unwrap());
        }
        assert!(cpu_of(std::process::id()) >= Duration::from_millis(15));
        let now = memory_kib("VmRSS");
        assert!(now > 0 && memory_kib("VmHWM") >= now);
    }
}
