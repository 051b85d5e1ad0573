//! Measures the cost of a repetition: CPU time, wall time and memory.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::{Deserialize, Serialize};

/// The measurements of one repetition, as they are printed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BenchLine {
    pub workload: String,
    /// Whether this was the bare loop, which only sends the HTTP requests.
    pub bare: bool,
    pub turns: usize,
    pub wall_s: f64,
    pub cpu_s: f64,
    /// The CPU time of the NATS server in seconds.
    pub aux_cpu_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub peak_kib: u64,
    pub deltas: usize,
    pub tools: usize,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
}

/// The memory of idle agents in KiB, without the memory of the process itself.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Idle {
    pub agents: usize,
    pub loaded_kib: u64,
    pub parked_kib: u64,
}

/// An interval in which wall and CPU time are measured.
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

    /// Begins an interval whose CPU time counts from the start of this process, and whose wall time
    /// counts from now.
    pub fn of_process() -> Self {
        Self {
            began: Instant::now(),
            cpu: Duration::ZERO,
        }
    }

    /// Returns the wall time and the CPU time since the beginning, in seconds.
    pub fn end(&self) -> (f64, f64) {
        (
            self.began.elapsed().as_secs_f64(),
            cpu().saturating_sub(self.cpu).as_secs_f64(),
        )
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

/// Returns a field of `/proc/self/status` in KiB, or 0 if it cannot be read. The fields are `VmHWM`
/// (peak memory), `VmRSS` (current memory) and `RssAnon` (current memory without mapped files).
pub fn memory_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
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
        let span = Span::begin();
        while span.end().1 < 0.02 {
            std::hint::black_box(fs::read_to_string("/proc/self/stat").unwrap());
        }
        assert!(cpu_of(std::process::id()) >= Duration::from_millis(15));
        let now = memory_kib("VmRSS");
        assert!(now > 0 && memory_kib("VmHWM") >= now);
    }
}
