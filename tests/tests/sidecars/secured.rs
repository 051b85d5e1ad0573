//! Sidecars on the SDKs connect to servers that admit only known users, with the same environment
//! variables as nodes.

#[path = "../e2e/flows/secured/certificates.rs"]
mod certificates;
#[path = "../e2e/flows/secured/operator.rs"]
mod operator;

use std::{fs, process::Command, time::Duration};

use nkeys::KeyPair;
use planck_tests::{
    eventually::eventually,
    example::{Example, python_path},
    nats::NatsServer,
};

use certificates::Certificates;
use operator::Operator;

type Environment = Vec<(String, String)>;

/// How long a refused sidecar is watched.
const REFUSED_WITHIN: Duration = Duration::from_secs(4);

fn with(pairs: &[(&str, &str)]) -> Environment {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Returns the example on each SDK, without the one in TypeScript if the machine cannot run it. If
/// `signs` is set and the machine has no Python package `nkeys`, leaves out the Python example,
/// which signs with that package.
fn examples(signs: bool) -> Vec<Example> {
    let mut examples = vec![Example::rust().unwrap()];
    examples.extend(Example::typescript_sdk().unwrap());
    let python = Command::new("python3")
        .args(["-c", "import nkeys"])
        .env("PYTHONPATH", python_path().unwrap())
        .output()
        .unwrap();
    if !signs || python.status.success() {
        examples.push(Example::python().unwrap());
    } else {
        eprintln!(
            "NOT TESTED: the SDK in Python signs with the package nkeys; `python3 -m pip install nkeys` provides it"
        );
    }
    examples
}

/// Returns whether the server has admitted the sidecar and the sidecar has subscribed to its
/// endpoints.
fn serves(server: &NatsServer, example: &Example) -> bool {
    let connections = server.monitor("/connz").unwrap()["connections"].clone();
    let is_it = |connection: &serde_json::Value| {
        connection["name"] == format!("sidecar {}", example.name)
            && connection["subscriptions"].as_u64() >= Some(4)
    };
    connections
        .as_array()
        .is_some_and(|connections| connections.iter().any(is_it))
}

async fn admits(server: &NatsServer, example: &Example, environment: &Environment) {
    let _instance = example.start_with(&server.url(), environment).unwrap();
    let what = format!("{} serves with {environment:?}", example.name);
    eventually(&what, async || serves(server, example).then_some(()))
        .await
        .unwrap();
}

async fn refuses(server: &NatsServer, example: &Example, environment: &Environment) {
    let _instance = example.start_with(&server.url(), environment).unwrap();
    tokio::time::sleep(REFUSED_WITHIN).await;
    assert!(
        !serves(server, example),
        "{} serves with {environment:?}",
        example.name
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_connect_with_a_trusted_certificate_only() {
    let (own, other) = (Certificates::new().unwrap(), Certificates::new().unwrap());
    let server = NatsServer::start_with(&own.config()).unwrap();
    let (certificate, key) = (own.file("client.pem"), own.file("client.key"));
    let shown = [
        ("PLANCK_NATS_TLS_CERT", certificate.as_str()),
        ("PLANCK_NATS_TLS_KEY", key.as_str()),
    ];
    let trusting =
        |authority: &str| with(&[&[("PLANCK_NATS_TLS_CA", authority)], &shown[..]].concat());
    for example in examples(false) {
        admits(&server, &example, &trusting(&own.file("ca.pem"))).await;
        refuses(&server, &example, &trusting(&other.file("ca.pem"))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_connect_with_a_known_nkey_only() {
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let server = NatsServer::start_with(&format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        user.public_key()
    ))
    .unwrap();
    let (own, other) = (user.seed().unwrap(), stranger.seed().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seed");
    fs::write(&file, format!("{own}\n")).unwrap();
    for example in examples(true) {
        admits(&server, &example, &with(&[("NATS_NKEY", &own)])).await;
        admits(
            &server,
            &example,
            &with(&[("NATS_NKEY", file.to_str().unwrap())]),
        )
        .await;
        refuses(&server, &example, &with(&[("NATS_NKEY", &other)])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_connect_with_valid_credentials_only() {
    let (operator, stranger) = (Operator::new().unwrap(), Operator::new().unwrap());
    let server = NatsServer::start_with(&operator.config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [own, other] = [("own", &operator), ("other", &stranger)].map(|(name, operator)| {
        let file = folder.path().join(name).with_extension("creds");
        fs::write(&file, &operator.credentials).unwrap();
        file.to_str().unwrap().to_owned()
    });
    for example in examples(true) {
        admits(&server, &example, &with(&[("NATS_CREDS", &own)])).await;
        refuses(&server, &example, &with(&[("NATS_CREDS", &other)])).await;
    }
}
