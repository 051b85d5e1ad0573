//! What a command logs besides what it says.

use std::time::Duration;

use super::output;
use crate::{
    bus,
    config::{self, Config, LogFormat},
    store,
    telemetry::{Telemetry, TelemetryError, TelemetryOptions},
};

/// How long the last spans may take to leave.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Logs in force, if any.
pub struct Logs(Option<Telemetry>);

impl Logs {
    /// For a node: always, and with the listener that it is to have.
    pub fn start(config: &Config) -> Result<Self, TelemetryError> {
        Telemetry::start(&TelemetryOptions {
            listen: config.telemetry.listener(),
            ..options(config)
        })
        .map(|telemetry| Self(Some(telemetry)))
    }

    /// For a command that a person watches: what a person must do something about, and more where
    /// it was asked for.
    pub fn start_if_asked(config: &Config) -> Result<Self, TelemetryError> {
        let is_asked = config.telemetry.log != config::Telemetry::default().log;
        let asked = match is_asked {
            true => options(config),
            false => TelemetryOptions {
                log: "error".into(),
                json: false,
                ..options(config)
            },
        };
        Telemetry::start(&asked).map(|telemetry| Self(Some(telemetry)))
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
        // Planck itself logs what these drivers would repeat. A filter that a user wrote stays as
        // it is.
        log: if is_default {
            [&section.log, bus::DRIVER_LOG, store::DRIVER_LOG].join(",")
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
        listen: None,
    }
}
