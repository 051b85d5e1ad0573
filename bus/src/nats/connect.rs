//! Connects to NATS with the options of the program, and checks that the server has what Planck
//! needs.

use std::{
    error::Error, io, iter::successors, net::IpAddr, path::PathBuf, sync::Arc, time::Duration,
};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr, ServerInfo};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout_at};

use planck_common::{
    inbox::{InboxPrefix, ReplyRule},
    subject::Prefix,
};

use super::{
    link::{LinkEvents, NatsLink, ReplyCheck},
    request::{Outgoing, exchange},
};
use crate::{BusError, OutboxLimits};

/// The first server version (major, minor) with atomic batches.
const SERVER: (i64, i64) = (2, 12);
/// The JetStream API level that provides atomic batches.
const API_LEVEL: usize = 2;

/// The subject on which JetStream describes an account.
const ACCOUNT: &str = "$JS.API.INFO";
/// How long JetStream's description may take, because JetStream may be electing a leader.
const JETSTREAM: Duration = Duration::from_secs(5);

/// The maximum number of attempts for the first connection.
const TRIES: u32 = 5;
/// The pause between two of these attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The servers, the credentials and the settings of a connection to NATS.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// One URL, or several separated by commas.
    pub url: String,
    /// The name under which the server lists this connection.
    pub name: String,
    pub prefix: Prefix,
    /// A credentials file (JWT and seed).
    pub creds: Option<PathBuf>,
    /// The seed of an nkey.
    pub nkey: Option<String>,
    pub tls: TlsOptions,
    /// The prefix of the subjects on which replies arrive. Use a different prefix for each user if
    /// every user may only subscribe below its own.
    pub inbox_prefix: InboxPrefix,
    /// The prefixes, besides `_INBOX` and `inbox_prefix`, that the reply subjects of received
    /// requests may have.
    pub reply_prefixes: Vec<InboxPrefix>,
    /// How long the first connection may take, with all its attempts.
    pub connect_timeout: Duration,
    pub limits: OutboxLimits,
}

/// Settings for TLS, which is used if the server asks for it or if `required` is set.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    pub required: bool,
    /// Root certificates in addition to the system's.
    pub ca: Option<PathBuf>,
    /// A client certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl NatsOptions {
    /// Returns the options of a plain connection.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            name: "planck".into(),
            prefix: Prefix::default(),
            creds: None,
            nkey: None,
            tls: TlsOptions::default(),
            inbox_prefix: InboxPrefix::default(),
            reply_prefixes: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            limits: OutboxLimits::default(),
        }
    }
}

pub async fn connect(options: &NatsOptions) -> Result<NatsLink, BusError> {
    let servers = servers(&options.url)?;
    let deadline = Instant::now() + options.connect_timeout;
    let mut tries = 1;
    loop {
        let late = |_| absent(&shown(&servers), "not in time");
        let result = timeout_at(deadline, try_connect(options, &servers))
            .await
            .map_err(late)
            .flatten();
        let again = matches!(result, Err(BusError::Away(_)))
            && tries < TRIES
            && Instant::now() + PAUSE < deadline;
        if !again {
            return result;
        }
        sleep(PAUSE).await;
        tries += 1;
    }
}

async fn try_connect(options: &NatsOptions, servers: &[ServerAddr]) -> Result<NatsLink, BusError> {
    let events = Arc::new(LinkEvents::new(shown(servers)));
    let settings = with_user(settings(options, events.clone()).await?, servers);
    let client = settings
        .connect(without_users(servers))
        .await
        .map_err(|error| refusal(&shown(servers), &error))?;
    let inboxes = options
        .reply_prefixes
        .iter()
        .chain([&options.inbox_prefix])
        .cloned()
        .collect();
    let replies = ReplyCheck::new(ReplyRule::new(options.prefix.clone(), inboxes));
    Ok(NatsLink::new(client, events, replies))
}

