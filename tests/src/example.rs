//! Sidecars as programs that are ready to run: those under `examples/`, a scaffold, and one of the
//! TypeScript SDK.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Child;

use crate::{node::fresh, run};

/// An example that was prepared as its README says. It can be started.
pub struct Example {
    pub name: &'static str,
    pub command: Vec<String>,
}

impl Example {
    /// Returns the Rust example, which uses the SDK.
    pub fn rust() -> Result<Self> {
        let built = fresh(
            built()?.join("text-rust"),
            "cargo build -p planck-sidecar --examples",
        )?;
        Ok(Self {
            name: "text-rust",
            command: vec![text(&built)?],
        })
    }

    /// Returns the project that `planck sidecar new --lang rust` writes, with the placeholder as
    /// its name.
    pub fn scaffold_rust() -> Result<Self> {
        let built = fresh(
            built()?.join("scaffold-rust"),
            "cargo build -p planck-sidecar --examples",
        )?;
        Ok(Self {
            name: "SIDECAR_NAME",
            command: vec![text(&built)?],
        })
    }

    /// Returns the Python example, which uses the SDK.
    pub fn python() -> Result<Self> {
        in_python("text-python", "python/text.py")
    }

    pub fn bare_python() -> Result<Self> {
        in_python("text-bare-python", "bare-python/text.py")
    }

    /// Compiles the TypeScript example and returns it. Returns `None` and prints why if there is no
    /// Node 20 or later, or no folder with the example's packages.
    pub fn typescript() -> Result<Option<Self>> {
        let folder = folder().join("typescript");
        if !runs_typescript("the example in TypeScript", &folder) {
            return Ok(None);
        }
        run::once("typescript-example", || {
            output_of("node", &["node_modules/typescript/bin/tsc"], &folder)
                .context("the example in TypeScript does not compile")
        })?;
        Ok(Some(Self {
            name: "text-typescript",
            command: vec!["node".into(), text(&folder.join("text.js"))?],
        }))
    }

    /// Compiles the TypeScript SDK, and returns the sidecar among its tests. Returns `None` and
    /// prints why if there is no Node 20 or later, or no folder with the SDK's packages.
    pub fn typescript_sdk() -> Result<Option<Self>> {
        let Some(sdk) = typescript_sdk()? else {
            return Ok(None);
        };
        let program = text(&sdk.join(".built/test/text.js"))?;
        Ok(Some(Self {
            name: "text-typescript-sdk",
            command: vec!["node".into(), program],
        }))
    }

    /// Compiles the Go example and returns it. Returns `None` and prints why if the machine has no
    /// Go.
    pub fn go() -> Result<Option<Self>> {
        let folder = folder().join("go");
        let Some(go) = go("the example in Go") else {
            return Ok(None);
        };
        let program = text(&built()?.join("text-go"))?;
        run::once("go-example", || {
            output_of(go, &["build", "-o", &program, "."], &folder)
                .context("the example in Go does not compile")
        })?;
        Ok(Some(Self {
            name: "text-go",
            command: vec![program],
        }))
    }

    /// Starts an instance. Dropping the child kills it.
    pub fn start(&self, url: &str) -> Result<Child> {
        self.start_with(url, &[])
    }

    /// Starts an instance with additional environment variables.
    pub fn start_with(&self, url: &str, environment: &[(String, String)]) -> Result<Child> {
        let (program, arguments) = self.command.split_first().context("no command")?;
        let mut command = tokio::process::Command::new(program);
        command
            .args(arguments)
            .env("NATS_URL", url)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
            .spawn()
            .with_context(|| format!("cannot run {program}"))
    }
}

/// Returns a `PYTHONPATH` with the packages that `make tools` fetches and with the SDK. Fails if
/// the packages are missing.
pub fn python_path() -> Result<String> {
    let fetched = root().join(".tools/python");
    ensure!(
        fetched.is_dir(),
        "{} is missing; run `make tools`",
        fetched.display()
    );
    Ok(format!(
        "{}:{}",
        fetched.display(),
        root().join("sidecar-sdk/python").display()
    ))
}

/// Compiles the TypeScript SDK with its tests, and returns its folder. Returns `None` and prints
/// why if there is no Node 20 or later, or no folder with the SDK's packages.
pub fn typescript_sdk() -> Result<Option<PathBuf>> {
    let folder = root().join("sidecar-sdk/typescript");
    if !runs_typescript("the SDK in TypeScript", &folder) {
        return Ok(None);
    }
    run::once("typescript-sdk", || {
        for project in ["tsconfig.json", "tsconfig.test.json"] {
            output_of(
                "node",
                &["node_modules/typescript/bin/tsc", "-p", project],
                &folder,
            )
            .context("the SDK in TypeScript does not compile")?;
        }
        Ok(String::new())
    })?;
    Ok(Some(folder))
}

/// Returns whether Node 20 or later and a folder's packages are installed, and prints a warning if
/// not.
fn runs_typescript(what: &str, folder: &Path) -> bool {
    let node = output_of("node", &["--version"], folder).unwrap_or_default();
    let version: u32 = node
        .trim_start_matches('v')
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .unwrap_or(0);
    let runs = version >= 20 && folder.join("node_modules").is_dir();
    if !runs {
        eprintln!(
            "NOT TESTED: {what} needs Node 20 and what `make tools` fetches with npm; found `{node}`"
        );
    }
    runs
}

/// Returns the command that runs Go. Returns `None` and prints why if the machine has no Go.
pub fn go(what: &str) -> Option<&'static str> {
    let found = ["go", "/usr/local/go/bin/go"]
        .into_iter()
        .find(|go| output_of(go, &["version"], root()).is_some());
    if found.is_none() {
        eprintln!("NOT TESTED: {what} needs Go");
    }
    found
}

fn in_python(name: &'static str, program: &str) -> Result<Example> {
    let path = format!("PYTHONPATH={}", python_path()?);
    Ok(Example {
        name,
        command: vec![
            "env".into(),
            path,
            "python3".into(),
            text(&folder().join(program))?,
        ],
    })
}

/// Returns the folder in which Cargo puts the examples that it builds with these tests.
fn built() -> Result<PathBuf> {
    let test = env::current_exe()?;
    Ok(test
        .ancestors()
        .nth(2)
        .context("no folder")?
        .join("examples"))
}

/// Returns the root folder of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

fn folder() -> PathBuf {
    root().join("examples/sidecars")
}

fn text(path: &Path) -> Result<String> {
    Ok(path
        .to_str()
        .with_context(|| format!("{} is no text", path.display()))?
        .to_owned())
}

/// Runs a program, and returns its standard output without surrounding white space. If the program
/// fails, prints its output and returns `None`. Also returns `None` if there is no such program.
fn output_of(program: &str, args: &[&str], folder: &Path) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(folder)
        .output()
        .ok()?;
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        eprintln!(
            "{program} {args:?}: {}{}",
            told(&output.stdout),
            told(&output.stderr)
        );
        return None;
    }
    Some(told(&output.stdout))
}
