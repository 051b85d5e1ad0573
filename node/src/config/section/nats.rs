//! The section `[nats]`.

use std::{net::IpAddr, path::PathBuf};

use crate::config::Secret;
use crate::config::setting::{ConfiguredUrl, Period};

section! {
    /// The connection to NATS.
    Nats {
        /// Servers, separated by commas. Unset: `run` and `chat` work in one process, without a
        /// cluster.
        url: Option<ConfiguredUrl> = None;
        /// A credentials file.
        creds: Option<PathBuf> = None;
        /// A seed. `NATS_NKEY` may also be the path of a file with the seed, as for the `nats`
        /// command line.
        nkey: Option<Secret> = None;
        /// Certificate authorities that are trusted in addition to the system's.
        tls_ca: Option<PathBuf> = None;
        /// The client's certificate.
        tls_cert: Option<PathBuf> = None;
        /// The client's key.
        tls_key: Option<PathBuf> = None;
        /// Words before every subject, so that two clusters in one account stay separate.
        subject_prefix: String = String::new();
        /// The beginning of the subjects of replies. Give each user another one if users must not
        /// read each other's replies.
        inbox_prefix: String = "_INBOX".into();
        /// Further subjects to which replies may be sent: the `inbox_prefix` of other users.
        /// Subjects that begin with `_INBOX` are always allowed.
        reply_prefixes: Vec<String> = Vec::new();
        /// Copies of the registry: 1 on a single server, 3 in a cluster.
        replicas: u32 = 1;
        /// How long the first connection may take.
        connect_timeout: Period = Period::seconds(5);
        /// How long a request may take.
        request_timeout: Period = Period::seconds(10);
    }
}

impl Nats {
    /// Returns whether every configured server has a loopback address. Also returns `true` if no
    /// server is configured.
    pub fn is_on_this_machine(&self) -> bool {
        let urls = self
            .url
            .as_ref()
            .map(|url| url.reveal().to_owned())
            .unwrap_or_default();
        urls.split(',')
            .map(str::trim)
            .filter(|url| !url.is_empty())
            .all(|url| is_this_machine(host(url)))
    }
}

/// Returns the host of a URL such as `scheme://user:password@host:port`. All parts except the host
/// are optional.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    match rest.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or(six),
        None => rest.split(':').next().unwrap_or(rest),
    }
}

/// Returns whether a host name or address is the loopback of this machine.
pub fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine_are_recognised() {
        for (urls, expected) in [
            ("nats://127.0.0.1:4222", true),
            ("127.0.0.1", true),
            ("localhost:4222", true),
            ("tls://user:p@localhost:4222", true),
            ("nats://[::1]:4222", true),
            ("nats://127.0.0.1:4222, nats://127.0.0.1:4223", true),
            ("nats://127.0.0.1:4222,nats://10.0.0.1:4222", false),
            ("nats://nats:4222", false),
            ("nats://127.0.0.1@evil.example:4222", false),
            ("nats://localhost.evil.example", false),
            ("nats://evil.example/127.0.0.1", false),
            ("nats://127.0.0.1.evil.example", false),
            ("nats://0.0.0.0:4222", false),
        ] {
            assert_eq!(
                urls.split(',').all(|url| is_this_machine(host(url.trim()))),
                expected,
                "{urls}"
            );
        }
        assert!(Nats::default().is_on_this_machine());
    }
}