pub fn servers(urls: &str) -> Result<Vec<ServerAddr>, BusError> {
    let parsed: Result<Vec<ServerAddr>, _> =
        urls.split(',').map(|url| url.trim().parse()).collect();
    parsed.map_err(|error| {
        BusError::Unfit(format!(
            "cannot read the NATS URL ({error}); expected nats://host:port"
        ))
    })
}

/// Returns the servers' addresses without the secrets that a URL may contain.
fn shown(servers: &[ServerAddr]) -> String {
    let shown: Vec<String> = servers
        .iter()
        .map(|server| format!("nats://{}:{}", server.host(), server.port()))
        .collect();
    shown.join(",")
}

/// Returns the addresses without users and passwords, because the client library logs the addresses
/// to which it connects.
fn without_users(servers: &[ServerAddr]) -> Vec<ServerAddr> {
    let without = |server: &ServerAddr| {
        let mut url = server.clone().into_inner();
        let _ = url.set_username("");
        let _ = url.set_password(None);
        ServerAddr::from_url(url).ok()
    };
    servers.iter().filter_map(without).collect()
}

/// Returns the settings with the user and password, or the token, that the first URL with a user
/// contains in percent-encoded form. The client library ignores them in a URL.
fn with_user(settings: ConnectOptions, servers: &[ServerAddr]) -> ConnectOptions {
    let Some((user, password)) = servers
        .iter()
        .find_map(|server| Some((server.username()?, server.password())))
    else {
        return settings;
    };
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    match password {
        Some(password) => settings.user_and_password(plain(user), plain(password)),
        None => settings.token(plain(user)),
    }
}

async fn settings(
    options: &NatsOptions,
    events: Arc<LinkEvents>,
) -> Result<ConnectOptions, BusError> {
    check_files(&options.tls).await?;
    let mut settings = ConnectOptions::new()
        .name(&options.name)
        .custom_inbox_prefix(options.inbox_prefix.as_str())
        .connection_timeout(Duration::from_secs(2))
        .ping_interval(Duration::from_secs(1))
        .client_capacity(8192)
        .reconnect_delay_callback(reconnect_delay)
        .require_tls(options.tls.required)
        .event_callback(move |event| {
            events.on(&event);
            std::future::ready(())
        });
    if let Some(ca) = &options.tls.ca {
        settings = settings.add_root_certificates(ca.clone());
    }
    if let Some((certificate, key)) = &options.tls.certificate {
        settings = settings.add_client_certificate(certificate.clone(), key.clone());
    }
    if let Some(nkey) = options.nkey.as_deref().map(str::trim) {
        if !is_seed(nkey) {
            return Err(BusError::Unfit(
                "the nkey is no seed of a user, which begins with `SU` and has 58 capital letters and digits; give a node the \
                 seed or the path of its file in `nats.nkey` (NATS_NKEY), and a program the seed in `nkey_seed`"
                    .into(),
            ));
        }
        settings = settings.nkey(nkey.to_owned());
    }
    if let Some(creds) = &options.creds {
        settings = settings.credentials_file(creds).await.map_err(|error| {
            BusError::Unfit(format!(
                "cannot read NATS credentials {}: {error}",
                creds.display()
            ))
        })?;
    }
    Ok(settings)
}

/// Returns whether the text has the form of a user's seed. Without this check the client library
/// would sign with any seed, and the server would only report an unknown user.
fn is_seed(nkey: &str) -> bool {
    let is_base32 = |byte: u8| matches!(byte, b'A'..=b'Z' | b'2'..=b'7');
    nkey.len() == 58 && nkey.starts_with("SU") && nkey.bytes().all(is_base32)
}

/// Checks that the files can be read, because the client library does not report which file it
/// cannot read.
async fn check_files(tls: &TlsOptions) -> Result<(), BusError> {
    let (certificate, key) = tls
        .certificate
        .as_ref()
        .map(|(certificate, key)| (certificate, key))
        .unzip();
    for file in [tls.ca.as_ref(), certificate, key].into_iter().flatten() {
        let opened = tokio::fs::File::open(file).await;
        opened.map_err(|error| {
            BusError::Unfit(format!(
                "cannot read {} for TLS to NATS: {error}",
                file.display()
            ))
        })?;
    }
    Ok(())
}

