//! A sidecar that breaks the protocol in the way that MUTATION names: `mutant NAME MUTATION`. The
//! conformance checker must find the fault. With the mutation `nothing` there is none.

#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "what is not mutated is the same for all mutations"
)]
#![allow(clippy::indexing_slicing, reason = "indexing JSON gives null")]

mod mutation;
mod service;
mod tools;

use std::{env, sync::Arc};

use anyhow::{Context as _, Result};
use async_nats::Message;
use futures_util::{FutureExt as _, StreamExt as _};
use mutation::Mutation;
use service::Service;
use tokio::signal::unix::{SignalKind, signal};
use tools::RequestHandler;

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = env::args().skip(1);
    let (name, mutation) = (
        words.next().context("no name")?,
        words.next().context("no mutation")?,
    );
    let mutation: Mutation = serde_json::from_value(mutation.into()).context("no such mutation")?;
    let client = async_nats::connect(env::var("NATS_URL")?).await?;
    let service = Arc::new(Service::new(client.clone(), &name, mutation));
    let handler = Arc::new(RequestHandler::new(client.clone(), mutation));

    let mut discovery = client.subscribe("$SRV.>").await?;
    let told = service.clone();
    let discovering = tokio::spawn(async move {
        while let Some(message) = discovery.next().await {
            told.answer(message).await;
        }
    });
    let mut cancels = client.subscribe(format!("cancel.{name}")).await?;
    let canceller = handler.clone();
    tokio::spawn(async move {
        while let Some(message) = cancels.next().await {
            canceller.cancel(&message.payload);
        }
    });
    let mut readers = Vec::new();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    for endpoint in service.endpoints() {
        let mut requests = match mutation {
            Mutation::SharesNothing => client.subscribe(endpoint.subject.clone()).await?,
            _ => {
                client
                    .queue_subscribe(endpoint.subject.clone(), endpoint.queue_group.clone())
                    .await?
            }
        };
        let (handler, client, mut stopped) = (handler.clone(), client.clone(), stopped.clone());
        readers.push(tokio::spawn(async move {
            let take = |message: Message| {
                handler.begin();
                let (handler, name) = (handler.clone(), endpoint.name.clone());
                tokio::spawn(async move {
                    handler.take(&name, message).await;
                    handler.end();
                });
            };
            loop {
                tokio::select! {
                    Some(message) = requests.next() => take(message),
                    _ = stopped.changed() => break,
                }
            }
            // A server takes a limit of more than nine digits as an order to remove the
            // subscription at once. The client keeps its own side, so messages that are on their
            // way still arrive.
            let _gone = requests.unsubscribe_after(10_000_000_000).await;
            let _nobody = client.request(client.new_inbox(), "".into()).await;
            while let Some(Some(message)) = requests.next().now_or_never() {
                take(message);
            }
        }));
    }
    client.flush().await?;
    service.tell("hello").await;

    let mut terminate = signal(SignalKind::terminate())?;
    terminate.recv().await;
    if mutation == Mutation::IgnoresSigterm {
        std::future::pending::<()>().await;
    }
    service.tell("bye").await;
    discovering.abort();
    if mutation != Mutation::DropsRunning {
        let _readers = stop.send(true);
        for reader in readers {
            reader.await?;
        }
        handler.finished().await;
    }
    let _nobody = client.request(client.new_inbox(), "".into()).await;
    std::process::exit(i32::from(mutation == Mutation::EndsBadly));
}
