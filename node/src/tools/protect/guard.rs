//! Watches over the protected files of the roots that calls work in. Calls that run beside each
//! other in one root share one record, so that none takes for its own beginning what another one
//! has just changed.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    record::Record,
    restore::{Report, restore},
    tree::Tree,
    undone::Undone,
};

/// Those of a process. Cheap to clone. Two nodes in one folder do not know of each other's calls.
#[derive(Debug, Clone)]
pub struct Guards {
    roots: Arc<Mutex<HashMap<PathBuf, Arc<Mutex<Watch>>>>>,
    undone: Undone,
}

/// One root while calls run in it.
#[derive(Debug, Default)]
struct Watch {
    calls: usize,
    record: Option<(Tree, Record)>,
}

/// Of one call. [`end`](Self::end) compares when all of its processes are dead; so does dropping
/// it, without a report.
#[derive(Debug)]
pub struct Guard {
    guards: Guards,
    roots: Vec<PathBuf>,
}

impl Guards {
    pub fn new(undone: Undone) -> Self {
        Self {
            roots: Arc::default(),
            undone,
        }
    }

    /// Records what is protected in the roots. Reads files, so it may block.
    pub fn begin(&self, roots: &[PathBuf]) -> Guard {
        for root in roots {
            // Taken while the map is locked, so that the last call of the root does not forget it
            // meanwhile.
            let watch = Arc::clone(lock(&self.roots).entry(root.clone()).or_default());
            let mut watch = lock(&watch);
            if watch.calls == 0 {
                watch.record = record(root);
            }
            watch.calls += 1;
        }
        Guard {
            guards: self.clone(),
            roots: roots.to_vec(),
        }
    }

    fn leave(&self, root: &Path) -> Report {
        let Some(watch) = lock(&self.roots).get(root).cloned() else {
            return Report::default();
        };
        let report = compare(&mut lock(&watch), root, &self.undone);
        let mut all = lock(&self.roots);
        // The map's and this one: no call has begun meanwhile.
        if Arc::strong_count(&watch) == 2 && lock(&watch).calls == 0 {
            all.remove(root);
        }
        report
    }
}

fn record(root: &Path) -> Option<(Tree, Record)> {
    match Tree::open(root).and_then(|tree| Record::take(&tree).map(|record| (tree, record))) {
        Ok(taken) => Some(taken),
        Err(why) => {
            tracing::warn!(root = %root.display(), %why, "cannot record protected files before a call");
            None
        }
    }
}

fn compare(watch: &mut Watch, root: &Path, undone: &Undone) -> Report {
    let compared = watch.record.as_ref().map_or_else(
        || Ok(Report::default()),
        |(tree, record)| restore(tree, record, undone),
    );
    watch.calls -= 1;
    if watch.calls == 0 {
        watch.record = None;
    }
    compared.unwrap_or_else(|why| {
        tracing::warn!(root = %root.display(), %why, "cannot compare protected files after a call");
        Report::default()
    })
}

impl Guard {
    /// Undoes what changed, and says what that was. Reads files, so it may block.
    pub fn end(mut self) -> Vec<Report> {
        self.leave()
    }

    fn leave(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        for root in std::mem::take(&mut self.roots) {
            let report = self.guards.leave(&root);
            if !report.is_empty() {
                tracing::warn!(root = %root.display(), %report, "a tool changed protected files");
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
