//! Programs under `tests/judges/` that drive a real browser through the cases of a test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
    time::timeout,
};

/// If this is set, as in CI, a missing browser fails the tests that need one. Otherwise they are
/// skipped.
pub const NEEDED: &str = "PLANCK_TESTS_NEED_BROWSER";
const CHROMIUM: &str = "/usr/bin/chromium";
/// How long the cases of one test may take on a busy machine.
const CASES: Duration = Duration::from_secs(420);

fn judges() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("judges")
}

/// Returns whether there is a browser with its driver. If not, says loudly that `what` is not
/// tested, or fails in CI.
pub fn is_there(what: &str) -> bool {
    let browser = env::var_os("CHROMIUM").map_or_else(|| CHROMIUM.into(), PathBuf::from);
    let driver = judges().join("console/node_modules/playwright-core");
    let missing: Vec<_> = [browser, driver]
        .into_iter()
        .filter(|file| !file.exists())
        .collect();
    let why = format!(
        "{missing:?} is not there: as root, run `apt-get install -y chromium` and \
         `npm ci --prefix tests/judges/console`"
    );
    assert!(
        missing.is_empty() || env::var_os(NEEDED).is_none(),
        "{NEEDED} is set, and {why}"
    );
    if !missing.is_empty() {
        eprintln!("SKIPPED: {what} is not tested in a browser, because {why}");
    }
    missing.is_empty()
}

/// A program that plays cases one after the other in one browser. Its first argument is the list of
/// the cases.
#[derive(Debug)]
pub struct BrowserJudge<'a> {
    /// The path of the program under `tests/judges`.
    pub program: &'a str,
    /// The further arguments of the program.
    pub arguments: Vec<String>,
    /// If this variable of the environment names a case, only that case runs.
    pub only: &'a str,
}

impl BrowserJudge<'_> {
    /// Plays the cases, with `answer` for what they ask the test to do. Fails if a case fails.
    pub async fn play(
        &self,
        cases: &[&str],
        answer: &mut impl AsyncFnMut(&str) -> Result<String>,
    ) -> Result<()> {
        let only = env::var(self.only).unwrap_or_default();
        let is_meant = |case: &&&str| only.is_empty() || only == **case;
        let meant: Vec<_> = cases.iter().filter(is_meant).copied().collect();
        if meant.is_empty() {
            return Ok(());
        }
        let mut child = Command::new("node")
            .arg(judges().join(self.program))
            .arg(meant.join(","))
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot run `node`")?;
        let mut input = child.stdin.take().context("no input")?;
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        let (mut passed, mut said) = (0, String::new());
        let conversation = async {
            while let Some(line) = lines.next_line().await? {
                if let Some(what) = line.strip_prefix("ASK ") {
                    let reply = answer(what).await.with_context(|| what.to_owned())?;
                    input.write_all(format!("{reply}\n").as_bytes()).await?;
                    continue;
                }
                passed += usize::from(line.starts_with("PASSED "));
                println!("{line}");
                said += &format!("{line}\n");
            }
            anyhow::Ok(())
        };
        let ended = timeout(CASES, conversation).await;
        child.kill().await.ok();
        ended.with_context(|| format!("not all of {meant:?} end: {said}"))??;
        ensure!(passed == meant.len(), "a case failed: {said}");
        Ok(())
    }
}
