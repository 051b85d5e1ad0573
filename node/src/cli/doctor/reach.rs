//! What must be reached: the store, and NATS.

use std::{path::Path, time::Duration};

use planck_common::subject::{self, LIST, Target};

use super::{Finding, machine::is_writable};
use crate::{
    bus::{Bus as _, BusError, NatsBus, NatsOptions},
    cli::earlier,
    config::{Address, Config},
    node,
    store::StoreError,
};

/// How long nodes may take to answer, if there are any.
const ANSWER: Duration = Duration::from_secs(2);

pub async fn store(config: &Config) -> Finding {
    let url = &config.store.url;
    match node::inspect_store(config).await {
        Ok(Some(told)) => Finding::good("store", format!("{url}: {told}")),
        Ok(None) => new_folder(config),
        Err(error @ StoreError::Away(_)) => {
            Finding::bad("store", format!("{url}: {error}"), StoreError::UNREACHED)
        }
        Err(error) => Finding::bad(
            "store",
            format!("{url}: {error}"),
            "see above, or name another one in `store.url`",
        ),
    }
}

/// Sessions that lie in the folder planck is started in, and belong to no store.
pub fn strays(config: &Config) -> Option<Finding> {
    let what = earlier::what_is_there(config)?;
    Some(Finding::note(
        "sessions",
        what,
        "`planck session adopt` takes them over, closed; leave them if they are not yours",
    ))
}

/// A folder of session files that does not exist yet.
fn new_folder(config: &Config) -> Finding {
    let url = &config.store.url;
    let folder = config.store.folder().unwrap_or_default();
    let parent = folder
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("."));
    match parent.is_dir() && is_writable(parent) {
        true => Finding::good("store", format!("{url}, made with the first session")),
        false => {
            let what = format!(
                "{url}: {} is no folder that can be written",
                parent.display()
            );
            Finding::bad("store", what, "name another folder in `store.url`")
        }
    }
}

/// Connecting checks the server's version, too. JetStream is what a node needs besides.
pub async fn nats(config: &Config) -> Finding {
    let Some(url) = &config.nats.url else {
        return Finding::note(
            "nats",
            "not configured; sessions run in one process",
            "set NATS_URL for a cluster",
        );
    };
    let options = match node::nats(config) {
        Ok(Some(options)) => NatsOptions {
            name: "planck doctor".into(),
            ..options
        },
        Ok(None) => return Finding::note("nats", "not configured", "set NATS_URL for a cluster"),
        Err(error) => return Finding::bad("nats", format!("{url}: {error}"), "correct `[nats]`"),
    };
    let bus = match NatsBus::connect(options).await {
        Ok(bus) => bus,
        Err(error) => {
            return Finding::bad(
                "nats",
                format!("{url}: {error}"),
                "start nats-server 2.12 or later, or correct `[nats]`",
            );
        }
    };
    if let Some(exposure) = bus.exposure() {
        return Finding::bad(
            "nats",
            format!("{url}: {exposure}"),
            "see docs/operations.md, \"Settings of NATS\"",
        );
    }
    match bus.check_jetstream().await {
        Ok(()) => Finding::good("nats", format!("{url}, with all that is needed")),
        Err(BusError::Denied(why)) => without_jetstream(&bus, url, &why).await,
        Err(error) => Finding::bad(
            "nats",
            format!("{url}: {error}"),
            "start nats-server 2.12 or later with JetStream (-js)",
        ),
    }
}

/// A user whom JetStream refuses runs no node, but may command those there are.
async fn without_jetstream(bus: &NatsBus, url: &Address, why: &str) -> Finding {
    let nodes = subject::Address::new(Target::Nodes, LIST);
    match bus.request(&nodes, "{}".into(), ANSWER).await {
        Err(BusError::Denied(why)) => Finding::note(
            "nats",
            format!("{url}: enough to watch at most, neither for a client nor for a node: {why}"),
            "use the clients' user to command nodes, or the nodes' user to run one here",
        ),
        // Whether nodes answer is not asked here.
        Ok(_) | Err(_) => Finding::note(
            "nats",
            format!("{url}: enough for a client, not for a node: {why}"),
            "use the nodes' user to run a node here",
        ),
    }
}
