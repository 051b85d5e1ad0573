//! Simulates the process of a node with a separate tokio runtime. A kill stops all tasks of that
//! runtime, even in the middle of their work.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use planck_bus::{Bus, MemoryBus, MemoryHub};
use planck_common::{
    NodeId,
    command::Events,
    envelope::Envelope,
    reply::{self, Refusal, ReplyError},
    subject::Address,
};
use planck_node::{
    config::{self, Config, Sources},
    node::{self, RunningNode},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// How long a node may take to answer a request.
const ANSWER: Duration = Duration::from_secs(20);

/// The result of a request, or `None` if the node was killed before it answered.
pub type Answered = Option<Result<Value, Refusal>>;

pub struct NodeProcess {
    process: Process,
    running: RunningNode,
    bus: Arc<dyn Bus>,
    heard: Arc<Mutex<Vec<Envelope>>>,
}

/// The tokio runtime of a node. Dropping it stops all tasks on it.
struct Process(Option<Runtime>);

impl Process {
    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0
            .as_ref()
            .expect("it is there until it is dropped")
            .spawn(task)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0
            .take()
            .into_iter()
            .for_each(Runtime::shutdown_background);
    }
}

impl NodeProcess {
    /// Starts a node whose store and working directory are in this folder.
    pub async fn begin(folder: &Path, model: &str) -> Result<Self> {
        let config = config(folder, model)?;
        let process = Process(Some(
            Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?,
        ));
        let heard = Arc::<Mutex<Vec<Envelope>>>::default();
        let into = Arc::clone(&heard);
        let begun = process.spawn(async move {
            let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(Arc::new(MemoryHub::default())));
            let mut events = bus.subscribe("agent.>").await?;
            tokio::spawn(async move {
                while let Some(delivery) = events.next().await {
                    let event = serde_json::from_slice(&delivery.payload)
                        .expect("what is published is an event");
                    into.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(event);
                }
            });
            let running = Box::pin(node::open_on(&config, bus.clone())).await?;
            anyhow::Ok((running, bus))
        });
        let (running, bus) = begun.await??;
        Ok(Self {
            process,
            running,
            bus,
            heard,
        })
    }

    /// Sends a request from the node's own tokio runtime, so that killing the node also ends the
    /// request.
    pub fn ask(&self, to: Address, body: Value) -> JoinHandle<Result<Value, Refusal>> {
        let bus = Arc::clone(&self.bus);
        self.process.spawn(async move {
            let answer = bus.request(&to, body.to_string().into(), ANSWER).await;
            let answer = answer.unwrap_or_else(|error| panic!("{to} {body}: {error}"));
            reply::decode(&answer).map_err(|error| match error {
                ReplyError::Refused(refusal) => refusal,
                ReplyError::Foreign | ReplyError::Malformed(_) => panic!("{to} {body}: {error}"),
            })
        })
    }

    /// Requests all events of the session at this address, page by page.
    pub async fn log(&self, at: Address) -> Result<Vec<Envelope>> {
        let (mut log, mut from) = (Vec::new(), 1);
        loop {
            let asked = self.ask(at.clone(), json!({ "from": from }));
            let page: Events = read(answered(asked).await)?;
            for event in &page.events {
                log.push(serde_json::from_str::<Envelope>(event.get())?);
            }
            if page.next > page.head {
                return Ok(log);
            }
            from = page.next;
        }
    }

    pub fn id(&self) -> &NodeId {
        self.running.node().id()
    }

    /// Grants or withdraws the permit to begin new work, as the membership thread of a node does.
    pub fn permit(&self, is_given: bool) {
        let permit = self.running.node().services().handles.view.permit();
        match is_given {
            true => permit.give_until(u64::MAX),
            false => permit.take_back(),
        }
    }

    /// Returns the events that were published so far on the subjects of agents, in the order of
    /// their arrival.
    pub fn received(&self) -> Vec<Envelope> {
        self.heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Kills the process. The node writes and publishes nothing after this call has returned.
    pub async fn kill(self) {
        self.running
            .node()
            .services()
            .handles
            .host
            .shut_down()
            .await;
    }

    pub async fn leave(self) -> Result<()> {
        let Self {
            process, running, ..
        } = self;
        process
            .spawn(async move { running.shut_down(Duration::ZERO).await })
            .await
            .context("the node does not leave")
    }
}

/// Waits for the result of a request. Returns `None` if the node was killed before it answered.
pub async fn answered(asked: JoinHandle<Result<Value, Refusal>>) -> Answered {
    match asked.await {
        Ok(answer) => Some(answer),
        Err(error) if error.is_cancelled() => None,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn config(folder: &Path, model: &str) -> Result<Config> {
    let environment = [
        (
            "PLANCK_STORE_URL",
            format!("sqlite:{}", folder.join("sessions").display()),
        ),
        ("PLANCK_MODELS_DEFAULT", "scripted:test".into()),
        ("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.to_owned()),
    ];
    let environment = BTreeMap::from_iter(
        environment.map(|(name, value): (&str, String)| (name.to_owned(), value)),
    );
    let sources = Sources {
        home: Some(folder.into()),
        folder: folder.join("work"),
        environment,
        ..Sources::default()
    };
    Ok(config::load(&sources)?.config)
}

pub fn read<T: DeserializeOwned>(answer: Answered) -> Result<T> {
    let answer = answer
        .context("killed")?
        .map_err(|refusal| anyhow::anyhow!("{refusal}"))?;
    Ok(serde_json::from_value(answer)?)
}
