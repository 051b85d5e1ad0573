//! A cluster of three nats-servers.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{NatsServer, free_port};

/// How long the cluster may take to become healthy. The election of JetStream's leader takes a few
/// seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster with JetStream. Each server is a [`NatsServer`] that can be stopped, killed and paused
/// by itself.
pub struct NatsCluster {
    pub servers: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts three servers and waits until JetStream works on each.
    pub fn start() -> Result<Self> {
        let ports = [free_port()?, free_port()?, free_port()?];
        let routes = ports
            .map(|port| format!("nats://127.0.0.1:{port}"))
            .join(", ");
        let config = |port| {
            format!("cluster {{ name: test, listen: 127.0.0.1:{port}, routes: [{routes}] }}")
        };
        let started = ports
            .iter()
            .zip(1..)
            .map(|(port, n)| NatsServer::start_as(&format!("n{n}"), &config(port)));
        let cluster = Self {
            servers: started.collect::<Result<_>>()?,
        };
        cluster.wait_until_healthy()?;
        Ok(cluster)
    }

    /// Returns the URLs of all servers.
    pub fn url(&self) -> String {
        self.servers
            .iter()
            .map(NatsServer::url)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Waits until every running server reports that it and JetStream are healthy.
    pub fn wait_until_healthy(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !self
            .servers
            .iter()
            .filter(|server| server.pid().is_some())
            .all(is_healthy)
        {
            if Instant::now() > until {
                bail!("the cluster is not healthy after {PATIENCE:?}");
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

fn is_healthy(server: &NatsServer) -> bool {
    let says = |page: &str, what: &str| {
        server
            .monitor(page)
            .ok()?
            .pointer(what)?
            .as_str()
            .map(str::to_owned)
    };
    says("/jsz", "/meta_cluster/leader").is_some()
        && says("/healthz", "/status").as_deref() == Some("ok")
}
