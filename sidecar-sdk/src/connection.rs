//! The connection to NATS, and the check that a reply goes to an inbox.

use std::{
    env, fs,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use planck_common::{
    inbox::{InboxPrefix, Refusals, ReplyRule},
    subject::Prefix,
};
use tokio::time::{Instant, sleep};

use crate::Error;

/// How long the first connection may take.
const FIRST: Duration = Duration::from_secs(10);

/// The pause between two attempts of the first connection.
const PAUSE: Duration = Duration::from_millis(200);

/// The settings of a connection to NATS: addresses, credentials and subject prefixes.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// One URL, or several separated by commas; `nats://127.0.0.1:4222` by default.
    pub url: Option<String>,
    /// A credentials file.
    pub creds: Option<PathBuf>,
    /// The seed of an nkey.
    pub nkey: Option<String>,
    /// A file with certificate authorities to trust in addition to the system's.
    pub tls_ca: Option<PathBuf>,
    /// The files with the client's certificate and its key.
    pub tls_certificate: Option<(PathBuf, PathBuf)>,
    /// The prefix of every subject of the cluster.
    pub prefix: Prefix,
    /// The prefix of this connection's own inboxes.
    pub inbox_prefix: InboxPrefix,
    /// The prefixes that the reply subjects of requests may have besides `_INBOX` and
    /// `inbox_prefix`.
    pub reply_prefixes: Vec<InboxPrefix>,
}

/// Returns the seed of an nkey. A setting with `/` or `.` is the path of a file with the seed. Any
/// other setting is the seed itself.
fn seed(said: String) -> Result<String, Error> {
    match said.contains(['/', '.']) {
        true => fs::read_to_string(&said)
            .map_err(|error| Error::Connection(format!("cannot read NATS_NKEY={said}: {error}"))),
        false => Ok(said),
    }
}

impl Connection {
    /// Returns the settings of a plain connection to one address, for example in a test.
    pub fn to(url: impl Into<String>) -> Self {
        Self {
            url: Some(url.into()),
            ..Self::default()
        }
    }