/// Returns the delay before a reconnect. It rises by 20 ms with each attempt, up to 250 ms. A
/// random time of up to about a quarter is added, so that a thousand clients do not reconnect at
/// the same moment.
fn reconnect_delay(attempts: usize) -> Duration {
    let base = u64::try_from(attempts)
        .unwrap_or(u64::MAX)
        .saturating_sub(1)
        .saturating_mul(20)
        .min(250);
    Duration::from_millis(base + fastrand::u64(0..=base / 4 + 2))
}

fn absent(url: &str, why: &str) -> BusError {
    let port = url.rsplit_once(':').map(|(_, port)| port);
    let port = port.filter(|port| *port != "4222");
    let port = port.map_or_else(String::new, |port| format!(" -p {port}"));
    BusError::Away(format!(
        "no server answers at {url} ({why}); start one with `nats-server -js -a 127.0.0.1{port}`, or set NATS_URL"
    ))
}

fn refusal(url: &str, error: &async_nats::ConnectError) -> BusError {
    if let Some(why) = of_tls(error) {
        return BusError::Unfit(format!(
            "no TLS connection to {url}: {why}; check `nats.tls_ca`, `nats.tls_cert` and `nats.tls_key`, and whether the server speaks TLS"
        ));
    }
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            BusError::Denied(format!(
                "the NATS server at {url} does not accept this user; check its credentials"
            ))
        }
        ConnectErrorKind::ServerParse => {
            BusError::Unfit(format!("`{url}` is no NATS URL; expected nats://host:port"))
        }
        ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => absent(url, &error.to_string()),
        ConnectErrorKind::Tls => BusError::Unfit(format!("no TLS connection to {url}: {error}")),
    }
}

/// Returns the TLS error among the causes of `error`, or `None` if there is none. The client
/// library reports a failed handshake like any broken connection.
fn of_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut causes = successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref())
}

/// Returns an error if the server is too old. The error names the server's version and the required
/// one.
pub fn check_version(client: &Client) -> Result<(), BusError> {
    let (major, minor) = SERVER;
    if client.is_server_compatible(major, minor, 0) {
        return Ok(());
    }
    let version = client.server_info().version;
    Err(BusError::Unfit(format!(
        "the NATS server has version {version}, Planck needs {major}.{minor} or later; upgrade nats-server"
    )))
}

