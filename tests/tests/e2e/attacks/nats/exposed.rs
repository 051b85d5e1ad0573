//! Servers that anyone can reach, and directories that a remote client names.

use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result};
use planck_common::{
    command::SessionsVerb,
    reply::Code,
    subject::{Address, Target},
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    machine::run,
    nats::NatsServer,
    node::planck_in,
    world::{Backend, World},
};
use serde_json::json;
use tempfile::TempDir;

use super::gate::{Form, SecuredServer, deployed};

/// Returns 127.0.0.2 with the URL's port: another address of this machine that exists without a
/// network.
fn elsewhere(url: &str) -> Result<SocketAddr> {
    Ok(format!("127.0.0.2:{}", url.rsplit(':').next().context("a port")?).parse()?)
}

/// Starts a server without users that listens on all addresses.
fn open_server() -> Result<NatsServer> {
    let folder = TempDir::new()?;
    let file = folder.path().join("open.conf");
    std::fs::write(
        &file,
        "listen: \"0.0.0.0:4222\"\nhttp: \"127.0.0.1:8222\"\njetstream { store_dir: $NATS_STORE_DIR }\n",
    )?;
    NatsServer::start_from(&file, &[])
}

#[test]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
fn deployed_servers_listen_on_loopback_only() -> Result<()> {
    let plain = NatsServer::start_from(&deployed("nats.conf"), &[])?;
    let with_users = SecuredServer::start(Form::Passwords)?;
    for url in [plain.url(), with_users.server.url()] {
        assert!(
            TcpStream::connect(elsewhere(&url)?).is_err(),
            "{url} is reached at another address"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn open_server_beyond_loopback_is_reported_by_doctor_and_when_a_node_starts() -> Result<()> {
    let server = open_server()?;
    assert!(
        TcpStream::connect(elsewhere(&server.url())?).is_ok(),
        "the server is open"
    );
    let world = World::start_on(server, Backend::Sqlite, Script::new()).await?;
    let node = world.node().await?;
    let words = "asks for no user: whoever reaches it runs commands";
    assert_eq!(node.log().matches(words).count(), 1, "{}", node.log());
    let mut doctor = world.planck()?;
    let told = run({
        doctor.arg("doctor");
        doctor
    })
    .await?;
    assert!(told.code == 1 && told.out.contains(words), "{told:?}");
    node.leave_despite(&[words]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn doctor_accepts_a_server_on_loopback_or_with_users() -> Result<()> {
    let (plain, gate) = (NatsServer::start()?, SecuredServer::start(Form::Passwords)?);
    let folder = TempDir::new()?;
    let mut at_plain = planck_in(folder.path())?;
    at_plain.arg("doctor").env("NATS_URL", plain.url());
    for doctor in [
        at_plain,
        gate.planck("node", &["doctor"])?,
        gate.planck("client", &["doctor"])?,
    ] {
        let told = run(doctor).await?;
        assert!(!told.out.contains("asks for no user"), "{told:?}");
    }
    let client = run(gate.planck("client", &["doctor"])?).await?;
    assert!(
        client.out.contains(
            "enough for a client, not for a node: permission denied for publish to `$JS.API.INFO`"
        ),
        "{client:?}"
    );
    let observer = run(gate.planck("observer", &["doctor"])?).await?;
    assert!(
        observer.out.contains(
            "enough to watch at most, neither for a client nor for a node: permission denied"
        ),
        "{observer:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn absolute_directories_from_remote_clients_are_refused() -> Result<()> {
    let server = open_server()?;
    // This address leads to loopback but is no loopback name, so the node treats the server as one
    // on another machine.
    let url = server.url().replace("127.0.0.1", "0.0.0.0");
    let world = World::start_on(
        server,
        Backend::Sqlite,
        Script::new().always(Reply::text("hello")),
    )
    .await?;
    let shared = world.dir();
    let node = world
        .node_with(&[
            ("NATS_URL", &url),
            ("PLANCK_WORKSPACES_CODE", shared.to_str().context("a path")?),
        ])
        .await?;
    let start = Address::new(Target::Sessions, SessionsVerb::Start.name());
    let member = json!([{ "type": "agent", "tools": ["read", "bash"] }]);
    for place in [
        json!({ "dir": "/" }),
        json!({ "dir": shared }),
        json!({ "workspace": format!("local:{}", host()?), "dir": "/" }),
        json!({ "workspace": "code", "dir": "/etc" }),
        json!({ "workspace": "code", "dir": "../.." }),
    ] {
        let mut body = place.clone();
        body["members"] = member.clone();
        let refusal = world.caller.refusal(&start, &body).await?;
        assert_eq!(refusal.code, Code::BadRequest, "{place}: {refusal}");
    }
    let mut command = world.planck()?;
    command.current_dir(&shared).args(["run", "go"]);
    let told = run(command).await?;
    assert!(
        told.code != 0
            && told.err.contains("--workspace")
            && told.err.contains("workspaces only (code)"),
        "{told:?}"
    );
    let mut command = world.planck()?;
    command
        .current_dir(&shared)
        .args(["run", "--workspace", "code", "go"]);
    let done = run(command).await?;
    assert!(done.code == 0 && done.out.contains("hello"), "{done:?}");
    node.leave_despite(&["asks for no user"]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn setting_applies_to_absolute_directories_on_loopback_too() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world
        .node_with(&[("PLANCK_NODE_ABSOLUTE_DIRS", "false")])
        .await?;
    let start = Address::new(Target::Sessions, SessionsVerb::Start.name());
    let refusal = world.caller.refusal(&start, &world.solo()).await?;
    assert!(
        refusal.code == Code::BadRequest && refusal.message.contains("it has none"),
        "{refusal}"
    );
    node.leave().await
}

fn host() -> Result<String> {
    Ok(nix::unistd::gethostname()?
        .into_string()
        .unwrap_or_default())
}
