//! Runs the commands of the README's section on nodes as they are written there.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    machine::run,
    nats::{find_cli, find_server},
    node::planck,
    watch::Watch,
    world::{Backend, World},
};
use tokio::process::Command;

/// Returns the lines of the block after a heading.
fn commands(heading: &str) -> Result<Vec<String>> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"))?;
    let (_, section) = readme
        .split_once(heading)
        .with_context(|| format!("no {heading}"))?;
    let block = section
        .split("```")
        .nth(1)
        .context("no block of commands")?;
    Ok(block.lines().skip(1).map(str::to_owned).collect())
}

/// Returns a command that runs a line of the README, with the programs on the PATH and with
/// `NATS_URL` set.
fn typed(world: &World, line: &str) -> Result<Command> {
    let folder = |program: PathBuf| {
        program
            .parent()
            .map(Path::to_path_buf)
            .context("a program is in a folder")
    };
    let usual = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(
        [folder(planck()?)?, folder(find_cli()?)?]
            .into_iter()
            .chain(env::split_paths(&usual)),
    )?;
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig=KILL",
            "--",
            "sh",
            "-c",
            &format!("exec {line}"),
        ])
        .current_dir(world.dir());
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", world.folder())
        .env("NATS_URL", world.nats.url());
    command.stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_readme_do_what_it_says() -> Result<()> {
    if let Err(missing) = find_cli() {
        println!("NOT TESTED: {missing}");
        return Ok(());
    }
    let lines = commands("## Run a node, and watch it")?;
    let line = |begin: &str| -> &str {
        let found = lines.iter().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("the README has no `{begin}`: {lines:?}"))
    };
    let world = World::start(
        Backend::Sqlite,
        Script::new().always(Reply::text("Hello from a model.")),
    )
    .await?;
    let node = world.node().await?;
    let sub = Watch::start(
        typed(&world, line("nats sub "))?,
        world.folder().join("sub.txt"),
    )?;
    super::nats_cli::subscribed(&world, "session.>").await?;

    let ran = run(typed(&world, line("planck run "))?).await?;
    assert!(
        ran.code == 0 && ran.out.contains("Hello from a model."),
        "{ran:?}"
    );
    sub.says(&["\"session_started\"", "\"turn_end\"", "Hello from a model."])
        .await?;
    let services = run(typed(&world, line("nats service ls"))?).await?;
    assert!(
        services.code == 0 && services.out.contains("planck-node"),
        "{services:?}"
    );
    let started = run(typed(&world, line("nats req cmd.sessions.start "))?).await?;
    assert!(
        started.code == 0 && started.out.contains("\"bold-oak\""),
        "{started:?}"
    );
    let attached = Watch::start(
        typed(&world, line("planck session attach "))?,
        world.folder().join("attached.txt"),
    )?;
    attached
        .says(&["› Say hello.", "Hello from a model."])
        .await?;
    attached.leave().await?;
    world.check_model()?;
    node.leave().await
}

/// Has nats-server check the arguments and the configuration of the README's command. The check
/// starts no server, because other servers run on this machine.
#[test]
fn server_accepts_the_settings_that_the_readme_names() -> Result<()> {
    let lines = commands("## Run a node, and watch it")?;
    let (first, line) = (
        lines.first().context("a command")?,
        lines.get(1).context("a second one")?,
    );
    assert!(first.starts_with("export NATS_STORE_DIR="), "{first}");
    let arguments = line
        .strip_prefix("nats-server ")
        .and_then(|rest| rest.strip_suffix(" &"));
    let arguments = arguments.with_context(|| format!("not a server in the background: {line}"))?;
    let mut check = std::process::Command::new(find_server()?);
    check
        .args(arguments.split(' '))
        .arg("-t")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    check.env("NATS_STORE_DIR", "/nowhere/nats");
    let checked = check.output()?;
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    Ok(())
}
