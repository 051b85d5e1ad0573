//! Finds all processes that inherited an environment variable, even if they have left their group
//! and session.

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
};

static MARKERS: AtomicU32 = AtomicU32::new(0);

/// The value of an environment variable that only the processes of one test have.
pub struct Marker(String);

impl Marker {
    pub fn new() -> Self {
        Self(format!(
            "planck-{}-{}",
            std::process::id(),
            MARKERS.fetch_add(1, Ordering::Relaxed)
        ))
    }

    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns the number of living processes that have the variable. A dead process has no
    /// environment.
    pub fn count(&self) -> usize {
        self.pids().len()
    }

    /// Returns the ids of the living processes that have the variable.
    pub fn pids(&self) -> Vec<u32> {
        let wanted = format!("MARK={}", self.0);
        let marked = |folder: &fs::DirEntry| {
            let environment = fs::read(folder.path().join("environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted.as_bytes())
        };
        let marked = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter(marked);
        marked
            .filter_map(|folder| folder.file_name().to_str()?.parse().ok())
            .collect()
    }
}

/// Returns a command that prints `started` and then continues in several processes, most of which
/// have left its process group and its session.
pub fn escaping(marker: &Marker) -> String {
    format!(
        "export MARK={}; setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000; true' &); \
         (nohup sleep 1000 >/dev/null 2>&1 &); echo started; sleep 1000; true",
        marker.name()
    )
}
