//! Bodies of HTTP requests that are small as text and very large once they are parsed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use planck_scripted_model::{Script, Server};
use planck_tests::{front::Front, node::planck_in};
use tempfile::TempDir;

/// Returns the peak memory of a process, in MiB.
fn memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.context("no VmHWM")?.split_whitespace().next();
    Ok(number.context("no number")?.parse::<u64>()? >> 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn body_of_many_small_values_costs_neither_memory_nor_time() -> Result<()> {
    let folder = TempDir::new()?;
    let model = Server::start(Script::new().without_auth()).await?;
    let mut command = planck_in(folder.path())?;
    command
        .env("PLANCK_MODELS_DEFAULT", "scripted:test")
        .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.openai_url())
        .env("PLANCK_TOOLS_SANDBOX", "off");
    let front = Front::start(command, folder.path(), &[]).await?;
    let pid = front.pid().context("it ended already")?;
    let many = format!("[{}0]", r#"{"":0},"#.repeat(400_000));
    let before = memory(pid)?;
    let began = Instant::now();
    let json = ("Content-Type", "application/json");
    for (path, body) in [
        (
            "/v1/sessions",
            format!(r#"{{"prompt":"x","metadata":{{"a":{many}}}}}"#),
        ),
        (
            "/v1/sessions",
            format!(
                r#"{{"prompt":"x","client_tools":[{{"name":"t","parameters":{{"enum":{many}}}}}]}}"#
            ),
        ),
        ("/ui/chat", format!(r#"{{"id":"c","x":{many}}}"#)),
        (
            "/openai/v1/responses",
            format!(r#"{{"model":"x","input":{many}}}"#),
        ),
        (
            "/openai/v1/chat/completions",
            format!(r#"{{"model":"x","messages":{many}}}"#),
        ),
    ] {
        let refused = front.request("POST", path, &[json], &body).await?;
        assert_eq!(refused.status, 413, "{path}: {}", refused.body);
    }
    let (took, grew) = (began.elapsed(), memory(pid)?.saturating_sub(before));
    println!("five bodies of 3 MB: {took:?}, {grew} MiB");
    assert!(grew < 150, "{grew} MiB");
    assert!(took < Duration::from_secs(30), "{took:?}");
    Ok(())
}
