//! The exit codes: 0 for success, 1 for a failure, 2 for wrong usage, an invalid file or a place where
//! nothing can be proven, 3 if something was not found or not tested, 4 if NATS or the database is unreachable, 5 if agents wait for an answer,
//! 6 if there is no answer in the shape that was asked for, 130 after an interrupt, and 143 after
//! SIGTERM.

use std::{io, process::ExitCode};

use planck_common::reply::Code;
use planck_sidecar::conform;
use tokio::signal::unix::{SignalKind, signal};

use super::output;
use planck_bus::BusError;
use planck_client::ClientError;
use planck_cluster::thread::JoinError;
use planck_mcp::BridgeError;
use planck_node::config::Problems;
use planck_node::node::AssemblyError;
use planck_node::team::TemplateErrors;
use planck_prove::UnfitPlace;
use planck_store::StoreError;

/// The outcome of a command that returned no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// The command failed and has already printed why.
    Failed,
    /// The command was used wrongly or a file is invalid, and the command has already printed why.
    Misused,
    /// Agents wait for an answer, and the command has already printed how to give it.
    Waiting,
    /// There is no answer in the shape that was asked for, and the command has already printed why.
    Shapeless,
    /// Something was not tested, and the command has already printed what.
    Partial,
    /// The user interrupted the command.
    Interrupted,
    /// SIGTERM ended the command.
    Terminated,
}

/// Waits for the work of a command, which ends at once if SIGTERM arrives. Dropping the work
/// restores the terminal, whose settings a question or an editor may have changed.
pub async fn until_terminated(
    work: impl Future<Output = anyhow::Result<Exit>>,
) -> anyhow::Result<Exit> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        done = work => done,
        _ = terminated.recv() => Ok(Exit::Terminated),
    }
}

/// A mistake in the arguments or in a file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The error when the command line names something that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotFound(pub String);

/// Converts the result of a command to an exit code, and prints the error if there is one. If the
/// reader of the output has closed the pipe, that counts as success.
pub fn code(done: anyhow::Result<Exit>) -> ExitCode {
    match done {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::from(1),
        Ok(Exit::Misused) => ExitCode::from(2),
        Ok(Exit::Partial) => ExitCode::from(3),
        Ok(Exit::Waiting) => ExitCode::from(5),
        Ok(Exit::Shapeless) => ExitCode::from(6),
        // 128 plus the number of the signal, which is how shells report a program that the signal
        // ended.
        Ok(Exit::Interrupted) => ExitCode::from(130),
        Ok(Exit::Terminated) => ExitCode::from(143),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::warn(&format!("planck: {error:#}"));
            ExitCode::from(number(&error))
        }
    }
}

/// Returns whether the error is that the reader of the output, such as `head`, has closed the pipe.
/// Such an error is not a failure of the command.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn number(error: &anyhow::Error) -> u8 {
    if error.is::<UsageError>() || error.is::<Problems>() || error.is::<TemplateErrors>() {
        return 2;
    }
    if error.is::<UnfitPlace>() {
        return 2;
    }
    if error.is::<NotFound>() {
        return 3;
    }
    if let Some(error) = error.downcast_ref::<conform::CheckError>() {
        return of_check(error);
    }
    if let Some(error) = error.downcast_ref::<BridgeError>() {
        return of_bridge(error);
    }
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return of_client(error);
    }
    if let Some(error) = error.downcast_ref::<StoreError>() {
        return of_store(error);
    }
    match error.downcast_ref::<AssemblyError>() {
        Some(AssemblyError::Bus(_)) => 4,
        Some(AssemblyError::Store(error)) => of_store(error),
        Some(AssemblyError::Config(_) | AssemblyError::Tool(_)) => 2,
        Some(AssemblyError::Join(JoinError::TooLate)) => 4,
        Some(AssemblyError::Threads(_) | AssemblyError::Join(_)) => 1,
        None if error.is::<BusError>() => 4,
        None => 1,
    }
}

fn of_bridge(error: &BridgeError) -> u8 {
    match error {
        BridgeError::Sidecar(planck_sidecar::Error::Connection(_)) => 4,
        BridgeError::Sidecar(planck_sidecar::Error::Name(_)) => 2,
        BridgeError::Sidecar(_) | BridgeError::Server(_) | BridgeError::Task(_) => 1,
    }
}

fn of_check(error: &conform::CheckError) -> u8 {
    match error {
        conform::CheckError::Command(_) => 2,
        conform::CheckError::Absent(_) => 3,
        conform::CheckError::Connection(_) | conform::CheckError::Nats(_) => 4,
    }
}

fn of_store(error: &StoreError) -> u8 {
    match error {
        StoreError::Away(_) => 4,
        StoreError::NotFound(_) => 3,
        StoreError::Exists(_)
        | StoreError::StaleEpoch(_)
        | StoreError::BadRequest(_)
        | StoreError::Limit(_)
        | StoreError::Busy(_)
        | StoreError::Full(_)
        | StoreError::Broken(_) => 1,
    }
}

fn of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::Refused(refusal) if refusal.code == Code::BadRequest => 2,
        ClientError::Refused(refusal) if refusal.code == Code::NotFound => 3,
        ClientError::Refused(refusal) if refusal.code == Code::Unavailable => 4,
        ClientError::Refused(_) | ClientError::Malformed { .. } => 1,
        ClientError::Unreachable(_) => 4,
    }
}
