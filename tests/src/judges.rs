//! Checks the requests that a model received against the types of the vendors' own SDKs, which
//! `tools/install` fetches.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::RecordedRequest;
use serde_json::{Map, Value, json};

use crate::run;

/// If this is set, as in CI, missing SDKs fail the tests that need them. Otherwise these tests are
/// skipped.
const NEEDED: &str = "PLANCK_TESTS_NEED_JUDGES";

/// The path of the program that checks requests with the SDKs.
pub struct Judges(PathBuf);

impl Judges {
    /// Finds the checker. If this machine's Python cannot import the SDKs' types, panics if
    /// `PLANCK_TESTS_NEED_JUDGES` is set, else prints a warning and returns `None`.
    pub fn find() -> Option<Self> {
        let judges = Self(Path::new(env!("CARGO_MANIFEST_DIR")).join("judges/judge.py"));
        // Importing the SDKs takes seconds, so the tests of a run share the answer.
        let can = run::once("judges", || {
            let output = judges.ask(&["--can"])?;
            ensure!(output.status.success(), "{output:?}");
            Ok(String::new())
        });
        assert!(
            can.is_ok() || env::var_os(NEEDED).is_none(),
            "{NEEDED} is set, and the SDKs are not there: run tools/install; {can:?}"
        );
        if can.is_err() {
            eprintln!(
                "SKIPPED: no request is judged by the vendors' SDKs, which are not there; tools/install says why"
            );
        }
        can.is_ok().then_some(judges)
    }

    /// Tests the checker itself, with bodies that each have a known fault or none. Fails if the
    /// checker does not find exactly these faults.
    pub fn test(&self, bodies: &Path) -> Result<String> {
        self.verdict(&["--self-test", &bodies.to_string_lossy()])
    }

    /// Writes the requests of one wire format to a file in `folder`, checks every such file there,
    /// and returns what the checker prints. Fails with all faults that the checker found.
    pub fn judge(&self, wire: &str, requests: &[RecordedRequest], folder: &Path) -> Result<String> {
        let lines = requests.iter().map(|request| {
            let headers: Map<String, Value> =
                request.headers.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
            format!("{}\n", json!({ "wire": wire, "path": request.path, "headers": headers, "body": request.body }))
        });
        fs::create_dir_all(folder)?;
        fs::write(
            folder.join(format!("{wire}.jsonl")),
            lines.collect::<String>(),
        )?;
        self.verdict(&[&folder.to_string_lossy()])
    }

    fn verdict(&self, arguments: &[&str]) -> Result<String> {
        let Output {
            status,
            stdout,
            stderr,
        } = self.ask(arguments)?;
        let said = String::from_utf8_lossy(&stdout).into_owned();
        ensure!(
            status.success(),
            "the SDKs complain:\n{said}{}",
            String::from_utf8_lossy(&stderr)
        );
        Ok(said)
    }

    fn ask(&self, arguments: &[&str]) -> Result<Output> {
        // Without this, Python would write its compiled modules beside the sources.
        let mut command = Command::new("python3");
        command
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(&self.0)
            .args(arguments);
        command.output().context("cannot run python3")
    }
}
