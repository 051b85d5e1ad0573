//! The command `planck mcp serve`: teams as tools of the MCP client that has started it.

use std::{
    io::{self, Read as _},
    sync::Arc,
    thread,
};

use anyhow::Context as _;
use bytes::Bytes;
use clap::Args;
use futures_util::stream;
use planck_http::{Front, FrontOptions, StartDefaults};
use planck_mcp::{BoundedLines, LONGEST_LINE};
use tokio::{
    io::AsyncRead,
    sync::{mpsc, oneshot},
};
use tokio_util::{io::StreamReader, sync::CancellationToken};

use crate::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::{Exit, UsageError},
    log::Logs,
    node::Signals,
    output::{self, Stream, warn},
    waits::own_name,
};

/// The size of the buffer for the input in bytes, and how many of them may wait.
const BUFFER: usize = 64 << 10;
const WAITING: usize = 4;

/// An MCP client starts this command, and speaks with it on its standard input and output. With NATS
/// the tools reach the whole cluster. Without NATS they use the `planck serve` of the same store or,
/// if there is none, a node in this process: then work that is running when the client ends goes on
/// with the next command on this store.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  claude mcp add planck -- planck mcp serve
  claude mcp add planck -- planck --nats nats://127.0.0.1:4222 mcp serve")]
pub struct ServeArgs {}

impl ServeArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        if Stream::Out.is_terminal() {
            let why = "this command speaks with a program: add it to an MCP client, as `planck mcp serve --help` shows";
            return Err(UsageError(why.into()).into());
        }
        let config = global.config_of_node()?;
        let here = std::env::current_dir().context("cannot find the working directory")?;
        let logs = Logs::start_if_asked(&config)?;
        let link = Box::pin(ConnectedClient::open(&config)).await?;
        let start = StartDefaults {
            workspace: None,
            dir: config
                .nats
                .url
                .is_none()
                .then(|| here.display().to_string()),
        };
        let options = FrontOptions {
            start,
            ..FrontOptions::default()
        };
        let front = Front::new(link.client.clone(), options);
        let served = serve(front).await;
        link.close().await;
        logs.end().await;
        served
    }
}

async fn serve(front: Arc<Front>) -> anyhow::Result<Exit> {
    let (mut signals, stop) = (Signals::listen()?, CancellationToken::new());
    let (on_long, mut long) = oneshot::channel();
    let input = BoundedLines::new(input()?, LONGEST_LINE, on_long);
    let serving = front.speak_mcp(input, output::for_program()?, own_name(), stop.clone());
    let Some(served) = signals.until_done(serving, &stop).await else {
        return Ok(Exit::Failed);
    };
    served?;
    if long.try_recv().is_ok() {
        warn(&format!(
            "planck: the client sent a message of more than {} MiB",
            LONGEST_LINE >> 20
        ));
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Returns the standard input. A thread of its own reads it, because tokio's reader would keep the
/// process from ending while the client writes nothing.
fn input() -> io::Result<impl AsyncRead + Send + Unpin + 'static> {
    let (sender, mut receiver) = mpsc::channel(WAITING);
    let read = move || {
        let (mut stdin, mut buffer) = (io::stdin().lock(), vec![0; BUFFER]);
        loop {
            let read = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(size) => Ok(Bytes::copy_from_slice(
                    buffer.get(..size).unwrap_or_default(),
                )),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = read.is_err();
            if sender.blocking_send(read).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(StreamReader::new(stream::poll_fn(move |context| {
        receiver.poll_recv(context)
    })))
}
