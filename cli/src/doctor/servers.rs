//! Checks the servers that a node uses: whether clients and nodes can use NATS, whether the store
//! can be written to, and how far the clocks of the servers are off.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use planck_bus::{Bus, BusError, NatsBus, NatsOptions, records::RecordsError};
use planck_client::Client;
use planck_common::{
    NodeId,
    command::Nodes,
    server_clock::ServerClock,
    subject::{self, LIST, Target},
};
use planck_mcp::Report;
use planck_node::{
    config::{Config, ConfiguredUrl, StoreKind},
    node::{self, StoreTrial},
};
use planck_store::StoreError;
use tokio::time::timeout;

use super::DoctorFinding;
use crate::render::style::counted;

/// How long nodes may take to answer, and how long a message to this process may take to arrive.
const ANSWER: Duration = Duration::from_secs(2);

pub async fn nats(config: &Config) -> Vec<DoctorFinding> {
    let Some(url) = &config.nats.url else {
        return vec![DoctorFinding::note(
            "nats",
            "not configured; sessions run in one process",
            "set NATS_URL for a cluster",
        )];
    };
    let bus = match connect(config, url).await {
        Ok(bus) => Arc::new(bus),
        Err(finding) => return vec![finding],
    };
    if let Some(exposure) = bus.exposure() {
        return vec![DoctorFinding::bad(
            "nats",
            format!("{url}: {exposure}"),
            "see docs/operations.md, \"Settings of NATS\"",
        )];
    }
    match bus.check_jetstream().await {
        Ok(()) => {
            let reached = DoctorFinding::good("nats", format!("{url}, with all that is needed"));
            let mut findings = vec![reached, messages(&bus).await];
            findings.extend(registry(&bus, config).await);
            findings.push(nodes(&bus).await);
            findings
        }
        Err(BusError::Denied(why)) => vec![without_jetstream(&bus, url, &why).await],
        Err(error) => vec![DoctorFinding::bad(
            "nats",
            format!("{url}: {error}"),
            "start nats-server 2.12 or later with JetStream (-js)",
        )],
    }
}

/// Connects to NATS, which includes a check of the server's version.
async fn connect(config: &Config, url: &ConfiguredUrl) -> Result<NatsBus, DoctorFinding> {
    let options = match node::nats_options(config) {
        Ok(Some(options)) => NatsOptions {
            name: "planck doctor".into(),
            ..options
        },
        Ok(None) => {
            let remedy = "set NATS_URL for a cluster";
            return Err(DoctorFinding::note("nats", "not configured", remedy));
        }
        Err(error) => {
            return Err(DoctorFinding::bad(
                "nats",
                format!("{url}: {error}"),
                "correct `[nats]`",
            ));
        }
    };
    NatsBus::connect(options).await.map_err(|error| {
        let remedy = match &error {
            BusError::Denied(_) => "correct NATS_CREDS, NATS_NKEY, or the user in NATS_URL",
            BusError::Unfit(_) => "correct `[nats]`, or the server",
            BusError::NoResponders(_)
            | BusError::TimedOut { .. }
            | BusError::TooLarge { .. }
            | BusError::Ended
            | BusError::Away(_) => "start nats-server 2.12 or later, or correct `[nats]`",
        };
        DoctorFinding::bad("nats", format!("{url}: {error}"), remedy)
    })
}

/// Checks that published messages arrive. It subscribes to a command of a node id that does not
/// exist, and publishes that command. Observers of the cluster do not receive the command.
async fn messages(bus: &NatsBus) -> DoctorFinding {
    let subject = subject::Address::node(NodeId::mint().as_str(), "info").to_string();
    let failed = |error: BusError| {
        DoctorFinding::bad(
            "nats pub/sub",
            error.to_string(),
            "use the nodes' user to run a node here; docs/operations.md lists the rights of each role",
        )
    };
    let mut received = match bus.subscribe(&subject).await {
        Ok(received) => received,
        Err(error) => return failed(error),
    };
    let began = Instant::now();
    bus.publish(subject.clone(), "{}".into());
    match timeout(ANSWER, received.next()).await {
        Ok(Some(_)) => {
            let took = began.elapsed().as_secs_f64() * 1_000.0;
            DoctorFinding::good(
                "nats pub/sub",
                format!("a message came back after {took:.1} ms"),
            )
        }
        Ok(None) | Err(_) => failed(BusError::TimedOut {
            subject,
            after: ANSWER,
        }),
    }
}

