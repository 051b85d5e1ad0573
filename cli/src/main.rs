//! The `planck` command. Each subcommand has its own file, with a function that performs it and
//! returns its exit status.

mod agent;
mod ask;
#[cfg(any(test, feature = "bench"))]
mod bench;
mod chat;
mod choose;
mod completion;
mod config;
mod connect;
mod demo;
mod doctor;
mod events;
mod exit;
mod follow_work;
mod hardening;
mod init;
mod log;
mod mistyped;
mod model;
mod node;
mod nodes;
mod output;
mod permissions;
mod place;
mod project;
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

#[cfg(test)]
mod tests;

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};

use exit::Exit;
use place::ConfigPlace;

/// The allocator of what is shipped. glibc's allocator would keep the memory of parked agents,
/// whereas jemalloc returns it to the operating system.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The options of jemalloc, which reads them from the string to which this symbol points. Freed
/// memory is returned to the operating system after one second instead of ten. The caches of the
/// threads are small, because an idle thread never empties its cache.
#[cfg(feature = "jemalloc")]
#[expect(
    unsafe_code,
    reason = "the linker gives jemalloc the symbol by its name; nothing else defines it"
)]
#[unsafe(export_name = "malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 102] =
    b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,tcache_max:256,tcache_nslots_small_max:16\0";

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
    place: ConfigPlace,
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
    /// Watch what is published
    Events(events::EventsArgs),
    /// List the models that can be used
    #[command(subcommand)]
    Model(model::Model),
    /// Write a first configuration, with a default model
    Init(init::Init),
    /// Show the configuration in force
    #[command(subcommand)]
    Config(config::Show),
    /// Check this machine, and list what is missing
    Doctor(doctor::Doctor),
    /// Measure what turns cost here, compared with a bare loop
    #[cfg(any(test, feature = "bench"))]
    Bench(bench::BenchArgs),
    /// Print JSON Schemas of everything on the wire
    Schema(schema::SchemaArgs),
    /// Print a completion script for your shell
    Completion(completion::Completion),
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
        let place = self.place;
        let Some(command) = self.command else {
            return bare(&place).await;
        };
        match command {
            CliCommand::Node(node) => Box::pin(node.perform(&place)).await,
            CliCommand::Serve(serve) => Box::pin(serve.perform(&place)).await,
            CliCommand::Demo(demo) => Box::pin(demo.perform()).await,
            CliCommand::Run(run) => Box::pin(run.perform(&place)).await,
            CliCommand::Chat(chat) => Box::pin(chat.perform(&place)).await,
            CliCommand::Session(session) => Box::pin(session.perform(&place)).await,
            CliCommand::Agent(agent) => Box::pin(agent.perform(&place)).await,
            CliCommand::Team(team) => Box::pin(team.perform(&place)).await,
            CliCommand::Waits(waits) => Box::pin(waits.perform(&place)).await,
            CliCommand::Answer(answer) => Box::pin(answer.perform(&place)).await,
            CliCommand::Nodes(nodes) => Box::pin(nodes.perform(&place)).await,
            CliCommand::Sidecar(sidecar) => Box::pin(sidecar.perform(&place)).await,
            CliCommand::Events(watch) => Box::pin(watch.perform(&place)).await,
            CliCommand::Model(model) => Box::pin(model.perform(&place)).await,
            CliCommand::Init(init) => init.perform(&place),
            CliCommand::Config(show) => show.perform(&place),
            CliCommand::Doctor(doctor) => Box::pin(doctor.perform(&place)).await,
            #[cfg(any(test, feature = "bench"))]
            CliCommand::Bench(bench) => Box::pin(bench.perform()).await,
            CliCommand::Schema(schema) => schema.perform(),
            CliCommand::Completion(completion) => completion.perform(),
            CliCommand::Trust(trust) => trust.perform(&place),
        }
    }
}

/// Opens a chat if standard input and standard output are terminals. Otherwise prints the help to
/// standard error.
async fn bare(place: &ConfigPlace) -> anyhow::Result<Exit> {
    if std::io::stdin().is_terminal() && output::Stream::Out.is_terminal() {
        return Box::pin(chat::ChatArgs::default().perform(place)).await;
    }
    output::warn(Planck::command().render_help().to_string().trim_end());
    Ok(Exit::Misused)
}
