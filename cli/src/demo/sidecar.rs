//! The sidecar of the demo: the Python example, whose tool one member uses. If Python or its NATS
//! client is missing on this machine, the demo runs without the sidecar and says so.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{
    process::Command,
    time::{Instant, timeout},
};

use super::processes::LAUNCH;
use planck_bus::Bus;
use planck_prove::Process;

/// The name of the sidecar's tool.
pub const TOOL: &str = "count_words";

/// The member of the team that may use the tool.
pub const USER: &str = "tester";

const NAME: &str = "words";
const PYTHON: &str = "python3";

/// How long the interpreter may take to start, and then how long the sidecar may take to appear.
const PATIENCE: Duration = Duration::from_secs(20);

/// The duration of a search for the sidecar, and of the pause after it.
const LOOK: Duration = Duration::from_millis(100);

const PROGRAM: &str = include_str!("../../../examples/sidecars/python/words.py");

const SDK: [(&str, &str); 7] = [
    (
        "__init__.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/__init__.py"),
    ),
    (
        "request_handler.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/request_handler.py"),
    ),
    (
        "harness.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/harness.py"),
    ),
    (
        "replies.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/replies.py"),
    ),
    (
        "schema.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/schema.py"),
    ),
    (
        "sidecar.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/sidecar.py"),
    ),
    (
        "trace.py",
        include_str!("../../../sidecar-sdk/python/planck_sidecar/trace.py"),
    ),
];

/// The sidecar's Python program and its module path. The path consists of the program's folder,
/// which has the SDK too, the folder in which `make tools` unpacked the NATS client, and the user's
/// `PYTHONPATH`.
#[derive(Debug)]
pub struct Python {
    program: PathBuf,
    path: OsString,
}

impl Python {
    /// Writes the sidecar's program and the SDK into the demo's folder, and checks that Python can
    /// import the SDK. The inner `Err` says why it cannot.
    pub async fn prepare(folder: &Path) -> anyhow::Result<Result<Self, String>> {
        let home = folder.join("sidecar");
        let package = home.join("planck_sidecar");
        fs::create_dir_all(&package)
            .with_context(|| format!("cannot make {}", package.display()))?;
        for (name, text) in SDK {
            fs::write(package.join(name), text)?;
        }
        let program = home.join(NAME).with_extension("py");
        fs::write(&program, PROGRAM)?;
        let usual = env::var_os("PYTHONPATH").unwrap_or_default();
        let modules = [home]
            .into_iter()
            .chain(unpacked())
            .chain(env::split_paths(&usual));
        let python = Self {
            program,
            path: env::join_paths(modules)?,
        };
        Ok(python.check().await.map(|()| python))
    }

    async fn check(&self) -> Result<(), String> {
        let mut command = Command::new(PYTHON);
        command
            .args(["-c", "import planck_sidecar"])
            .envs(self.environment());
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await;
        match output {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let why = said
                    .trim_end()
                    .lines()
                    .next_back()
                    .unwrap_or("it failed")
                    .to_owned();
                Err(format!(
                    "{PYTHON} cannot run it: {why}; `make tools` brings the NATS client, and Python has to be 3.10 or later"
                ))
            }
            Ok(Err(error)) => Err(format!("{PYTHON} does not start: {error}")),
            Err(_) => Err(format!(
                "{PYTHON} does not start within {} s",
                PATIENCE.as_secs()
            )),
        }
    }

    fn environment(&self) -> [(&'static str, OsString); 2] {
        [
            ("PYTHONPATH", self.path.clone()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ]
    }

    /// Starts the sidecar, and waits until it can be discovered.
    pub async fn start(&self, folder: &Path, url: &str, bus: &dyn Bus) -> anyhow::Result<Process> {
        let [path, bytecode] = self.environment();
        let environment = [path, bytecode, ("NATS_URL", url.into())];
        let arguments = [self.program.clone().into()];
        let mut process = Process::start(
            NAME,
            LAUNCH,
            PYTHON.as_ref(),
            &arguments,
            &environment,
            folder,
        )?;
        let until = Instant::now() + PATIENCE;
        while bus
            .services(Some(NAME), LOOK)
            .await
            .unwrap_or_default()
            .is_empty()
        {
            process.check()?;
            if Instant::now() > until {
                bail!(
                    "the sidecar is not there after {} s; the end of its log:\n{}",
                    PATIENCE.as_secs(),
                    process.last_lines()
                );
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(process)
    }
}

/// Returns the folder with the unpacked NATS client, from this directory or a parent, or `None` if
/// there is none.
fn unpacked() -> Option<PathBuf> {
    let here = env::current_dir().ok()?;
    let found = here
        .ancestors()
        .map(|folder| folder.join(".tools/python"))
        .find(|folder| folder.is_dir())?;
    std::path::absolute(found).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_demo_has_every_module_of_the_sdk() {
        let package = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../sidecar-sdk/python/planck_sidecar"
        );
        let names = fs::read_dir(package)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let modules: BTreeSet<String> = names.filter(|name| name.ends_with(".py")).collect();
        assert_eq!(
            modules,
            SDK.iter().map(|(name, _)| (*name).to_owned()).collect()
        );
    }
}
