//! Finds all processes that inherited a certain environment variable, however they were started.

use std::{
    ffi::OsString,
    fs,
    time::{Duration, Instant},
};

use nix::unistd::Pid;

/// The value of an environment variable that only the processes of one test have.
pub struct Mark(String);

impl Mark {
    pub fn new() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }

    pub fn named(name: String) -> Self {
        Self(name)
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    pub fn variable(&self) -> (OsString, OsString) {
        ("MARK".into(), self.0.clone().into())
    }

    /// Returns the processes that inherited the variable, and the reapers that are parents of such
    /// processes, because only root can read the environment of a reaper. A dead process has no
    /// environment, so it is left out.
    pub fn pids(&self) -> Vec<Pid> {
        let wanted = format!("MARK={}", self.0);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let all: Vec<Pid> = entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
            .collect();
        let is_marked = |pid: &Pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted.as_bytes())
        };
        let (marked, others): (Vec<Pid>, Vec<Pid>) = all.into_iter().partition(is_marked);
        let is_reaper = |pid: &Pid| {
            let children =
                fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            let mut children = children
                .split_whitespace()
                .filter_map(|child| child.parse().ok().map(Pid::from_raw));
            command_line(*pid).starts_with("planck reap ")
                && children.any(|child| marked.contains(&child))
        };
        let reapers: Vec<Pid> = others.into_iter().filter(is_reaper).collect();
        [marked, reapers].concat()
    }

    pub fn living(&self) -> Vec<String> {
        self.pids()
            .into_iter()
            .map(|pid| format!("{pid} {}", command_line(pid)))
            .collect()
    }

    pub async fn grows_to(&self, least: usize) {
        self.eventually(Duration::from_secs(20), |living| living.len() >= least)
            .await;
    }

    pub async fn dies_out(&self, limit: Duration) {
        self.eventually(limit, <[String]>::is_empty).await;
    }

    async fn eventually(&self, limit: Duration, wanted: impl Fn(&[String]) -> bool) {
        let deadline = Instant::now() + limit;
        loop {
            let living = self.living();
            if wanted(&living) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "after {limit:?} there are {living:#?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub fn command_line(pid: Pid) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}