/// Lists the nodes of the cluster. There may be none yet.
async fn nodes(bus: &Arc<NatsBus>) -> DoctorFinding {
    let client = Client::over(Arc::clone(bus) as Arc<dyn Bus>).with_request_timeout(ANSWER);
    match timeout(ANSWER * 2, client.nodes()).await {
        Ok(Ok(Nodes { nodes })) if !nodes.is_empty() => {
            let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            let nodes = counted(names.len(), "node");
            DoctorFinding::good("nodes", format!("{nodes}: {}", names.join(", ")))
        }
        Ok(Ok(_) | Err(_)) | Err(_) => DoctorFinding::note(
            "nodes",
            "no node answers",
            "start one with `planck node`; until then no command is answered",
        ),
    }
}

/// Checks the registry, and compares the clock of its leader with this machine's clock. It reads
/// the registry and attempts a write whose condition is false, so that nothing changes. Before the
/// first node has created the registry, it only checks that JetStream answers.
async fn registry(bus: &NatsBus, config: &Config) -> Vec<DoctorFinding> {
    let replicas = config.nats.replicas as usize;
    match bus.try_records(replicas).await {
        Ok(Some(read)) => vec![
            DoctorFinding::good(
                "jetstream",
                "read the registry; its leader takes writes, and was given none to keep",
            ),
            compare_clocks("nats clock", "NATS", read),
        ],
        Ok(None) => vec![DoctorFinding::good(
            "jetstream",
            "answers; the first node makes the registry, which the server's clock is told with",
        )],
        Err(error @ RecordsError::Denied(_)) => vec![DoctorFinding::bad(
            "jetstream",
            error.to_string(),
            "use the nodes' user to run a node here",
        )],
        Err(error @ RecordsError::Unfit(_)) => vec![DoctorFinding::bad(
            "jetstream",
            error.to_string(),
            "see above, or docs/operations.md, \"Settings of NATS\"",
        )],
        Err(error) => vec![DoctorFinding::bad(
            "jetstream",
            error.to_string(),
            "see whether the NATS cluster has its quorum: `nats server report jetstream`",
        )],
    }
}

/// Reports a NATS user without permission for JetStream. Such a user cannot run a node, but may be
/// allowed to send commands to nodes or to observe them.
async fn without_jetstream(bus: &NatsBus, url: &ConfiguredUrl, why: &str) -> DoctorFinding {
    let nodes = subject::Address::new(Target::Nodes, LIST);
    match bus.request(&nodes, "{}".into(), ANSWER).await {
        Err(BusError::Denied(why)) => DoctorFinding::note(
            "nats",
            format!("{url}: enough to watch at most, neither for a client nor for a node: {why}"),
            "use the clients' user to command nodes, or the nodes' user to run one here",
        ),
        // It does not matter for this check whether a node answers.
        Ok(_) | Err(_) => DoctorFinding::note(
            "nats",
            format!("{url}: enough for a client, not for a node: {why}"),
            "use the nodes' user to run a node here",
        ),
    }
}

pub async fn store(config: &Config) -> Vec<DoctorFinding> {
    let url = &config.store.url;
    let StoreTrial {
        finding,
        write,
        clock,
    } = match node::try_store(config).await {
        Ok(tried) => tried,
        Err(error @ StoreError::Away(_)) => {
            let what = format!("{url}: {error}");
            return vec![DoctorFinding::bad("store", what, StoreError::UNREACHED)];
        }
        Err(error) => {
            let remedy = "see above, or name another one in `store.url`";
            return vec![DoctorFinding::bad(
                "store",
                format!("{url}: {error}"),
                remedy,
            )];
        }
    };
    let finding = finding.map_or_else(
        || format!("{url}, made with the first session"),
        |finding| format!("{url}: {finding}"),
    );
    let write = match write {
        Ok(written) => DoctorFinding::good("store write", written),
        Err(error) => DoctorFinding::bad("store write", error.to_string(), way_to_write(config)),
    };
    let clock = clock.map(|read| compare_clocks("store clock", "Postgres", read));
    [DoctorFinding::good("store", finding), write]
        .into_iter()
        .chain(clock)
        .collect()
}

