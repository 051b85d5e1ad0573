//! Servers that admit only known users. A node connects with the right settings. With wrong
//! settings its error names what is wrong.

pub mod certificates;
pub mod operator;

use std::fs;

use anyhow::{Context as _, Result};
use nkeys::KeyPair;
use planck_tests::{
    machine::{Ran, run},
    nats::NatsServer,
    node::{Node, planck_in},
};
use tempfile::TempDir;
use tokio::process::Command;

use certificates::Certificates;

/// A server, and the folder of the nodes that connect to it.
struct Gate {
    server: NatsServer,
    folder: TempDir,
}

type Environment<'a> = &'a [(&'a str, &'a str)];

impl Gate {
    fn new(config: &str) -> Result<Self> {
        Ok(Self {
            server: NatsServer::start_with(config)?,
            folder: TempDir::new()?,
        })
    }

    /// Returns the server's URL with `user` before the host, for example `name:password@`.
    fn url(&self, user: &str) -> String {
        self.server.url().replace("//", &format!("//{user}"))
    }

    fn planck(&self, arguments: &[&str], environment: Environment<'_>) -> Result<Command> {
        let mut command = planck_in(self.folder.path())?;
        command
            .args(arguments)
            .env("NATS_URL", self.server.url())
            .envs(environment.iter().copied());
        Ok(command)
    }

    /// Checks that a node and a client can connect.
    async fn admits(&self, environment: Environment<'_>) -> Result<()> {
        let node = Node::start(
            self.planck(&["node"], environment)?,
            self.folder.path().join("node.log"),
        )
        .await?;
        let listed = run(self.planck(&["nodes", "ls"], environment)?).await?;
        assert!(
            listed.code == 0 && listed.out.contains(node.id().as_str()),
            "{listed:?}"
        );
        node.leave().await
    }

    /// Checks that a node cannot connect, that its error and `planck doctor` contain these words,
    /// and that it does not print the seed of an nkey.
    async fn refuses(&self, environment: Environment<'_>, words: &[&str]) -> Result<()> {
        let Ran { code, err, out } = run(self.planck(&["node"], environment)?).await?;
        assert!(
            code == 4 && words.iter().all(|word| err.contains(word)),
            "{environment:?}: {code}: {err}"
        );
        for (_, secret) in environment.iter().filter(|(name, _)| *name == "NATS_NKEY") {
            assert!(!err.contains(secret) && !out.contains(secret), "{err}{out}");
        }
        let doctor = run(self.planck(&["doctor"], environment)?).await?;
        let starts = doctor.out.contains("start nats-server");
        let says = words.iter().all(|word| doctor.out.contains(word));
        assert!(says && !starts, "{environment:?}: {doctor:?}");
        Ok(())
    }
}

const DENIED: [&str; 2] = ["does not accept this user", "check its credentials"];

#[tokio::test(flavor = "multi_thread")]
async fn node_connects_with_user_and_password_only() -> Result<()> {
    let gate = Gate::new(r#"authorization { user: planck, password: "open, sesame" }"#)?;
    gate.admits(&[("NATS_URL", &gate.url("planck:open%2C%20sesame@"))])
        .await?;
    gate.refuses(&[], &DENIED).await?;
    gate.refuses(&[("NATS_URL", &gate.url("planck:wrong@"))], &DENIED)
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_connects_with_a_known_nkey_only() -> Result<()> {
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let gate = Gate::new(&format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        user.public_key()
    ))?;
    let (own, other) = (user.seed()?, stranger.seed()?);
    gate.admits(&[("NATS_NKEY", &own)]).await?;
    let file = gate.folder.path().join("seed");
    fs::write(&file, format!("{own}\n"))?;
    gate.admits(&[("PLANCK_NATS_NKEY", &format!("file:{}", file.display()))])
        .await?;
    gate.admits(&[("NATS_NKEY", &file.display().to_string())])
        .await?;
    gate.refuses(&[], &DENIED).await?;
    gate.refuses(&[("NATS_NKEY", &other)], &DENIED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_connects_with_valid_credentials_only() -> Result<()> {
    let (operator, stranger) = (operator::Operator::new()?, operator::Operator::new()?);
    let gate = Gate::new(&operator.config)?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = gate.folder.path().join(name);
        fs::write(&path, text)?;
        Ok(path.to_str().context("a path of text")?.to_owned())
    };
    let (own, other) = (
        file("own.creds", &operator.credentials)?,
        file("other.creds", &stranger.credentials)?,
    );
    gate.admits(&[("NATS_CREDS", &own)]).await?;
    gate.refuses(&[], &DENIED).await?;
    gate.refuses(&[("NATS_CREDS", &other)], &DENIED).await?;
    gate.refuses(
        &[("NATS_CREDS", "/nowhere/x.creds")],
        &["cannot read NATS credentials /nowhere/x.creds"],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_connects_with_a_trusted_certificate_only() -> Result<()> {
    let (own, other) = (Certificates::new()?, Certificates::new()?);
    let gate = Gate::new(&own.config())?;
    let ca = ("PLANCK_NATS_TLS_CA", own.file("ca.pem"));
    let shown = [
        ("PLANCK_NATS_TLS_CERT", own.file("client.pem")),
        ("PLANCK_NATS_TLS_KEY", own.file("client.key")),
    ];
    let (ca, [certificate, key]) = (
        (ca.0, ca.1.as_str()),
        shown.each_ref().map(|(name, file)| (*name, file.as_str())),
    );
    gate.admits(&[ca, certificate, key]).await?;
    gate.refuses(
        &[certificate, key],
        &["no TLS connection to", "UnknownIssuer", "nats.tls_ca"],
    )
    .await?;
    let wrong = other.file("ca.pem");
    gate.refuses(
        &[("PLANCK_NATS_TLS_CA", &wrong), certificate, key],
        &["no TLS connection to"],
    )
    .await?;
    gate.refuses(
        &[ca],
        &[
            "no TLS connection to",
            "CertificateRequired",
            "nats.tls_cert",
        ],
    )
    .await?;
    let nowhere = ("PLANCK_NATS_TLS_CA", "/nowhere/ca.pem");
    gate.refuses(&[nowhere, certificate, key], &["/nowhere/ca.pem"])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_if_tls_is_configured() -> Result<()> {
    let certificates = Certificates::new()?;
    let gate = Gate::new("")?;
    gate.refuses(
        &[("PLANCK_NATS_TLS_CA", &certificates.file("ca.pem"))],
        &["TLS"],
    )
    .await
}
