//! Compares the protected files of a root before and after each call that starts processes. The
//! state before the call is stored until the call has ended without a change, or a person has kept
//! the change. So a node that is killed loses nothing: the session's next call compares again.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use planck_common::{
    CallId, SessionId,
    wait::{ChangeKind, ProtectedChange},
};

use super::{
    baseline::{Baseline, text_at},
    root::SeenEntries,
};
use crate::{Invocation, blocking};

/// The maximum number of bytes of a changed file that are shown, and of all changed files together.
const MOST_TEXT: usize = 16 << 10;
const MOST_TEXTS: usize = 64 << 10;

/// The maximum number of changes that are shown.
const MOST_CHANGES: usize = 100;

/// Stores the baselines of calls, where all nodes that may continue a session find them. The
/// baselines of a call are JSON that only this module reads.
#[async_trait]
pub trait CallBaselines: Send + Sync {
    /// Stores the baselines of a call that is about to start. If those of an earlier try of the call
    /// are stored, they stay.
    async fn put(&self, call: &Invocation, baselines: String) -> Result<(), String>;

    /// Returns the baselines of calls that ended with a change, and of calls that ran when their
    /// node was lost.
    async fn undecided(&self, session: &SessionId) -> Result<Vec<(CallId, String)>, String>;

    /// Records that a call ended with a change.
    async fn changed(&self, session: &SessionId, call: &CallId) -> Result<(), String>;

    async fn remove(&self, session: &SessionId, calls: &[CallId]) -> Result<(), String>;
}

/// The wall around the protected files. Clones share the store.
#[derive(Clone)]
pub struct Wall {
    store: Arc<dyn CallBaselines>,
    looks: Looks,
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wall")
    }
}

type RootBaselines = BTreeMap<PathBuf, Baseline>;

/// A call that is being watched.
pub(crate) struct WatchedCall {
    session: SessionId,
    call: CallId,
    before: RootBaselines,
}

impl Wall {
    pub fn new(store: Arc<dyn CallBaselines>) -> Self {
        Self {
            store,
            looks: Looks::default(),
        }
    }

    /// Returns the changes of earlier calls of a session about which no person has decided. No call
    /// of the session may run until then. A change that was put back needs no decision.
    pub async fn undecided(&self, session: &SessionId) -> Result<Vec<ProtectedChange>, String> {
        let stored = self.store.undecided(session).await?;
        if stored.is_empty() {
            return Ok(Vec::new());
        }
        let looks = self.looks.clone();
        let compared = move || {
            let compared = stored.into_iter().map(|stored| compare(&looks, stored));
            compared.collect::<Vec<_>>()
        };
        let mut changes = Vec::new();
        let mut unchanged = Vec::new();
        for (call, found) in blocking(compared).await? {
            match found.is_empty() {
                true => unchanged.push(call),
                false => changes.extend(found),
            }
        }
        if !unchanged.is_empty() {
            self.store.remove(session, &unchanged).await?;
        }
        Ok(bounded(changes))
    }

    /// Records the protected files before a call starts.
    pub(crate) async fn begin(
        &self,
        call: &Invocation,
        roots: Vec<PathBuf>,
    ) -> Result<WatchedCall, String> {
        let before = match self.looks.latest(roots.iter()) {
            Some(before) => before,
            None => {
                let looks = self.looks.clone();
                let before = blocking(move || looks.take(roots)).await?;
                before.map_err(|why| format!("cannot read its workspace: {why}"))?
            }
        };
        let stored = serde_json::to_string(&before).map_err(|why| why.to_string())?;
        self.store.put(call, stored).await?;
        Ok(WatchedCall {
            session: call.session_id.clone(),
            call: call.call_id.clone(),
            before,
        })
    }

    /// Returns what changed since [`begin`](Self::begin). All processes of the call must be dead. If
    /// this cannot be told, the error says why, and the next call of the session tries again.
    pub(crate) async fn end(&self, watched: WatchedCall) -> Result<Vec<ProtectedChange>, String> {
        let WatchedCall {
            session,
            call,
            before,
        } = watched;
        let changes = match self.looks.latest(before.keys()) {
            Some(now) if now == before => Vec::new(),
            Some(_) | None => {
                let (of, looks) = (call.clone(), self.looks.clone());
                blocking(move || changes(&looks, &of, &before)).await?
            }
        };
        if changes.is_empty() {
            self.remove_later(session, call);
        } else {
            tracing::warn!(%session, %call, paths = ?paths(&changes), "a call changed protected files");
            self.store.changed(&session, &call).await?;
        }
        Ok(bounded(changes))
    }