fn way_to_write(config: &Config) -> &'static str {
    match config.store.kind() {
        Some(StoreKind::Postgres) => {
            "name the primary server in `store.url`, with a user who owns Planck's tables or may SELECT, INSERT, UPDATE and DELETE in them"
        }
        Some(StoreKind::Sqlite) | None => {
            "see above; `planck session ls` and other commands that look work without"
        }
    }
}

/// The smallest difference in milliseconds that is reported as a note. From this difference on, the
/// times in the log may not be in the order of the events.
const NOTICED: u64 = 1_000;
/// The smallest difference in milliseconds that is reported as bad. From this difference on,
/// decisions that depend on wall-clock time go wrong. Leases, heartbeats and failure detection do
/// not depend on wall clocks.
const WRONG: u64 = 60_000;

const REMEDY: &str = "keep both machines' clocks by NTP: `timedatectl set-ntp true`, or install chrony; `chronyc tracking` tells how \
                      far off a clock is";

fn compare_clocks(name: &'static str, server: &str, clock: ServerClock) -> DoctorFinding {
    let ServerClock {
        ahead_ms,
        uncertainty_ms,
    } = clock;
    let (apart, unsure) = (shown(ahead_ms.unsigned_abs()), shown(uncertainty_ms));
    let side = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let what = format!("{server} is {apart} {side} this machine, give or take {unsure}");
    match clock.difference_ms() {
        ..NOTICED => DoctorFinding::good(name, what),
        NOTICED..WRONG => DoctorFinding::note(
            name,
            format!("{what}: times in logs and `--since` are off by as much"),
            REMEDY,
        ),
        WRONG.. => DoctorFinding::bad(
            name,
            format!(
                "{what}: limits of turns that move to another node, the age at which sessions are removed, and the expiry of \
                 credentials and certificates go wrong"
            ),
            REMEDY,
        ),
    }
}

fn shown(millis: u64) -> String {
    match millis {
        ..10_000 => format!("{millis} ms"),
        _ => format!("{} s", Duration::from_millis(millis).as_secs()),
    }
}

/// Starts each MCP server of the configuration once, and lists its tools.
pub async fn mcp(config: &Config) -> Vec<DoctorFinding> {
    if config.mcp.0.is_empty() {
        return Vec::new();
    }
    let servers = &node::mcp::McpServers::load(config).await;
    let silent: &Report = &(Arc::new(|_: &str| ()) as _);
    let looking = config.mcp.0.keys().map(|name| async move {
        match servers.look(name, silent).await {
            Ok(looked) if looked.is_as_allowed() => {
                let count = looked.offer.tools.len();
                let what = format!(
                    "{name}: {} of version {}",
                    counted(count, "tool"),
                    looked.listed.version
                );
                DoctorFinding::good("mcp", what)
            }
            Ok(_) => DoctorFinding::note(
                "mcp",
                format!("{name}: its tools have changed since they were allowed"),
                format!("`planck mcp allow {name}` shows and allows them"),
            ),
            Err(why) => DoctorFinding::bad(
                "mcp",
                format!("{name}: {why}"),
                format!("correct `[mcp.{name}]`, or take it out"),
            ),
        }
    });
    futures_util::future::join_all(looking).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::FindingState;

    #[test]
    fn clocks_differ_noticeably_from_a_second_and_are_wrong_from_a_minute() {
        for (ahead_ms, uncertainty_ms, state, said) in [
            (3, 1, FindingState::Good, "3 ms ahead of this machine"),
            (-999, 0, FindingState::Good, "999 ms behind"),
            // The server answered slowly, so the clocks may not differ at all.
            (1_900, 1_000, FindingState::Good, "give or take 1000 ms"),
            (1_000, 0, FindingState::Note, "1000 ms ahead of"),
            (-59_999, 0, FindingState::Note, "59 s behind"),
            (60_000, 0, FindingState::Bad, "60 s ahead of"),
            (-86_400_000, 5, FindingState::Bad, "86400 s behind"),
        ] {
            let read = ServerClock {
                ahead_ms,
                uncertainty_ms,
            };
            let found = compare_clocks("store clock", "Postgres", read);
            assert!(
                found.state == state && found.what.contains(said),
                "{found:?}"
            );
            assert_eq!(
                found.remedy.is_some(),
                state != FindingState::Good,
                "{found:?}"
            );
        }
    }
}
