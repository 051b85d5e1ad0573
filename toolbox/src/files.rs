//! The code that all file tools share: resolving paths inside the workspace, running work on
//! threads that may block, and serialising the calls that change one file.

use std::{
    fmt,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use planck_agent::{
    model::ToolSpec,
    permission::{CallFacts, Verdict, judge},
};
use planck_common::{
    event::ToolEffect,
    permission::{Permissions, RuleAction},
};

use crate::{
    Invocation, ToolOutcome,
    output::Caps,
    workspace::{PathError, ResolvedPath, Roots, Workspace},
};

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
        is_searched: false,
    }
}

// Judges a call of a file tool again by the place to which its path leads. Rules compare the path
// that the model gave, and a link in it may lead past them.

/// The permissions by which a call is judged again.
#[derive(Debug)]
pub struct SecondJudgement {
    pub layers: Vec<Permissions>,
    pub tool: String,
    pub effect: ToolEffect,
}

/// Why a call is not run, although its own path let it run.
#[derive(Debug, thiserror::Error)]
pub struct StricterThere {
    given: String,
    real: String,
    verdict: Verdict,
}

impl fmt::Display for StricterThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            given,
            real,
            verdict,
        } = self;
        let why = verdict.why.as_deref().unwrap_or("the permissions");
        write!(f, "not run: {given} leads to {real}, and {why}")?;
        match verdict.action {
            RuleAction::Ask => write!(f, "; call the tool with `path` {real}"),
            RuleAction::Allow | RuleAction::Deny => Ok(()),
        }
    }
}

impl SecondJudgement {
    /// Compares the verdict about the path of a call in the session's directory `dir` with that
    /// about the place to which the path leads. Fails if the latter is stricter. A person who was
    /// asked has decided about the former, so a place that asks does not ask again.
    pub(super) fn check(
        &self,
        given: &str,
        dir: &Path,
        workspace: &Workspace,
        place: &ResolvedPath,
    ) -> Result<(), StricterThere> {
        let whole = place.path();
        let below = match whole.strip_prefix(workspace.dir()) {
            Ok(below) if below.as_os_str().is_empty() => Path::new("."),
            Ok(below) => below,
            Err(_) => whole.as_path(),
        };
        let real = below.to_string_lossy().into_owned();
        let verdict = self.verdict(&real, dir);
        if verdict.action <= self.verdict(given, dir).action {
            return Ok(());
        }
        Err(StricterThere {
            given: given.into(),
            real,
            verdict,
        })
    }

    fn verdict(&self, path: &str, dir: &Path) -> Verdict {
        let call = CallFacts {
            tool: &self.tool,
            effect: self.effect,
            sidecar: None,
            args: &json!({ "path": path }).to_string(),
            dir: &dir.to_string_lossy(),
        };
        judge(&self.layers, &call)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::Value;

    use super::*;
    use crate::{
        Runner, Tool,
        edit::EditFile,
        read::ReadFile,
        testing::{World, toolbox},
        write::WriteFile,
    };

    /// Runs a call under these rules, and returns the text for the model.
    async fn run(world: &World, tool: impl Tool + 'static, args: Value, layer: Value) -> String {
        let spec = tool.spec().clone();
        let mut call = world.call(&args);
        call.second_judgement = Some(Arc::new(SecondJudgement {
            layers: vec![serde_json::from_value(layer).unwrap()],
            tool: spec.name.clone(),
            effect: spec.effect,
        }));
        let outcome = Runner::default()
            .run(&toolbox(tool), &spec.name, call)
            .await;
        assert!(
            outcome.is_error() == outcome.text.starts_with("not run"),
            "{}",
            outcome.text
        );
        outcome.text
    }

    fn world() -> World {
        let world = World::new();
        world.write("ws/src/deep/a.rs", "old");
        world.write("ws/docs/a.md", "old");
        world.link("ws/docs/l", "../src/deep");
        world.link("ws/docs/there.md", "a.md");
        world
    }

    #[tokio::test]
    async fn a_link_leads_past_no_rule() {
        let world = world();
        let files = || world.files();
        let deny = json!({"rules": [
            {"path": "docs/**", "action": "allow"},
            {"path": "src/**", "action": "deny"},
        ]});
        let through = "docs/l/a.rs";
        for told in [
            run(
                &world,
                WriteFile::new(files()),
                json!({"path": through, "content": "x"}),
                deny.clone(),
            )
            .await,
            run(
                &world,
                WriteFile::new(files()),
                json!({"path": "docs/l/new.rs", "content": "x"}),
                deny.clone(),
            )
            .await,
            run(
                &world,
                EditFile::new(files()),
                json!({"path": through, "old_string": "old", "new_string": "x"}),
                deny.clone(),
            )
            .await,
            run(
                &world,
                ReadFile::new(files()),
                json!({"path": through}),
                deny.clone(),
            )
            .await,
        ] {
            assert!(
                told.contains("leads to src/deep/") && told.contains("denies it"),
                "{told}"
            );
        }
        assert_eq!(world.text("ws/src/deep/a.rs"), "old");
        assert!(!world.at("ws/src/deep/new.rs").exists());
        let told = run(
            &world,
            WriteFile::new(files()),
            json!({"path": "docs/there.md", "content": "new"}),
            deny,
        )
        .await;
        assert_eq!(told, "wrote 3 bytes to docs/there.md");
        assert_eq!(world.text("ws/docs/a.md"), "new");
    }

    #[tokio::test]
    async fn a_place_that_asks_is_named_to_the_model() {
        let world = world();
        let careful = json!({"mode": "careful", "rules": [{"path": "docs/**", "action": "allow"}]});
        let args = json!({"path": "docs/l/a.rs", "content": "x"});
        let told = run(&world, WriteFile::new(world.files()), args.clone(), careful).await;
        insta::assert_snapshot!(told, @"not run: docs/l/a.rs leads to src/deep/a.rs, and the mode careful asks about calls that may change something; call the tool with `path` src/deep/a.rs");
        // A person was asked about this call, and has allowed it.
        let told = run(
            &world,
            WriteFile::new(world.files()),
            args,
            json!({"mode": "careful"}),
        )
        .await;
        assert_eq!(told, "wrote 1 bytes to docs/l/a.rs");
    }
}
