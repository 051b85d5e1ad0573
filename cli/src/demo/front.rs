//! The front of the demo, through which a person watches the team in the browser.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use planck_http::{Front, FrontOptions, KeyHash, Keys, StartDefaults};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{super::serve::generated_key, cluster::WORKSPACE};
use planck_client::Client;

/// The port that is tried first, which is the default of `planck serve`.
const PORT: u16 = 8400;

pub struct DemoFront {
    address: SocketAddr,
    key: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

impl DemoFront {
    /// Starts the front on its usual port, or on another one if a program uses that port.
    pub async fn start(client: &Client) -> anyhow::Result<Self> {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listener = match TcpListener::bind(at(PORT)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind(at(0)).await.context("cannot listen")?,
        };
        let address = listener.local_addr().context("cannot listen")?;
        let stop = CancellationToken::new();
        let start = StartDefaults {
            workspace: Some(WORKSPACE.into()),
            dir: None,
        };
        let key = generated_key::mint();
        let options = FrontOptions {
            keys: Keys::Own(KeyHash::of(&key)),
            start,
            ..FrontOptions::default()
        };
        let front: Arc<Front> = Front::new(client.clone(), options);
        let serving = tokio::spawn(front.serve(listener, stop.clone()));
        Ok(Self {
            address,
            key,
            stop,
            serving,
        })
    }

    /// Returns the address of the console with the key. A page of the console may follow.
    pub fn url(&self) -> String {
        format!("http://{}/#key={}", self.address, self.key)
    }

    pub async fn stop(self) {
        self.stop.cancel();
        let _ended = self.serving.await;
    }
}
