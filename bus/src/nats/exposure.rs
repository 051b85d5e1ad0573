//! Checks whether anyone on the network could command nodes.

use std::net::IpAddr;

use async_nats::ServerInfo;

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
