//! The code that all file tools share: resolving paths inside the workspace, running work on
//! threads that may block, and serialising the calls that change one file.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use planck_common::event::ToolEffect;
use serde_json::value::{RawValue, to_raw_value};

use super::{
    Invocation, ToolOutcome,
    output::Caps,
    second_judgement::StricterThere,
    workspace::{PathError, ResolvedPath, Roots, Workspace},
};
use planck_agent::model::ToolSpec;

/// The shared state of a node's file tools. Clones share it.
#[derive(Debug, Clone)]
pub struct Files {
    roots: Roots,
    caps: Caps,
    /// The locks that serialise the calls that change the same file. The hash of a path selects its
    /// lock. Models often request several edits of one file in one round.
    locks: Arc<[Mutex<()>; 64]>,
}

/// The reason why a file tool failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot {what} {path}: {why}")]
    Io {
        what: &'static str,
        path: String,
        why: io::Error,
    },
    #[error("cannot use the working directory {dir}: {why}")]
    Directory { dir: String, why: io::Error },
    #[error(transparent)]
    StricterThere(#[from] StricterThere),
    #[error("{0}")]
    Refused(String),
    /// The call was cancelled before the tool had a result.
    #[error("stopped")]
    Stopped,
}

impl Files {
    pub fn new(roots: Roots, caps: Caps) -> Self {
        Self {
            roots,
            caps,
            locks: Arc::new(std::array::from_fn(|_| Mutex::new(()))),
        }
    }

    /// Returns the limits for the part of a file that is returned to the model.
    pub(super) fn caps(&self) -> Caps {
        self.caps
    }

    pub(super) fn workspace(&self, dir: &Path) -> Result<Workspace, FileError> {
        self.roots.of(dir).map_err(|why| FileError::Directory {
            dir: dir.display().to_string(),
            why,
        })
    }

    /// Resolves the path of a call that reads a file.
    pub(super) fn place(&self, call: &Invocation, path: &str) -> Result<ResolvedPath, FileError> {
        let workspace = self.workspace(&call.dir)?;
        let place = workspace.place(path)?;
        call.permits(path, &workspace, &place)?;
        Ok(place)
    }

    /// Resolves the path of a call that changes a file.
    pub(super) fn place_to_change(
        &self,
        call: &Invocation,
        path: &str,
    ) -> Result<ResolvedPath, FileError> {
        let workspace = self.workspace(&call.dir)?;
        let place = workspace.place_to_change(path)?;
        call.permits(path, &workspace, &place)?;
        Ok(place)
    }

    /// Runs `act` while no other call of a file tool changes this file.
    pub(super) fn locked<T>(&self, place: &ResolvedPath, act: impl FnOnce() -> T) -> T {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(place.path());
        let lock = self.locks.get(hash as usize % self.locks.len());
        let _turn = lock.map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        act()
    }

    /// Parses the arguments of a call, and runs `act` with them on a thread that may block.
    pub(super) async fn blocking<A, F>(&self, call: Invocation, act: F) -> ToolOutcome
    where
        A: serde::de::DeserializeOwned + Send + 'static,
        F: FnOnce(&Self, &Invocation, A) -> Result<String, FileError> + Send + 'static,
    {
        let args: A = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let files = self.clone();
        let done = tokio::task::spawn_blocking(move || act(&files, &call, args)).await;
        match done {
            Ok(Ok(text)) => ToolOutcome::ok(text),
            Ok(Err(FileError::Stopped)) => ToolOutcome::stopped(""),
            Ok(Err(why)) => ToolOutcome::error(why.to_string()),
            Err(panic) => ToolOutcome::error(format!("failed: {panic}")),
        }
    }
}

impl Invocation {
    fn permits(
        &self,
        path: &str,
        workspace: &Workspace,
        place: &ResolvedPath,
    ) -> Result<(), StricterThere> {
        match &self.second_judgement {
            Some(judgement) => judgement.check(path, &self.dir, workspace, place),
            None => Ok(()),
        }
    }
}

/// Parses the arguments of a call. Returns the outcome for the model if they cannot be parsed.
pub(crate) fn args<A: serde::de::DeserializeOwned>(call: &Invocation) -> Result<A, ToolOutcome> {
    serde_json::from_str(call.args.get())
        .map_err(|why| ToolOutcome::error(format!("the arguments do not fit: {why}")))
}

/// Builds the specification of a tool. `parameters` is the JSON Schema of its arguments.
pub fn spec(
    name: &str,
    description: &str,
    effect: ToolEffect,
    parameters: &serde_json::Value,
) -> ToolSpec {
    let parameters: Box<RawValue> = to_raw_value(parameters).unwrap_or_default();
    ToolSpec {
        name: name.into(),
        description: description.into(),
        parameters: parameters.into(),
        effect,
        sidecar: None,
        wait: None,
    }
}
