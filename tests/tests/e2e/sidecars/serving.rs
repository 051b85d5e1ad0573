//! Sidecars for tests.

use std::{
    convert::Infallible,
    env,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result};
use planck_common::{command::Sidecars, subject::Target};
use planck_sidecar::{Connection, Context, Sidecar, Tool};
use planck_tests::{caller::list_of, eventually::eventually, world::World};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    sync::oneshot,
    task::JoinHandle,
};

/// A sidecar in this process. Dropping it ends it without a word.
pub struct Serving {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), planck_sidecar::Error>>,
}

impl Serving {
    pub fn start(world: &World, sidecar: Sidecar) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(sidecar.run_until(Connection::to(world.nats.url()), async move { drop(stopped.await) }));
        Self { stop: Some(stop), task }
    }

    /// It says goodbye, finishes what runs and ends.
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

/// Whatever arguments come.
pub type Args = serde_json::Map<String, Value>;

/// What a sidecar was asked, in order: call ids and arguments.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<(String, Args)>>>);

impl Ledger {
    pub fn entries(&self) -> Vec<(String, Args)> {
        self.0.lock().unwrap().clone()
    }

    pub fn note(&self, context: &Context, args: &Args) {
        self.0.lock().unwrap().push((context.call_id().to_string(), args.clone()));
    }
}

/// A sidecar with the pure tool `echo`, which writes down what it was asked and gives it back.
pub fn echo(name: &str, ledger: &Ledger) -> Sidecar {
    let ledger = ledger.clone();
    let answer = move |context: Context, args: Args| {
        ledger.note(&context, &args);
        async move { Ok::<_, Infallible>(Value::Object(args).to_string()) }
    };
    Sidecar::new(name, "1.0.0").unwrap().tool(Tool::new("echo", "Gives back what it is given.", answer).pure())
}

/// The example `text-rust` in a process of its own.
pub fn text(world: &World) -> Result<Child> {
    let test = env::current_exe()?;
    let built: PathBuf = test.ancestors().nth(2).context("no folder")?.join("examples/text-rust");
    let built = built.is_file().then_some(built).context("run `cargo build -p planck-sidecar --examples` first")?;
    let mut command = Command::new(built);
    command.env("NATS_URL", world.nats.url()).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command.spawn()?)
}

/// Waits until the node has found so many instances of a sidecar.
pub async fn found(world: &World, sidecar: &str, instances: u32) -> Result<()> {
    eventually(&format!("{instances} instances of {sidecar} are found"), async || {
        let listed: Sidecars = world.caller.ask(&list_of(Target::Sidecars), &json!({})).await.ok()?;
        let there = listed.sidecars.iter().find(|row| row.name == sidecar).map_or(0, |row| row.instances);
        (there == instances).then_some(())
    })
    .await
}
