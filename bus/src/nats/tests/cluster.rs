//! Checks that, with three servers, a client whose server dies continues at another server.

use std::time::Duration;

use bytes::Bytes;
use planck_common::subject::{Address, Target};
use planck_tests::nats::NatsCluster;
use tokio::time::{Instant, sleep};

use super::*;
use crate::conformance::{echo, node};

#[tokio::test]
async fn client_of_a_killed_server_reconnects_to_another() {
    let mut cluster = NatsCluster::start().unwrap();
    let at = |n: usize| NatsOptions::new(cluster.servers[n].url());
    let (server, client) = (
        NatsBus::connect(at(0)).await.unwrap(),
        NatsBus::connect(at(1)).await.unwrap(),
    );
    let _serving = server.serve(&node("n1"), echo("n1")).await.unwrap();
    let list = Address::new(Target::Sessions, "list");
    until_answered(&client, &list).await;

    cluster.servers[0].kill().unwrap();
    let began = Instant::now();
    until_answered(&client, &list).await;
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert!(server.is_connected());
}

/// Repeats the request until it is answered. The other servers learn of a subscription only some
/// time after it is active on its own server.
async fn until_answered(client: &NatsBus, to: &Address) {
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(error) = client
        .request(to, Bytes::new(), Duration::from_secs(1))
        .await
    {
        assert!(Instant::now() < until, "{error}");
        sleep(Duration::from_millis(20)).await;
    }
}
