//! The names under which the HTTP listeners of a process may be addressed.

use std::net::IpAddr;

/// Further names of a process, without ports, besides those that every listener has.
///
/// A page of a stranger can make a browser address this machine under the stranger's own name. The
/// browser would then take the answers for those of the page's own site and let the page read them.
/// The header `Host` of such a request has the stranger's name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts(pub Vec<String>);

impl AllowedHosts {
    /// Returns whether a request with this `Host` is answered: `localhost`, an IP address or a
    /// listed name.
    pub fn allow(&self, host: &str) -> bool {
        let name = name_of(host);
        let is_own = name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok();
        let mut listed = self.0.iter();
        is_own || listed.any(|known| known.eq_ignore_ascii_case(name))
    }

    /// Returns whether a listener for probes and metrics answers a request with this `Host`. Names
    /// without a dot are allowed too, such as those of the services of docker-compose: every site
    /// of the internet has a dot in its name.
    pub fn allow_probe(&self, host: &str) -> bool {
        self.allow(host) || !name_of(host).contains('.')
    }
}

/// Returns the name in `NAME:PORT` or `[ADDRESS]:PORT`.
pub fn name_of(host: &str) -> &str {
    if let Some(address) = host.strip_prefix('[') {
        return address.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_allowed() {
        let hosts = AllowedHosts(vec!["planck.example.com".into()]);
        for host in [
            "localhost:8400",
            "127.0.0.1:8400",
            "[::1]:8400",
            "10.1.2.3",
            "Planck.example.com",
        ] {
            assert!(hosts.allow(host) && hosts.allow_probe(host), "{host}");
        }
        for host in [
            "evil.example.com:8400",
            "localhost.evil.example.com",
            "evil.com.",
        ] {
            assert!(!hosts.allow(host) && !hosts.allow_probe(host), "{host}");
        }
        for host in ["node:9464", "node", ""] {
            assert!(!hosts.allow(host) && hosts.allow_probe(host), "{host}");
        }
    }
}
