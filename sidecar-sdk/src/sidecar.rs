//! A sidecar: its name, its tools and compactors, and its limits.

use std::{collections::BTreeMap, fmt, future::Future, time::Duration};

use planck_common::{
    SidecarId,
    id::{MalformedId, is_id},
};

use crate::{Compactor, Connection, Tool, serve};

/// The reason why a sidecar cannot be created or cannot serve.
#[derive(thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Name(#[from] MalformedId),
    #[error("malformed {kind} name `{name}`: expected 1 to 64 of A-Z a-z 0-9 _ -")]
    OfferName { kind: &'static str, name: String },
    #[error("malformed version `{0}`: expected three numbers as in 1.0.0")]
    Version(String),
    #[error("two {kind}s are called `{name}`")]
    Twice { kind: &'static str, name: String },
    #[error(
        "the arguments of tool `{0}` are not a JSON object: use a struct, or `serde_json::Map<String, Value>` for any object"
    )]
    Arguments(String),
    #[error("nothing to offer: add a tool or a compactor")]
    Nothing,
    /// The connection's settings are wrong, or the server cannot be reached.
    #[error("{0}")]
    Connection(String),
}

/// Formats the error as its `Display` does, because a `main` that returns the error prints its
/// debug form to the user.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The tools and compactors that a program offers to agents, with the limits on concurrent calls
/// and on the time that they have to end when the program stops.
pub struct Sidecar {
    pub(crate) name: SidecarId,
    pub(crate) version: String,
    pub(crate) description: String,
    pub(crate) tools: Vec<Tool>,
    pub(crate) compactors: BTreeMap<String, Box<dyn Compactor>>,
    pub(crate) bounds: Bounds,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub at_once: usize,
    pub drain: Duration,
}

impl Sidecar {
    /// Creates a sidecar without tools. All instances of one sidecar have the same name, and share
    /// its calls.
    ///
    /// # Errors
    /// Returns an error if the name is not 1 to 64 of `A-Z a-z 0-9 _ -`, or the version is not
    /// three numbers.
    pub fn new(name: &str, version: &str) -> Result<Self, Error> {
        let numbers = version.split('.').filter(|number| {
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        });
        if numbers.count() != 3 || version.split('.').count() != 3 {
            return Err(Error::Version(version.into()));
        }
        Ok(Self {
            name: SidecarId::parse(name)?,
            version: version.into(),
            description: String::new(),
            tools: Vec::new(),
            compactors: BTreeMap::new(),
            bounds: Bounds {
                at_once: 64,
                drain: Duration::from_secs(25),
            },
        })
    }

    /// Sets the description that `nats service info` shows.
    #[must_use]
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Adds a compactor, and removes an earlier one with the same name. Agents refer to the
    /// compactor as `<sidecar>.<name>`, or as `<name>` if no other sidecar has a compactor with
    /// this name.
    #[must_use]
    pub fn compactor(
        mut self,
        name: impl Into<String>,
        compactor: impl Compactor + 'static,
    ) -> Self {
        self.compactors.insert(name.into(), Box::new(compactor));
        self
    }

    /// Sets how many calls run at once: at least 1, and 64 by default. Up to sixteen times as many
    /// calls wait, and the sidecar refuses further calls.
    #[must_use]
    pub const fn at_once(mut self, calls: usize) -> Self {
        self.bounds.at_once = if calls == 0 { 1 } else { calls };
        self
    }

    /// Sets how long running calls may take to end when the sidecar is stopped, 25 s by default.
    /// The sidecar then cancels them.
    #[must_use]
    pub const fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.bounds.drain = timeout;
        self
    }

    /// Connects with the settings from the environment and serves until SIGTERM or ctrl-c. See
    /// [`Connection::from_environment`] for the settings. Prints a line to standard error when the
    /// sidecar takes calls. At a second signal, returns without waiting for the running calls.
    ///
    /// # Errors
    /// Returns an error if a setting is wrong, if the server does not answer or refuses this user,
    /// or if the sidecar has nothing to offer or an invalid tool or compactor.
    pub async fn run(self) -> Result<(), Error> {
        let told_twice = async {
            serve::stop_signal().await;
            serve::stop_signal().await;
        };
        tokio::select! {
            done = self.run_with_notice(Connection::from_environment()?) => done,
            () = told_twice => Ok(()),
        }
    }

    /// Serves until `stop` completes, then takes no more calls and waits for those that run, as
    /// long as [`Self::drain_timeout`] allows. Returns at once if no server has answered by the
    /// time `stop` completes.
    ///
    /// # Errors
    /// Returns an error if a setting of the connection is wrong, if the server does not answer or
    /// refuses this user, or if the sidecar has nothing to offer or an invalid tool or compactor.
    pub async fn run_until(
        self,
        connection: Connection,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), Error> {
        self.check()?;
        serve::serve(self, connection, stop, |_| ()).await
    }

    async fn run_with_notice(self, connection: Connection) -> Result<(), Error> {
        self.check()?;
        let (name, version) = (self.name.clone(), self.version.clone());
        let say = move |server: &str| eprintln!("serving {name} {version} at {server}");
        serve::serve(self, connection, serve::stop_signal(), say).await
    }

    fn check(&self) -> Result<(), Error> {
        if self.tools.is_empty() && self.compactors.is_empty() {
            return Err(Error::Nothing);
        }
        if let Some(tool) = self.tools.iter().find(|tool| !tool.takes_object) {
            return Err(Error::Arguments(tool.name.clone()));
        }
        let tools = self.tools.iter().map(|tool| ("tool", tool.name.as_str()));
        let mut seen = BTreeMap::new();
        for (kind, name) in tools.chain(
            self.compactors
                .keys()
                .map(|name| ("compactor", name.as_str())),
        ) {
            if !is_id(name) {
                return Err(Error::OfferName {
                    kind,
                    name: name.into(),
                });
            }
            if seen.insert((kind, name), ()).is_some() {
                return Err(Error::Twice {
                    kind,
                    name: name.into(),
                });
            }
        }
        Ok(())
    }
}