    /// Reads the settings from the variables that a node reads too: `NATS_URL`, `NATS_CREDS`,
    /// `NATS_NKEY`, and with the prefix `PLANCK_NATS_` the variables `TLS_CA`, `TLS_CERT`,
    /// `TLS_KEY`, `SUBJECT_PREFIX`, `INBOX_PREFIX` and `REPLY_PREFIXES` (separated by commas).
    ///
    /// # Errors
    /// Returns an error if a prefix is malformed, if only one of the certificate and its key is
    /// set, or if the file with the seed of the nkey cannot be read.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variables(|name| env::var(name).ok())
    }

    pub(crate) fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let said = |name: &str| variable(name).filter(|value| !value.is_empty());
        let own = |name: &str| said(&format!("PLANCK_NATS_{name}"));
        let inbox = |text: &str| {
            InboxPrefix::parse(text.trim()).map_err(|error| Error::Connection(error.to_string()))
        };
        let prefix = own("SUBJECT_PREFIX").unwrap_or_default();
        let tls_certificate = match (own("TLS_CERT"), own("TLS_KEY")) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => {
                return Err(Error::Connection(
                    "set PLANCK_NATS_TLS_CERT and PLANCK_NATS_TLS_KEY, or neither".into(),
                ));
            }
        };
        Ok(Self {
            url: said("NATS_URL"),
            creds: said("NATS_CREDS").map(PathBuf::from),
            nkey: said("NATS_NKEY").map(seed).transpose()?,
            tls_ca: own("TLS_CA").map(PathBuf::from),
            tls_certificate,
            prefix: Prefix::parse(&prefix).map_err(|error| Error::Connection(error.to_string()))?,
            inbox_prefix: own("INBOX_PREFIX")
                .map_or_else(|| Ok(InboxPrefix::default()), |text| inbox(&text))?,
            reply_prefixes: own("REPLY_PREFIXES")
                .iter()
                .flat_map(|text| text.split(','))
                .map(inbox)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Connects to NATS. Tries again for up to [`FIRST`] while the server may still be starting.
    /// `on_event` receives the events of the connection.
    pub(crate) async fn open(
        &self,
        name: &str,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Client, Error> {
        let servers = self.servers()?;
        let shown = shown(&servers);
        let on_event = Arc::new(on_event);
        let until = Instant::now() + FIRST;
        loop {
            let told = on_event.clone();
            let options =
                with_user(self.options(name).await?, &servers).event_callback(move |event| {
                    told(event);
                    std::future::ready(())
                });
            match options.connect(servers.as_slice()).await {
                Ok(client) => return Ok(client),
                Err(error) if may_pass(&error) && Instant::now() + PAUSE < until => {
                    sleep(PAUSE).await
                }
                Err(error) => {
                    let text = format!(
                        "cannot connect to NATS at {shown}: {error}; {}",
                        way_out(&error)
                    );
                    return Err(Error::Connection(text));
                }
            }
        }
    }

    fn servers(&self) -> Result<Vec<ServerAddr>, Error> {
        let url = self.url.as_deref().unwrap_or("nats://127.0.0.1:4222");
        let servers: Result<Vec<ServerAddr>, _> =
            url.split(',').map(|url| url.trim().parse()).collect();
        servers.map_err(|error| {
            Error::Connection(format!(
                "cannot read NATS_URL ({error}); expected nats://host:port"
            ))
        })
    }

    /// Returns the addresses of the servers without users and passwords.
    pub(crate) fn shown(&self) -> String {
        self.servers()
            .map(|servers| shown(&servers))
            .unwrap_or_default()
    }

    async fn options(&self, name: &str) -> Result<ConnectOptions, Error> {
        let mut options = ConnectOptions::new()
            .name(name)
            .custom_inbox_prefix(self.inbox_prefix.as_str())
            .require_tls(self.tls_ca.is_some() || self.tls_certificate.is_some())
            .connection_timeout(Duration::from_secs(2))
            .ping_interval(Duration::from_secs(2))
            .reconnect_delay_callback(reconnect_delay);
        if let Some(ca) = &self.tls_ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = &self.tls_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        if let Some(nkey) = &self.nkey {
            options = options.nkey(nkey.trim().to_owned());
        }
        if let Some(creds) = &self.creds {
            let read = options.credentials_file(creds).await;
            options = read.map_err(|error| {
                Error::Connection(format!(
                    "cannot read NATS credentials {}: {error}",
                    creds.display()
                ))
            })?;
        }
        Ok(options)
    }
}

fn shown(servers: &[ServerAddr]) -> String {
    servers
        .iter()
        .map(|server| format!("{}:{}", server.host(), server.port()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns advice on how to fix the error. The advice to start a server is left out if a server has
/// refused the user, because that server is running.
fn way_out(error: &ConnectError) -> &'static str {
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            "check NATS_CREDS, NATS_NKEY, or the user in NATS_URL"
        }
        ConnectErrorKind::Tls => {
            "check PLANCK_NATS_TLS_CA, PLANCK_NATS_TLS_CERT and PLANCK_NATS_TLS_KEY"
        }
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => {
            "set NATS_URL, and start a server with `nats-server -js -a 127.0.0.1`"
        }
    }
}

/// Returns whether another attempt may succeed, because the server may still be starting.
fn may_pass(error: &ConnectError) -> bool {
    matches!(
        error.kind(),
        ConnectErrorKind::Io | ConnectErrorKind::Dns | ConnectErrorKind::TimedOut
    )
}

/// Adds to the options the user and password, or the token, of the first URL that contains some,
/// because the client library ignores credentials in a URL.
fn with_user(options: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let Some((user, password)) = servers
        .iter()
        .find_map(|server| Some((server.username()?, server.password())))
    else {
        return options;
    };
    match password {
        Some(password) => options.user_and_password(user.to_owned(), password.to_owned()),
        None => options.token(user.to_owned()),
    }
}

/// Returns the delay before a reconnect. It grows by 20 ms with each attempt up to 250 ms. A jitter
/// of up to a quarter of the delay plus 2 ms keeps many clients from reconnecting at the same
/// moment.
fn reconnect_delay(attempts: usize) -> Duration {
    let base = u64::try_from(attempts)
        .unwrap_or(u64::MAX)
        .saturating_sub(1)
        .saturating_mul(20)
        .min(250);
    Duration::from_millis(base + fastrand::u64(0..=base / 4 + 2))
}

/// The check that the reply to a request goes to an inbox. A sidecar may be allowed to publish to
/// more subjects than its callers. On such a subject, its reply could act as a command to another
/// program.
pub struct ReplySubjectGuard {
    rule: ReplyRule,
    refusals: Mutex<Refusals>,
}

impl ReplySubjectGuard {
    pub fn new(rule: ReplyRule) -> Self {
        Self {
            rule,
            refusals: Mutex::default(),
        }
    }

    /// Returns whether the reply to a request may go to a subject. Counts refusals, and logs them
    /// at most once a minute.
    pub fn admits(&self, request: &str, to: &str) -> bool {
        let admitted = self.rule.admits(to);
        if !admitted {
            let to_log = self
                .refusals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(std::time::Instant::now());
            if let Some(refused) = to_log {
                tracing::warn!(
                    "refused a request on {request:?}: its reply would go to {to:?}, which is no inbox ({refused} so far)"
                );
            }
        }
        admitted
    }
}
