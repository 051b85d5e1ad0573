//! The command `planck mcp serve`: teams as tools of the MCP client that has started it.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use planck_http::{Front, FrontOptions, StartDefaults};
use planck_mcp::{BoundedLines, LONGEST_LINE};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    args::GlobalArgs,
    connect::ConnectedClient,
    exit::Exit,
    input,
    log::Logs,
    node::Signals,
    output::{self, warn},
    waits::own_name,
};

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
        output::refuse_terminal("add it to an MCP client, as `planck mcp serve --help` shows")?;
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
    let input = BoundedLines::new(input::from_program()?, LONGEST_LINE, on_long);
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