/// JetStream's description of an account.
#[derive(Deserialize)]
struct Account {
    api: Option<Api>,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct Api {
    #[serde(default)]
    level: usize,
}

#[derive(Deserialize)]
struct ApiError {
    description: String,
}

/// Returns an error if a node cannot use the server's JetStream. The client library's own request
/// cannot distinguish a refused permission from a missing reply.
pub async fn check_jetstream(link: &NatsLink) -> Result<(), BusError> {
    let messages = [Outgoing {
        subject: ACCOUNT.into(),
        headers: None,
        body: bytes::Bytes::new(),
    }];
    let answer = exchange(link, &messages, "JetStream", JETSTREAM, |_| true).await;
    let answer = answer.map_err(|error| match error {
        BusError::NoResponders(_) => no_jetstream("it does not answer"),
        BusError::TimedOut { .. } => {
            BusError::Away("JetStream does not answer; it may be electing a leader".into())
        }
        error @ (BusError::Away(_)
        | BusError::Ended
        | BusError::Denied(_)
        | BusError::Unfit(_)
        | BusError::TooLarge { .. }) => error,
    })?;
    match serde_json::from_slice(&answer) {
        Ok(Account {
            error: Some(ApiError { description }),
            ..
        }) => Err(no_jetstream(&description)),
        Ok(Account {
            api: Some(Api { level }),
            ..
        }) if level >= API_LEVEL => Ok(()),
        Ok(Account { api, .. }) => Err(BusError::Unfit(format!(
            "the JetStream API of the NATS cluster has level {}, Planck needs {API_LEVEL}; upgrade every nats-server to {}.{} or later",
            api.map_or(0, |api| api.level),
            SERVER.0,
            SERVER.1
        ))),
        Err(error) => Err(BusError::Unfit(format!(
            "cannot read JetStream's description of its account: {error}"
        ))),
    }
}

fn no_jetstream(why: &str) -> BusError {
    BusError::Unfit(format!(
        "the NATS server has no JetStream for this account ({why}); start it with `-js`, or put `jetstream {{}}` in its configuration"
    ))
}

// Checks whether anyone on the network could command nodes.

/// Returns a warning if the server accepts clients without credentials and can be reached from
/// other machines, otherwise `None`. `connected` are the configured hosts of the servers.
pub fn exposure<'a>(
    info: &'a ServerInfo,
    connected: impl Iterator<Item = &'a str>,
) -> Option<String> {
    if info.auth_required {
        return None;
    }
    let announced = info
        .connect_urls
        .iter()
        .map(|url| url.rsplit_once(':').map_or(url.as_str(), |(host, _)| host));
    let mut hosts = connected
        .chain([info.host.as_str()])
        .chain(announced)
        .map(|host| host.trim_matches(['[', ']']));
    let outside = hosts.find(|host| !host.is_empty() && !is_loopback(host))?;
    Some(format!(
        "the NATS server listens at {outside} and asks for no user: whoever reaches it runs commands on this cluster's nodes. Let \
         it listen on 127.0.0.1 (deploy/nats.conf), or give it users (deploy/nats-cluster.conf)"
    ))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_about_an_absent_server_starts_one_on_its_port() {
        for (url, command) in [
            ("nats://127.0.0.1:4222", "`nats-server -js -a 127.0.0.1`"),
            (
                "nats://[::1]:4922",
                "`nats-server -js -a 127.0.0.1 -p 4922`",
            ),
        ] {
            let error = absent(url, "not in time").to_string();
            assert!(error.contains(command), "{error}");
        }
    }

    #[test]
    fn only_the_seed_of_a_user_is_accepted() {
        let seed = format!("SU{}", "AB7".repeat(19).split_at(56).0);
        assert!(is_seed(&seed));
        let public = seed.replace("SU", "UA");
        for wrong in ["", "user.nk", &seed[1..], &seed.to_lowercase(), &public] {
            assert!(!is_seed(wrong), "{wrong}");
        }
    }

    #[test]
    fn open_server_beyond_loopback_is_exposed() {
        for (auth_required, host, urls, connected, exposed) in [
            (false, "127.0.0.1", &[][..], "127.0.0.1", false),
            (false, "localhost", &[], "localhost", false),
            (false, "::1", &[], "::1", false),
            (false, "0.0.0.0", &[], "127.0.0.1", true),
            (false, "127.0.0.1", &["10.0.0.7:4222"], "127.0.0.1", true),
            (false, "127.0.0.1", &["[fe80::1]:4222"], "127.0.0.1", true),
            (
                false,
                "127.0.0.1",
                &["127.0.0.1:4222", "[::1]:4222"],
                "127.0.0.1",
                false,
            ),
            (false, "127.0.0.1", &[], "nats", true),
            (true, "0.0.0.0", &["10.0.0.7:4222"], "nats", false),
        ] {
            let info = ServerInfo {
                auth_required,
                host: host.into(),
                connect_urls: urls.iter().map(|url| (*url).to_owned()).collect(),
                ..ServerInfo::default()
            };
            let said = exposure(&info, [connected].into_iter());
            assert_eq!(
                said.is_some(),
                exposed,
                "{host} {urls:?} {connected}: {said:?}"
            );
        }
    }
}
