//! `[nats]`

use std::path::PathBuf;

use crate::config::Secret;
use crate::config::setting::{Address, Period};

section! {
    /// The link to NATS.
    Nats {
        /// Servers, with commas between them. Unset: `run` and `chat` work in one process, without a cluster.
        url: Option<Address> = None;
        /// A credentials file.
        creds: Option<PathBuf> = None;
        /// A seed.
        nkey: Option<Secret> = None;
        /// Certificate authorities to trust beside the system's.
        tls_ca: Option<PathBuf> = None;
        /// The client's certificate.
        tls_cert: Option<PathBuf> = None;
        /// The client's key.
        tls_key: Option<PathBuf> = None;
        /// Words before every subject, so that two clusters in one account never meet.
        subject_prefix: String = String::new();
        /// Copies of the registry: 1 alone, 3 in a cluster.
        replicas: u32 = 1;
        /// How long a first connection may take.
        connect_timeout: Period = Period::seconds(5);
        /// How long a request may take.
        request_timeout: Period = Period::seconds(10);
    }
}
