//! The `planck` command. Each subcommand has its own file, with a function that performs it and
//! returns its exit status.

mod acp;
mod agent;
#[cfg(feature = "jemalloc")]
mod allocator;
mod args;
mod ask;
mod attachment;
mod chat;
mod choose;
mod config;
mod connect;
mod demo;
mod doctor;
mod events;
mod exit;
mod hardening;
mod init;
mod input;
mod log;
mod mcp;
mod mistyped;
mod model;
mod node;
mod nodes;
mod output;
mod permissions;
mod project;
mod prove;
mod render;
mod run;
mod scaffold;
mod schema;
mod serve;
mod session;
mod sidecar;
mod team;
mod trust;
mod waits;
mod watch;

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use args::GlobalArgs;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use exit::Exit;
use output::data;

/// A distributed runtime for teams of LLM agents.
#[derive(Debug, Parser)]
#[command(name = "planck", version = env!("PLANCK_VERSION"), propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Without a command this opens `planck chat`, on a terminal.

Examples:
  planck                                     # a conversation
  planck run \"What is in this folder?\"       # one prompt
  planck run --continue \"And sort it\"        # goes on with the last session here
  planck demo                                # a team at work, without a key
  planck doctor                              # what is missing on this machine")]
struct Planck {
    #[command(flatten)]
    global: GlobalArgs,
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run a node in this process until it is asked to stop
    Node(node::NodeArgs),
    /// Serve the HTTP front and its console, with a node in the same process
    Serve(serve::ServeArgs),
    /// Run a small team on a scripted model, with everything it needs: no key, no set-up
    Demo(demo::Demo),
    /// Prove the promises of Planck here: kill nodes, cut links, and judge what is left
    Prove(prove::ProveArgs),
    /// Start or continue a session, and stream it here until its turn ends
    Run(run::RunArgs),
    /// Talk with a session: prompts, files and commands, until you leave
    Chat(chat::ChatArgs),
    /// Sessions: list, show, prompt, attach, abort, rewind, resume, close, remove, prune, export
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// Agents of a session: list, show, prompt, abort, stop
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// Team templates: new, list, validate, start
    #[command(subcommand)]
    Team(team::TeamCommand),
    /// List what agents wait for: approvals, questions, limits
    Waits(waits::WaitsArgs),
    /// Answer what an agent waits for
    Answer(waits::AnswerArgs),
    /// Nodes of the cluster: list, show, drain
    #[command(subcommand)]
    Nodes(nodes::Nodes),
    /// Sidecars: programs that offer tools
    #[command(subcommand)]
    Sidecar(sidecar::SidecarCommand),
    /// MCP: offer the tools of a server to agents, and teams as tools to a client
    #[command(subcommand)]
    Mcp(mcp::McpCommand),
    /// Let an editor that speaks the Agent Client Protocol drive a team
    Acp(acp::AcpArgs),
    /// Watch what is published
    Events(events::EventsArgs),
    /// List the models that can be used
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Write a first configuration, with a default model
    Init(init::Init),
    /// Show the configuration in force
    #[command(subcommand)]
    Config(config::Show),
    /// Check this machine, and list what is missing
    Doctor(doctor::Doctor),
    /// Print JSON Schemas of everything on the wire
    Schema(schema::SchemaArgs),
    /// Print a completion script for your shell
    Completion(CompletionArgs),
    /// Let a project's own `.planck/` have an effect: its configuration, tools, teams and skills
    Trust(trust::TrustArgs),
}

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|mode| mode == "reap") {
        return planck_toolbox::reap::main(args);
    }
    if let Err(why) = hardening::harden() {
        let _ = writeln!(
            std::io::stderr(),
            "planck: cannot take the secrets out of this process's environment: {why}"
        );
    }
    run()
}

/// Parses the arguments, performs the command, and returns the exit code. If the arguments are
/// wrong or ask for help, prints a text and ends the process.
fn run() -> ExitCode {
    let planck = Planck::try_parse().unwrap_or_else(|error| mistyped::exit(error));
    let done = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(planck.perform()));
    exit::code(done)
}

impl Planck {
    async fn perform(self) -> anyhow::Result<Exit> {
        let global = self.global;
        let Some(command) = self.command else {
            return bare(&global).await;
        };
        match command {
            CliCommand::Node(node) => Box::pin(node.perform(&global)).await,
            CliCommand::Serve(serve) => Box::pin(serve.perform(&global)).await,
            CliCommand::Demo(demo) => Box::pin(demo.perform()).await,
            CliCommand::Prove(prove) => Box::pin(prove.perform(&global)).await,
            CliCommand::Run(run) => Box::pin(run.perform(&global)).await,
            CliCommand::Chat(chat) => Box::pin(chat.perform(&global)).await,
            CliCommand::Session(session) => Box::pin(session.perform(&global)).await,
            CliCommand::Agent(agent) => Box::pin(agent.perform(&global)).await,
            CliCommand::Team(team) => Box::pin(team.perform(&global)).await,
            CliCommand::Waits(waits) => Box::pin(waits.perform(&global)).await,
            CliCommand::Answer(answer) => Box::pin(answer.perform(&global)).await,
            CliCommand::Nodes(nodes) => Box::pin(nodes.perform(&global)).await,
            CliCommand::Sidecar(sidecar) => Box::pin(sidecar.perform(&global)).await,
            CliCommand::Mcp(mcp) => Box::pin(mcp.perform(&global)).await,
            CliCommand::Acp(acp) => Box::pin(acp.perform(&global)).await,
            CliCommand::Events(watch) => Box::pin(watch.perform(&global)).await,
            CliCommand::Model(model) => Box::pin(model.perform(&global)).await,
            CliCommand::Init(init) => init.perform(&global),
            CliCommand::Config(show) => show.perform(&global),
            CliCommand::Doctor(doctor) => Box::pin(doctor.perform(&global)).await,
            CliCommand::Schema(schema) => schema.perform(),
            CliCommand::Completion(completion) => completion.perform(),
            CliCommand::Trust(trust) => trust.perform(&global),
        }
    }
}

/// Opens a chat if standard input and standard output are terminals. Otherwise prints the help to
/// standard error.
async fn bare(global: &GlobalArgs) -> anyhow::Result<Exit> {
    if std::io::stdin().is_terminal() && output::Stream::Out.is_terminal() {
        return Box::pin(chat::ChatArgs::default().perform(global)).await;
    }
    output::warn(Planck::command().render_help().to_string().trim_end());
    Ok(Exit::Misused)
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  planck completion bash > ~/.local/share/bash-completion/completions/planck\n  planck completion zsh > ~/.zfunc/_planck"
)]
struct CompletionArgs {
    shell: Shell,
}

impl CompletionArgs {
    fn perform(self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Planck::command(), "planck", &mut script);
        data(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Done)
    }
}
#[cfg(test)]
mod tests;
