//! The command `planck acp`: an editor drives teams with the Agent Client Protocol.

mod connection;
mod permission;
mod session;
mod updates;
mod wire;

use std::{path::Path, sync::Arc};

use clap::Args;
use tokio_util::sync::CancellationToken;

use self::session::Sessions;
use crate::{
    args::GlobalArgs, choose::SessionChoice, connect::ConnectedClient, exit::Exit, input,
    log::Logs, node::Signals, output, permissions::ModeChoice,
};

/// An editor starts this command, and speaks with it on its standard input and output. With NATS the
/// sessions run in the cluster. Without NATS they run in the `planck serve` of the same store or, if
/// there is none, in a node in this process: then work that is running when the editor ends goes on
/// with the next command on this store.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck acp                          # what an editor's settings name as the command of an agent
  planck acp --team painter --permissions careful
  planck --nats nats://127.0.0.1:4222 acp --workspace code")]
pub struct AcpArgs {
    /// The team of new sessions: a folder or file with a TEAM.json, or the name of a template
    #[arg(long, value_name = "DIR|FILE|NAME")]
    team: Option<String>,
    /// The model of agents that name none, as provider:model
    #[arg(long, value_name = "P:ID")]
    model: Option<String>,
    /// The workspace of new sessions, in place of the editor's folder
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Which tool calls of new sessions run at once
    #[arg(long, value_name = "MODE", value_enum)]
    permissions: Option<ModeChoice>,
}

impl AcpArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        output::refuse_terminal("name it in an editor as the command of an agent")?;
        let config = self.choice(None).admit(global.config_of_node()?);
        let logs = Logs::start_if_asked(&config)?;
        let link = Box::pin(ConnectedClient::open(&config)).await?;
        let client = link.client.clone();
        let open = |to_client| Sessions::new(client, Arc::new(config), self, to_client);
        let (mut signals, stop) = (Signals::listen()?, CancellationToken::new());
        let (input, output) = (input::from_program()?, output::for_program()?);
        let serving = connection::serve(input, output, open, stop.clone());
        let served = signals.until_done(serving, &stop).await;
        link.close().await;
        logs.end().await;
        match served {
            Some(served) => served.map(|()| Exit::Done).map_err(Into::into),
            None => Ok(Exit::Failed),
        }
    }

    /// Returns how a session is created that works in a folder.
    fn choice(&self, dir: Option<&Path>) -> SessionChoice {
        SessionChoice {
            team: self.team.clone(),
            model: self.model.clone(),
            workspace: self.workspace.clone(),
            // The folder is one of this machine, and not one in the workspace.
            dir: dir
                .filter(|_| self.workspace.is_none())
                .map(Path::to_path_buf),
            permissions: self.permissions,
            ..SessionChoice::default()
        }
    }
}
