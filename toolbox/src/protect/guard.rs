//! Records the protected files of a root before a call, and compares them with the record
//! afterwards. Concurrent calls in the same root share one record, so that a change by one call
//! never becomes part of the record of another.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    record::ProtectionRecord,
    restore::{RestoreReport, restore},
    tree::Tree,
    undone::UndoneChanges,
};

/// The roots in which calls of this process are running. Clones share them. Two nodes that use the
/// same folder do not share them, so neither takes the other's calls into account.
#[derive(Debug, Clone)]
pub struct Guards {
    roots: Arc<Mutex<HashMap<PathBuf, Arc<Mutex<GuardedRoot>>>>>,
    undone: UndoneChanges,
}

/// The state of one root while calls are running in it.
#[derive(Debug, Default)]
struct GuardedRoot {
    calls: usize,
    /// The record, or the reason why it could not be taken. `None` if no call is running.
    record: Option<Result<(Tree, ProtectionRecord), String>>,
}

/// The guard of the protected files during one call. [`end`](Self::end) compares the files with the
/// record and undoes the changes. All processes of the call must be dead by then. Dropping the
/// guard does the same, but returns no report.
#[derive(Debug)]
pub struct Guard {
    guards: Guards,
    roots: Vec<PathBuf>,
}

impl Guards {
    pub fn new(undone: UndoneChanges) -> Self {
        Self {
            roots: Arc::default(),
            undone,
        }
    }

    /// Records the protected files of each root in which no other call is running, and returns a
    /// guard for one call. This function reads files, so it may block.
    pub fn begin(&self, roots: &[PathBuf]) -> Guard {
        for root in roots {
            // The entry is cloned while the map is locked. Otherwise the end of the root's last
            // call could remove the entry in the meantime.
            let watch = Arc::clone(lock(&self.roots).entry(root.clone()).or_default());
            let mut watch = lock(&watch);
            if watch.calls == 0 {
                watch.record = Some(record(root));
            }
            watch.calls += 1;
        }
        Guard {
            guards: self.clone(),
            roots: roots.to_vec(),
        }
    }

    fn leave(&self, root: &Path) -> RestoreReport {
        let Some(watch) = lock(&self.roots).get(root).cloned() else {
            return RestoreReport::default();
        };
        let report = compare(&mut lock(&watch), &self.undone);
        let mut all = lock(&self.roots);
        // A count of 2 means that only the map and this function hold a reference, so no other call
        // is beginning in this root.
        if Arc::strong_count(&watch) == 2 && lock(&watch).calls == 0 {
            all.remove(root);
        }
        report
    }
}

fn record(root: &Path) -> Result<(Tree, ProtectionRecord), String> {
    let tree = Tree::open(root).map_err(|why| {
        tracing::warn!(root = %root.display(), %why, "cannot record protected files before a call");
        format!("{}: {why}", root.display())
    })?;
    let record = ProtectionRecord::take(&tree);
    Ok((tree, record))
}

fn compare(watch: &mut GuardedRoot, undone: &UndoneChanges) -> RestoreReport {
    let report = match &watch.record {
        Some(Ok((tree, record))) => restore(tree, record, undone),
        Some(Err(why)) => RestoreReport::unguarded(why),
        None => RestoreReport::default(),
    };
    watch.calls -= 1;
    if watch.calls == 0 {
        watch.record = None;
    }
    report
}

impl Guard {
    /// Compares the files with the record, and undoes the changes. Returns a report for each root
    /// with changes, and for each root that could not be compared. This function reads and writes
    /// files, so it may block.
    pub fn end(mut self) -> Vec<RestoreReport> {
        self.leave()
    }

    fn leave(&mut self) -> Vec<RestoreReport> {
        let mut reports = Vec::new();
        for root in std::mem::take(&mut self.roots) {
            let report = self.guards.leave(&root);
            if report.has_changes() {
                tracing::warn!(root = %root.display(), %report, "a tool changed protected files");
            }
            if !report.is_empty() {
                reports.push(report);
            }
        }
        reports
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.leave();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
