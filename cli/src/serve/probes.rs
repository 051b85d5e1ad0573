//! What the probes of a process say that has a front and no node.

use std::time::Duration;

use async_trait::async_trait;
use planck_client::Client;
use planck_telemetry::vitals::{Gauges, Vitals};

/// A front without a node. It is ready if a node answers it.
pub struct FrontOnly(pub Client);

#[async_trait]
impl Vitals for FrontOnly {
    fn gauges(&self) -> Gauges {
        Gauges::default()
    }

    async fn unready(&self, patience: Duration) -> Vec<String> {
        match tokio::time::timeout(patience, self.0.nodes()).await {
            Ok(Ok(_)) => Vec::new(),
            Ok(Err(error)) => vec![error.to_string()],
            Err(_) => vec!["no node answers in time".to_owned()],
        }
    }

    async fn turns(&self, _within: Duration) -> bool {
        true
    }
}

async fn bind(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        let way_out = match is_taken {
            true => "; end the program that listens there, maybe another `planck serve`, or name another address",
            false => "",
        };
        anyhow::anyhow!("cannot listen on {address} ({key}): {error}{way_out}")
    })
}

/// Reads the value of `--listen`.
fn to_address(text: &str) -> Result<SocketAddr, String> {
    let by_name = text.strip_prefix("localhost:");
    let address = by_name.map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    address.parse().map_err(|_| match text.parse::<u16>() {
        Ok(port) => format!("an IP address is missing; write 127.0.0.1:{port}"),
        Err(_) => "write an IP address with a port, like 127.0.0.1:8400".into(),
    })
}
