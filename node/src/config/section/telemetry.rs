//! The section `[telemetry]`.

use std::net::SocketAddr;

use crate::config::setting::{ConfiguredUrl, Listen, LogFormat};

section! {
    /// Logs, traces and metrics.
    Telemetry {
        /// The filter of the log, in the syntax of `RUST_LOG`.
        log: String = "info".into();
        /// The format of the log: `auto` is text on a terminal and JSON elsewhere.
        log_format: LogFormat = LogFormat::Auto;
        /// The address to which traces and metrics are sent by OTLP over HTTP. Unset: they are not
        /// sent.
        otlp_endpoint: Option<ConfiguredUrl> = None;
        /// The name of this service in traces and metrics.
        service_name: String = "planck".into();
        /// Whether traces contain instructions, messages, arguments and results of tools. Long ones
        /// are cut.
        content: bool = false;
        /// The address at which `planck node` and `planck serve` serve `/livez`, `/readyz` and
        /// `/metrics` over HTTP, without authentication. Port 0 turns it off.
        listen: Listen = Listen::OFF;
        /// The older name of `telemetry.listen`, which takes precedence.
        metrics_address: Option<Listen> = None;
    }
}

impl Telemetry {
    /// Returns the address at which a node listens, or `None` if none is configured or its port is
    /// 0.
    pub fn listener(&self) -> Option<SocketAddr> {
        self.listen
            .address()
            .or_else(|| self.metrics_address.and_then(Listen::address))
    }
}
