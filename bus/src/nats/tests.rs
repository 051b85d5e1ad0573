//! The conformance suite, each case on a private server, and tests of what only NATS does: outages,
//! reconnects, refusals.

mod cli;
mod cluster;
mod conversations;
mod foreign;
mod outage;
mod permissions;

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::{inbox::InboxPrefix, subject::Prefix};
use planck_tests::nats::NatsServer;

use super::{NatsBus, NatsOptions};
use crate::{
    Bus, BusError,
    conformance::{World, suite},
};

struct Nats {
    server: NatsServer,
    prefix: Prefix,
}

impl Nats {
    fn start() -> Self {
        Self::with("")
    }

    /// Starts a server with additional lines of configuration.
    fn with(config: &str) -> Self {
        Self {
            server: NatsServer::start_with(config).unwrap(),
            prefix: Prefix::default(),
        }
    }

    fn options(&self) -> NatsOptions {
        NatsOptions {
            prefix: self.prefix.clone(),
            ..NatsOptions::new(self.server.url())
        }
    }

    async fn connect(&self) -> NatsBus {
        NatsBus::connect(self.options()).await.unwrap()
    }

    /// Connects as a user of the configuration.
    async fn connect_as(&self, user: &str) -> Result<NatsBus, BusError> {
        let url = self
            .server
            .url()
            .replace("nats://", &format!("nats://{user}:secret@"));
        let inbox_prefix = InboxPrefix::parse(&format!("_INBOX.{user}")).unwrap();
        let bus = NatsBus::connect(NatsOptions {
            url,
            inbox_prefix,
            ..self.options()
        })
        .await?;
        Ok(bus)
    }
}

/// Returns the number of subscriptions from the server's monitoring page.
fn subscriptions(world: &Nats) -> u64 {
    let page = world.server.monitor("/varz").unwrap();
    page["subscriptions"].as_u64().unwrap()
}

#[async_trait]
impl World for Nats {
    async fn end(&self) -> Arc<dyn Bus> {
        Arc::new(self.connect().await)
    }
}

mod conforms {
    use super::*;

    suite!(Nats::start());
}

mod conforms_under_a_prefix {
    use super::*;

    suite!(Nats {
        prefix: Prefix::parse("eu.test").unwrap(),
        ..Nats::start()
    });
}
