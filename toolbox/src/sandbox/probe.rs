//! Tries a sandbox: a process inside it must not be able to read a file of this node or connect to
//! one of its ports.

use std::{ffi::OsString, fs, net::TcpListener, path::Path, process::Stdio, time::Duration};

use tempfile::TempDir;
use tokio::{process::Command, time::timeout};

use super::{
    Demand, SandboxSettings, Shortfall, Tier, bubblewrap::Bubblewrap, enter::HOLDS,
    landlock::Level, policy::SandboxPolicy,
};
use crate::reap::THIS_BINARY;

/// The maximum duration of a trial.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file and the port outside of the sandbox that a trial tries to reach.
struct Outside {
    folder: TempDir,
    listener: TcpListener,
}

/// Chooses the best sandbox that passes a trial, and says why it is not a better one.
pub(super) async fn choose(settings: &SandboxSettings) -> (Tier, Shortfall) {
    let level = Level::of_kernel();
    let mut shortfall = match bubblewrap(settings, level).await {
        Ok((found, shortfall)) => return (Tier::Bubblewrap(found), shortfall),
        Err(shortfall) => shortfall,
    };
    let tried = try_out(&Tier::Landlock(level), settings).await;
    let (tier, further) = match (tried, settings.demand) {
        (Ok(()), Demand::Required) if level < Level::FULL => (
            Tier::Refused,
            format!(
                "; Landlock of this kernel is too old: {}",
                level.gaps().join(", ")
            ),
        ),
        (Ok(()), _) => (Tier::Landlock(level), String::new()),
        (Err(why), Demand::Required) => (Tier::Refused, format!("; {why}")),
        (Err(why), _) => (Tier::Open, format!("; {why}")),
    };
    shortfall.why += &further;
    (tier, shortfall)
}

/// Finds a bubblewrap that works here, with a `/proc` of its own for each process if this machine
/// permits that, and else with that of the machine behind Landlock. Also returns the reason for the
/// second choice.
async fn bubblewrap(
    settings: &SandboxSettings,
    level: Level,
) -> Result<(Bubblewrap, Shortfall), Shortfall> {
    let found = Bubblewrap::find(settings, level)?;
    let Err(why) = try_out(&Tier::Bubblewrap(found.clone()), settings).await else {
        return Ok((found, Shortfall::default()));
    };
    if level.is_none() || !why.contains("mount proc") {
        return Err(Shortfall::of_trial(&why));
    }
    let found = found.with_proc_of_machine();
    match try_out(&Tier::Bubblewrap(found.clone()), settings).await {
        Ok(()) => Ok((
            found,
            Shortfall::new(
                format!(
                    "`/proc` shows them no process, because no new one can be mounted here: {why}"
                ),
                "",
            ),
        )),
        Err(why) => Err(Shortfall::of_trial(&why)),
    }
}

/// Runs a trial of a sandbox. Returns the reason as an error if the process can break out or the
/// trial cannot be run.
async fn try_out(tier: &Tier, settings: &SandboxSettings) -> Result<(), String> {
    let outside = Outside::new().map_err(|why| format!("cannot prepare a trial: {why}"))?;
    let mut trial = outside.trial(tier, settings)?;
    trial
        .arg0("planck")
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(PATIENCE, trial.output())
        .await
        .map_err(|_| format!("a trial does not end within {PATIENCE:?}"))?;
    let output = output.map_err(|why| format!("a trial cannot be started: {why}"))?;
    let text = |text: &[u8]| {
        String::from_utf8_lossy(text)
            .trim()
            .trim_start_matches("planck reap: ")
            .to_owned()
    };
    match (output.status.success(), text(&output.stdout) == HOLDS) {
        (true, true) => Ok(()),
        (true, false) => Err("the trial was not run".into()),
        (false, _) => Err(text(&output.stderr)),
    }
}

impl Outside {
    fn new() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("secret"), "secret")?;
        Ok(Self {
            folder,
            listener: TcpListener::bind("127.0.0.1:0")?,
        })
    }

    fn trial(&self, tier: &Tier, settings: &SandboxSettings) -> Result<Command, String> {
        let port = self
            .listener
            .local_addr()
            .map_err(|why| why.to_string())?
            .port();
        let check: Vec<OsString> = vec![
            "--check".into(),
            self.folder.path().join("secret").into(),
            port.to_string().into(),
        ];
        let policy = SandboxPolicy {
            network: settings.network,
            ..SandboxPolicy::default()
        };
        match tier {
            Tier::Bubblewrap(found) => {
                let mut trial = Command::new(found.program());
                trial.args(found.trial(policy, settings.tmp, &check));
                Ok(trial)
            }
            Tier::Landlock(level) if !level.is_none() => {
                let mut trial =
                    Command::new(settings.planck.as_deref().unwrap_or(Path::new(THIS_BINARY)));
                trial.arg("reap").args(check).args(
                    SandboxPolicy {
                        level: *level,
                        ..policy
                    }
                    .to_option(),
                );
                Ok(trial)
            }
            Tier::Landlock(_) => Err(
                "this kernel has no Landlock, or it is not enabled at boot (`lsm=landlock,…`)"
                    .into(),
            ),
            Tier::Open | Tier::Refused => Err("there is no sandbox to try".into()),
        }
    }
}
