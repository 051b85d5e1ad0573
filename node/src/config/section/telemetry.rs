//! `[telemetry]`

use std::net::SocketAddr;

use crate::config::setting::{Address, Listen, LogFormat};

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
        /// Whether traces hold what was said: instructions, messages, arguments and results of
        /// tools, long ones cut.
        content: bool = false;
        /// Where `planck node` serves `/livez`, `/readyz` and `/metrics` over HTTP, without
        /// authentication; port 0 is off.
        listen: Listen = Listen::OFF;
        /// The older name of `telemetry.listen`, which goes before it.
        metrics_address: Option<Listen> = None;
    }
}

impl Telemetry {
    /// Where a node listens, if it is to.
    pub fn listener(&self) -> Option<SocketAddr> {
        self.listen
            .address()
            .or_else(|| self.metrics_address.and_then(Listen::address))
    }
}
