//! What a repetition cost: CPU, time, memory.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike as _,
};
use serde::{Deserialize, Serialize};

/// One repetition, as it is printed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    pub workload: String,
    /// The loop that does the same HTTP and nothing else.
    pub bare: bool,
    pub turns: usize,
    pub wall_s: f64,
    pub cpu_s: f64,
    /// Of the NATS server.
    pub aux_cpu_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub peak_kib: u64,
    pub deltas: usize,
    pub tools: usize,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
}

/// What idle agents hold, over what the process held without them.
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

    /// From the start of this process; its wall time from now on.
    pub fn of_process() -> Self {
        Self {
            began: Instant::now(),
            cpu: Duration::ZERO,
        }
    }

    /// Wall and CPU time in seconds.
    pub fn end(&self) -> (f64, f64) {
        (
            self.began.elapsed().as_secs_f64(),
            cpu().saturating_sub(self.cpu).as_secs_f64(),
        )
    }
}

/// What this process has used, on all its threads.
fn cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// What another process has used: the scheduler counts in nanoseconds, thread by thread.
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

/// `VmHWM` (the most it ever was), `VmRSS` (now) or `RssAnon` (now, without what is but read from
/// files) of this process.
pub fn memory_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// The time within which this share of them was done, in milliseconds.
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
    fn quantiles_are_times_that_were_measured() {
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
    fn work_costs_what_the_kernel_says() {
        let span = Span::begin();
        while span.end().1 < 0.02 {
            std::hint::black_box(fs::read_to_string("/proc/self/stat").unwrap());
        }
        assert!(cpu_of(std::process::id()) >= Duration::from_millis(15));
        let now = memory_kib("VmRSS");
        assert!(now > 0 && memory_kib("VmHWM") >= now);
    }
}
