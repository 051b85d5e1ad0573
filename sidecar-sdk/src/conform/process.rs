//! An instance of the sidecar that the checker starts itself, in a process group of its own.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use planck_common::inbox::InboxPrefix;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::{CheckPlan, Error};
use crate::Connection;

/// A running instance. Dropping this value kills the process group of the instance.
pub struct ChildProcess {
    child: Child,
    group: Option<Pid>,
}

impl ChildProcess {
    /// Starts an instance. Passes the settings of the connection in the environment variables that
    /// the SDKs read. Its standard output is discarded, and its standard error is that
    /// of the checker.
    pub fn start(plan: &CheckPlan) -> Result<Self, Error> {
        let (program, arguments) = plan
            .command
            .split_first()
            .ok_or_else(|| Error::Command("the command is empty".into()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        pass(&plan.connection, &mut command);
        let child = command
            .spawn()
            .map_err(|error| Error::Command(format!("cannot run `{program}`: {error}")))?;
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw);
        Ok(Self { child, group })
    }

    /// Returns the exit status of the instance, or `None` if it still runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub async fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        let _reaped = self.child.wait().await;
    }

    /// Waits until the instance has ended by itself. Returns `None` if it still runs after
    /// `within`.
    pub async fn end(&mut self, within: Duration) -> Option<ExitStatus> {
        timeout(within, self.child.wait()).await.ok()?.ok()
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _already_gone = killpg(group, signal);
        }
    }
}

/// Sets the environment variables from which [`Connection::from_environment`] reads the settings.
fn pass(connection: &Connection, command: &mut Command) {
    let Connection {
        url,
        creds,
        nkey,
        tls_ca,
        tls_certificate,
        prefix,
        inbox_prefix,
        reply_prefixes,
    } = connection;
    if let Some(url) = url {
        command.env("NATS_URL", url);
    }
    if let Some(creds) = creds {
        command.env("NATS_CREDS", creds);
    }
    if let Some(nkey) = nkey {
        command.env("NATS_NKEY", nkey);
    }
    if let Some(ca) = tls_ca {
        command.env("PLANCK_NATS_TLS_CA", ca);
    }
    if let Some((certificate, key)) = tls_certificate {
        command.env("PLANCK_NATS_TLS_CERT", certificate);
        command.env("PLANCK_NATS_TLS_KEY", key);
    }
    let replies: Vec<&str> = reply_prefixes.iter().map(InboxPrefix::as_str).collect();
    command.env("PLANCK_NATS_SUBJECT_PREFIX", prefix.as_str());
    command.env("PLANCK_NATS_INBOX_PREFIX", inbox_prefix.as_str());
    command.env("PLANCK_NATS_REPLY_PREFIXES", replies.join(","));
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use planck_common::subject::Prefix;

    use super::*;

    fn inbox(text: &str) -> InboxPrefix {
        InboxPrefix::parse(text).unwrap()
    }

    fn read_back(connection: &Connection) -> Connection {
        let mut command = Command::new("unused");
        pass(connection, &mut command);
        let variable = |name: &str| {
            let mut passed = command.as_std().get_envs();
            let (_, value) = passed.find(|(passed, _)| *passed == name)?;
            Some(value?.to_str().unwrap().to_owned())
        };
        Connection::from_variables(variable).unwrap()
    }

    #[test]
    fn instance_reads_the_settings_of_the_connection_that_starts_it() {
        let full = Connection {
            url: Some("nats://one:4222,nats://two:4222".into()),
            creds: Some("/run/node.creds".into()),
            nkey: Some("SUANKEY".into()),
            tls_ca: Some("/run/ca.pem".into()),
            tls_certificate: Some(("/run/cert.pem".into(), "/run/key.pem".into())),
            prefix: Prefix::parse("acme.prod").unwrap(),
            inbox_prefix: inbox("_INBOX_sidecar"),
            reply_prefixes: vec![inbox("_INBOX_node"), inbox("answers.of.callers")],
        };
        for connection in [full, Connection::default()] {
            let read = read_back(&connection);
            assert_eq!(format!("{read:?}"), format!("{connection:?}"));
        }
    }
}
