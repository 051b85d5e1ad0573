//! Checks the store: what it contains, whether it can be written to, and the clock of its server.

use super::{DoctorFinding, clock};
use planck_node::config::{Config, StoreKind};
use planck_node::node::{self, StoreTrial};
use planck_store::StoreError;

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
    let clock = clock.map(|read| clock::compared("store clock", "Postgres", read));
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
