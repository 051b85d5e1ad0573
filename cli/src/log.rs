//! The log of a command, which is separate from its output.

use std::{sync::Arc, time::Duration};

use super::output;
use planck_common::allowed_hosts::AllowedHosts;
use planck_node::config::{self, Config, LogFormat};
use planck_telemetry::{Telemetry, TelemetryError, TelemetryOptions, metrics::Metrics};

/// How long sending the remaining spans may take when the command ends.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// The telemetry of a running command.
pub struct Logs(Option<Telemetry>);

impl Logs {
    /// Starts the log of a node, and its listener for metrics and probes if one is configured.
    pub fn start(config: &Config) -> Result<Self, TelemetryError> {
        Telemetry::start(&TelemetryOptions {
            listen: config.telemetry.listener(),
            ..options(config)
        })
        .map(|telemetry| Self(Some(telemetry)))
    }

    /// Starts the log of `planck run` or `planck chat`. If the configured filter is the default
    /// one, logs only errors, as text.
    pub fn start_if_asked(config: &Config) -> Result<Self, TelemetryError> {
        let is_asked = config.telemetry.log != config::Telemetry::default().log;
        let options = match is_asked {
            true => options(config),
            false => TelemetryOptions {
                log: "error".into(),
                json: false,
                ..options(config)
            },
        };
        Telemetry::start(&options).map(|telemetry| Self(Some(telemetry)))
    }

    /// Starts the log of `planck serve`, which also keeps metrics.
    pub fn start_of_front(config: &Config) -> Result<Self, TelemetryError> {
        Telemetry::start(&TelemetryOptions {
            listen: config.telemetry.listener(),
            metrics: true,
            ..options(config)
        })
        .map(|telemetry| Self(Some(telemetry)))
    }

    /// Returns the metrics of the process, if it keeps any.
    pub fn metrics(&self) -> Option<&Arc<Metrics>> {
        self.0.as_ref().and_then(Telemetry::metrics)
    }

    pub async fn end(self) {
        if let Some(telemetry) = self.0 {
            telemetry.shutdown(LAST_SPANS).await;
        }
    }
}

fn options(config: &Config) -> TelemetryOptions {
    let section = &config.telemetry;
    let is_default = section.log == config::Telemetry::default().log;
    TelemetryOptions {
        // The default filter suppresses messages of drivers about events that Planck logs itself. A
        // filter from the user is left unchanged.
        log: if is_default {
            [
                &section.log,
                planck_bus::DRIVER_LOG,
                planck_store::DRIVER_LOG,
            ]
            .join(",")
        } else {
            section.log.clone()
        },
        json: match section.log_format {
            LogFormat::Auto => !output::Stream::Err.is_terminal(),
            LogFormat::Text => false,
            LogFormat::Json => true,
        },
        otlp_endpoint: section
            .otlp_endpoint
            .as_ref()
            .map(|url| url.reveal().to_owned()),
        service_name: section.service_name.clone(),
        content: section.content,
        metrics: false,
        listen: None,
        hosts: AllowedHosts(config.http.allowed_hosts.clone()),
    }
}
