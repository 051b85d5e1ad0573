//! Sidecars for tests.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use planck_common::{command::Sidecars, subject::Target};
use planck_sidecar::{Connection, Context, Sidecar, Tool};
use planck_tests::{
    caller::list_of,
    eventually::{PATIENCE, eventually},
    world::World,
};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};

use crate::teams::scene::Scene;

/// A sidecar in this process. Dropping this value ends the sidecar without a `bye`.
pub struct Serving {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), planck_sidecar::Error>>,
}

impl Serving {
    pub fn start(world: &World, sidecar: Sidecar) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(
            sidecar.run_until(Connection::to(world.nats.url()), async move {
                drop(stopped.await)
            }),
        );
        Self {
            stop: Some(stop),
            task,
        }
    }

    /// Lets the sidecar publish its `bye`, finish its running calls and end.
    pub async fn end(mut self) -> Result<()> {
        drop(self.stop.take());
        Ok((&mut self.task).await??)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Arguments of any form.
pub type Args = serde_json::Map<String, Value>;

/// The calls that a sidecar received, in order: call ids and arguments.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<(String, Args)>>>);

impl Ledger {
    pub fn entries(&self) -> Vec<(String, Args)> {
        self.0.lock().unwrap().clone()
    }

    pub fn note(&self, context: &Context, args: &Args) {
        self.0
            .lock()
            .unwrap()
            .push((context.call_id().to_string(), args.clone()));
    }
}

/// Returns a sidecar with the pure tool `echo`, which records its call and returns the arguments.
pub fn echo(name: &str, ledger: &Ledger) -> Sidecar {
    let ledger = ledger.clone();
    let answer = move |context: Context, args: Args| {
        ledger.note(&context, &args);
        async move { Ok::<_, Infallible>(Value::Object(args).to_string()) }
    };
    Sidecar::new(name, "1.0.0")
        .unwrap()
        .tool(Tool::new("echo", "Gives back what it is given.", answer).pure())
}

/// Sends one request, and returns the first `count` replies.
pub async fn gather(world: &World, subject: &str, count: usize) -> Result<Vec<Value>> {
    let nats = &world.caller.nats;
    let inbox = nats.new_inbox();
    let mut told = nats.subscribe(inbox.clone()).await?;
    nats.publish_with_reply(subject.to_owned(), inbox, "".into())
        .await?;
    let mut answers = Vec::new();
    while answers.len() < count {
        let message = timeout(PATIENCE, told.next())
            .await?
            .context("the connection was closed")?;
        answers.push(serde_json::from_slice(&message.payload)?);
    }
    Ok(answers)
}

/// Starts a team on a node that has found a sidecar. A fast model would otherwise call a tool that
/// its agent does not have yet.
pub async fn team_with(
    world: World,
    sidecar: &str,
    members: &[Value],
    prompt: &str,
) -> Result<Scene> {
    let node = world.node().await?;
    found(&world, sidecar, 1).await?;
    Scene::start_beside(world, node, members, prompt).await
}

/// Waits until the node has found this many instances of a sidecar.
pub async fn found(world: &World, sidecar: &str, instances: u32) -> Result<()> {
    eventually(
        &format!("{instances} instances of {sidecar} are found"),
        async || {
            let listed: Sidecars = world
                .caller
                .read(&list_of(Target::Sidecars), &json!({}))
                .await
                .ok()?;
            let there = listed
                .sidecars
                .iter()
                .find(|row| row.name == sidecar)
                .map_or(0, |row| row.instances);
            (there == instances).then_some(())
        },
    )
    .await
}
