//! `[telemetry]`

use crate::config::setting::{Address, LogFormat};

section! {
    /// Logs, traces and metrics.
    Telemetry {
        /// What is logged, in the words of `RUST_LOG`.
        log: String = "info".into();
        /// How it is logged: text on a terminal and JSON elsewhere, or one of both.
        log_format: LogFormat = LogFormat::Auto;
        /// Where traces and metrics are sent by OTLP over HTTP; nowhere unless said.
        otlp_endpoint: Option<Address> = None;
        /// What this service is called there.
        service_name: String = "planck".into();
        /// Where metrics and readiness can be read, as `host:port`; nowhere unless said.
        metrics_address: Option<String> = None;
    }
}
