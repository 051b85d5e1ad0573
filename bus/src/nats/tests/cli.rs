//! Tests of what a user of the `nats` command line client sees.

use std::{process::Output, time::Duration};

use bytes::Bytes;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use planck_common::reply::{Code, Refusal};
use planck_tests::nats::find_cli;
use serde_json::Value;
use tokio::{
    process::{Child, Command},
    time::Instant,
};

use super::*;
use crate::{
    Published,
    conformance::{answer, event, next, node},
};

struct Cli {
    url: String,
    file: std::path::PathBuf,
}

impl Cli {
    /// Finds the `nats` command line client. If the client is not installed, prints a message to
    /// standard error and returns `None`.
    fn find(world: &Nats) -> Option<Self> {
        match find_cli() {
            Ok(file) => Some(Self {
                url: world.server.url(),
                file,
            }),
            Err(error) => {
                eprintln!("NOT TESTED: {error}");
                None
            }
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.file);
        command
            .arg("--server")
            .arg(&self.url)
            .args(args)
            .kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str]) -> String {
        let output = self.command(args).output().await.unwrap();
        let Output { stdout, stderr, .. } = &output;
        let text = String::from_utf8_lossy(stdout).into_owned();
        assert!(
            output.status.success(),
            "{args:?}: {text}{}",
            String::from_utf8_lossy(stderr)
        );
        text
    }

    fn start(&self, args: &[&str]) -> Child {
        self.command(args)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    }
}

#[tokio::test]
async fn command_can_be_sent_as_a_request() {
    let world = Nats::start();
    let Some(cli) = Cli::find(&world) else { return };
    let bus = world.connect().await;
    let serving = answer(|address, body| async move {
        match address.verb.as_str() {
            "list" => Ok(format!(
                r#"{{"sessions":[],"asked":{:?}}}"#,
                String::from_utf8_lossy(&body)
            )),
            verb => Err(Refusal::new(
                Code::BadRequest,
                format!("unknown verb `{verb}`"),
            )),
        }
    });
    let _serving = bus.serve(&node("n1"), serving).await.unwrap();

    let reply = cli.run(&["req", "--raw", "cmd.sessions.list", ""]).await;
    assert_eq!(reply.trim(), r#"{"v":1,"ok":{"sessions":[],"asked":""}}"#);
    let refused = cli.run(&["req", "cmd.agent.*.dance", "no json"]).await;
    assert!(
        refused.contains(r#""code":"bad_request","message":"unknown verb `dance`""#),
        "{refused}"
    );

    let listed = cli.run(&["service", "ls"]).await;
    assert!(listed.contains("planck-node"), "{listed}");
    let info: Value = serde_json::from_str(
        &cli.run(&["service", "info", "planck-node", "n1", "--json"])
            .await,
    )
    .unwrap();
    assert!(info.to_string().contains("cmd.agent.*.*"), "{info}");
    let stats = cli
        .run(&["service", "stats", "planck-node", "--json"])
        .await;
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let endpoints = stats
        .pointer("/0/endpoints")
        .or(stats.pointer("/endpoints"))
        .unwrap()
        .as_array()
        .unwrap();
    let agent = endpoints
        .iter()
        .find(|endpoint| endpoint["name"] == "agent")
        .unwrap();
    assert_eq!(
        (&agent["num_requests"], &agent["num_errors"]),
        (&1.into(), &1.into()),
        "{agent}"
    );
    assert_eq!(agent["last_error"], "400:unknown verb `dance`");
}

#[tokio::test]
async fn events_can_be_watched() {
    let world = Nats::start();
    let Some(cli) = Cli::find(&world) else { return };
    let bus = world.connect().await;
    let watching = cli.start(&["sub", "--raw", "--count=1", "agent.>"]);
    let publishing = async {
        loop {
            bus.publish_event(event("s1", "a1", None, r#"{"v":1,"type":"text_delta"}"#));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let output = tokio::select! {
        output = watching.wait_with_output() => output.unwrap(),
        () = publishing => unreachable!(),
    };
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        r#"{"v":1,"type":"text_delta"}"#
    );
}

#[tokio::test]
async fn frozen_observer_does_not_slow_publishing() {
    let world = Nats::start();
    let Some(cli) = Cli::find(&world) else { return };
    let (ear, mouth) = (world.connect().await, world.connect().await);
    let mut heard = ear.subscribe("session.*").await.unwrap();
    let frozen = cli.start(&["sub", "session.>"]);
    until_observed(&world, 3).await;
    kill(
        Pid::from_raw(frozen.id().unwrap().cast_signed()),
        Signal::SIGSTOP,
    )
    .unwrap();

    let payload = Bytes::from(vec![b'x'; 100_000]);
    let began = Instant::now();
    for seq in 1..=1000 {
        mouth.publish_event(Published {
            payload: payload.clone(),
            ..event("s1", "a1", Some(seq), "")
        });
        assert_eq!(next(&mut heard).await.payload.len(), 100_000);
    }
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "100 MB took {:?}",
        began.elapsed()
    );
    assert_eq!(mouth.dropped(), 0);
}

async fn until_observed(world: &Nats, connections: u64) {
    while world.server.monitor("/varz").unwrap()["connections"]
        .as_u64()
        .unwrap()
        < connections
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