    /// Removes the baselines of a call that changed nothing. Its result does not wait for this. If the
    /// node is lost before, the session's next call compares once more.
    fn remove_later(&self, session: SessionId, call: CallId) {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            if let Err(why) = store.remove(&session, std::slice::from_ref(&call)).await {
                tracing::warn!(%session, %call, why, "cannot remove the baselines of a call");
            }
        });
    }
}

fn paths(changes: &[ProtectedChange]) -> Vec<&str> {
    changes.iter().map(|change| &*change.path).collect()
}

/// The maximum number of roots whose latest look is remembered.
const MOST_LOOKS: usize = 256;

/// The latest look at each root. If nothing that it saw has changed, it need not be repeated. Clones
/// share the looks.
#[derive(Clone, Default)]
struct Looks(Arc<Mutex<HashMap<PathBuf, (Baseline, SeenEntries)>>>);

impl Looks {
    fn take(&self, roots: Vec<PathBuf>) -> io::Result<RootBaselines> {
        let taken = roots.into_iter().map(|root| {
            let baseline = self.of(&root)?;
            Ok((root, baseline))
        });
        taken.collect()
    }

    /// Returns the states of roots now if each is the one of its latest look. This needs few system
    /// calls on file systems of this machine, and so no thread that may block.
    fn latest<'a>(&self, roots: impl Iterator<Item = &'a PathBuf>) -> Option<RootBaselines> {
        let latest = roots.map(|root| Some((root.clone(), self.latest_of(root)?)));
        latest.collect()
    }

    fn latest_of(&self, root: &Path) -> Option<Baseline> {
        let (baseline, seen) = self.looks().get(root).cloned()?;
        seen.is_unchanged(root).then_some(baseline)
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<PathBuf, (Baseline, SeenEntries)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of a root now.
    fn of(&self, root: &Path) -> io::Result<Baseline> {
        if let Some(baseline) = self.latest_of(root) {
            return Ok(baseline);
        }
        let (baseline, seen) = Baseline::take(root)?;
        let mut looks = self.looks();
        if looks.len() >= MOST_LOOKS {
            looks.clear();
        }
        match seen {
            Some(seen) => drop(looks.insert(root.to_owned(), (baseline.clone(), seen))),
            None => drop(looks.remove(root)),
        }
        Ok(baseline)
    }
}

/// Compares the roots of a stored call with what they are now. A root that is another folder is left
/// out: the session has moved to a machine with a workspace of its own.
fn compare(looks: &Looks, (call, stored): (CallId, String)) -> (CallId, Vec<ProtectedChange>) {
    let before: RootBaselines = serde_json::from_str(&stored).unwrap_or_default();
    let changes = before.iter().flat_map(|(root, before)| {
        let now = looks.of(root).ok();
        let now = now.filter(|now| now.is_of_folder(before));
        let changed = now.map(|now| now.changes_since(before));
        told(&call, root, changed.unwrap_or_default())
    });
    let changes = changes.collect();
    (call, changes)
}

fn changes(looks: &Looks, call: &CallId, before: &RootBaselines) -> Vec<ProtectedChange> {
    let changes = before.iter().flat_map(|(root, before)| {
        let changed = match looks.of(root) {
            Ok(now) => now.changes_since(before),
            // A root that cannot be read counts as changed.
            Err(_) => vec![(PathBuf::new(), ChangeKind::Changed)],
        };
        told(call, root, changed)
    });
    changes.collect()
}

/// Describes changes below a root for a person.
fn told(call: &CallId, root: &Path, changed: Vec<(PathBuf, ChangeKind)>) -> Vec<ProtectedChange> {
    let told = changed.into_iter().map(|(path, change)| ProtectedChange {
        call: call.clone(),
        text: text_at(root, &path).map(shortened),
        path: joined(root, &path),
        change,
    });
    told.collect()
}

fn joined(root: &Path, path: &Path) -> String {
    let whole = match path.as_os_str().is_empty() {
        true => root.to_owned(),
        false => root.join(path),
    };
    whole.to_string_lossy().into_owned()
}

fn shortened(mut text: String) -> String {
    if text.len() > MOST_TEXT {
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        text.push('…');
    }
    text
}

/// Leaves out texts and then changes beyond the maximum, so that they fit into an event.
fn bounded(mut changes: Vec<ProtectedChange>) -> Vec<ProtectedChange> {
    changes.truncate(MOST_CHANGES);
    let mut left = MOST_TEXTS;
    for change in &mut changes {
        let length = change.text.as_ref().map_or(0, String::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => change.text = None,
        }
    }
    changes
}

#[cfg(test)]
mod tests;
