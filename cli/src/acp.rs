//! The command `planck acp`: an editor drives teams with the Agent Client Protocol.

mod connection;
mod editors;
mod history;
mod options;
mod permission;
mod prompts;
mod question;
mod rpc;
mod sessions;
mod updates;
mod wire;
mod work;
mod workers;

use std::sync::Arc;

use clap::Args;
use planck_node::config::Config;
use tokio_util::sync::CancellationToken;

use self::{editors::EditorChoice, options::Draft, sessions::Sessions};
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
  planck acp --team painter --print-config zed
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
    /// Print the settings with which an editor starts this command with the other options
    #[arg(long, value_name = "EDITOR", value_enum)]
    print_config: Option<EditorChoice>,
}

impl AcpArgs {
    pub async fn perform(self, global: &GlobalArgs) -> anyhow::Result<Exit> {
        if let Some(editor) = self.print_config {
            output::say(&editor.of_this_command()?)?;
            return Ok(Exit::Done);
        }
        output::refuse_terminal("`--print-config EDITOR` prints what an editor needs to start it")?;
        let (config, logs, link) = match Box::pin(self.connected(global)).await {
            Ok(connected) => connected,
            Err(why) => {
                // An editor shows the answer to its first request, and seldom what a command warns of.
                let (input, output) = (input::from_program()?, output::for_program()?);
                connection::refuse(input, output, &format!("{why:#}")).await;
                return Err(why);
            }
        };
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

    async fn connected(
        &self,
        global: &GlobalArgs,
    ) -> anyhow::Result<(Config, Logs, ConnectedClient)> {
        let config = self.choice(None).admit(global.config_of_node()?);
        let logs = Logs::start_if_asked(&config)?;
        let link = ConnectedClient::open(&config).await?;
        Ok((config, logs, link))
    }

    /// Returns how a session is created.
    fn choice(&self, draft: Option<&Draft>) -> SessionChoice {
        // The folder is one of this machine, and not one in the workspace.
        let has_own_folder = self.workspace.is_none();
        SessionChoice {
            team: draft.map_or_else(|| self.team.clone(), |draft| draft.team.clone()),
            model: self.model.clone(),
            workspace: self.workspace.clone(),
            dir: draft
                .filter(|_| has_own_folder)
                .map(|draft| draft.dir.clone()),
            permissions: draft.map_or(self.permissions, |draft| draft.permissions),
            ..SessionChoice::default()
        }
    }
}
