//! A compactor of a sidecar, which summarises conversations.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use planck_common::{
    SidecarId,
    event::json,
    sidecar::{CompactMessage, CompactReply, CompactRequest},
};
use tokio::time::{Instant, timeout};

use super::{
    Sidecars,
    call::Withdrawal,
    discovery::{OfferKind, SidecarOffer},
    lock,
};
use crate::bus::{BusError, StreamedReply};
use planck_telemetry::metrics;

/// The time for which a compactor is not asked again after it did not answer in time.
const REST: Duration = Duration::from_secs(300);

/// A compactor that a sidecar offers.
pub struct RemoteCompactor {
    sidecars: Sidecars,
    sidecar: SidecarId,
    offer: SidecarOffer,
}

impl Sidecars {
    /// Waits for the first search for sidecars, and returns the compactor with this name. The name
    /// is either `<sidecar>.<compactor>`, or the name of a compactor that only one sidecar offers.
    pub async fn compactor(&self, named: &str) -> Result<RemoteCompactor, String> {
        self.looked().await;
        let (of, name) = named
            .split_once('.')
            .map_or((None, named), |(sidecar, name)| (Some(sidecar), name));
        let mut found: Vec<(SidecarId, SidecarOffer)> = Vec::new();
        for (sidecar, offers) in lock(&self.0.shown)
            .offers
            .iter()
            .filter(|(sidecar, _)| of.is_none_or(|of| of == sidecar.as_str()))
        {
            let theirs = offers
                .iter()
                .filter(|offer| offer.kind == OfferKind::Compactor && offer.name == name);
            found.extend(theirs.map(|offer| (sidecar.clone(), offer.clone())));
        }
        match (found.pop(), found.is_empty()) {
            (Some((sidecar, offer)), true) => Ok(RemoteCompactor {
                sidecars: self.clone(),
                sidecar,
                offer,
            }),
            (Some(_), false) => Err(format!(
                "several sidecars have a compactor `{name}`; write `<sidecar>.{name}`"
            )),
            (None, _) => Err(format!(
                "nobody is there: no sidecar has the compactor `{named}`"
            )),
        }
    }
}

impl RemoteCompactor {
    /// Returns the name of the compactor with its sidecar, as it is used in events.
    pub fn name(&self) -> String {
        format!("{}.{}", self.sidecar, self.offer.name)
    }

    /// Returns the name that the sidecar itself uses.
    pub fn own_name(&self) -> &str {
        &self.offer.name
    }

    pub fn timeout(&self) -> Duration {
        self.offer.timeout
    }

    /// Asks the compactor for a summary. Fails with the reason if the sidecar reports an error or
    /// there is no answer. After a time-out, cancels the call, and does not ask the compactor again
    /// for [`REST`].
    pub async fn ask(&self, request: &CompactRequest) -> Result<CompactMessage, String> {
        if self.is_resting() {
            return Err("it did not answer in time lately".into());
        }
        let withdrawal = Withdrawal {
            bus: &*self.sidecars.0.bus,
            sidecar: Some(&self.sidecar),
            call_id: &request.call_id,
        };
        let since = Instant::now();
        let answer = timeout(self.offer.timeout, self.converse(json(request).into())).await;
        let is_error = !matches!(answer, Ok(Ok(_)));
        metrics::meters().sidecar_called(self.sidecar.as_str(), is_error, since.elapsed());
        let Ok(answer) = answer else {
            self.rest();
            return Err(format!(
                "it timed out: no answer within {} ms",
                self.offer.timeout.as_millis()
            ));
        };
        withdrawal.forget();
        answer
    }

    async fn converse(&self, body: Bytes) -> Result<CompactMessage, String> {
        let bus = &self.sidecars.0.bus;
        let mut answers = bus
            .request_stream(&self.offer.subject, body)
            .await
            .map_err(|error| refused(&error))?;
        while let Some(message) = answers.next().await {
            let StreamedReply { payload, error } = message.map_err(|error| refused(&error))?;
            if let Some(error) = error {
                return Err(error);
            }
            match serde_json::from_slice::<CompactReply>(&payload) {
                Ok(CompactReply {
                    message: CompactMessage::Error(why),
                    ..
                }) => return Err(why),
                Ok(reply) => return Ok(reply.message),
                Err(why) if super::call::is_ours(&payload) => {
                    return Err(format!("its answer cannot be read: {why}"));
                }
                Err(_somebody_elses) => {}
            }
        }
        Err("the connection to NATS was closed".into())
    }

    fn is_resting(&self) -> bool {
        lock(&self.sidecars.0.resting)
            .get(&self.name())
            .is_some_and(|until| *until > Instant::now())
    }

    fn rest(&self) {
        lock(&self.sidecars.0.resting).insert(self.name(), Instant::now() + REST);
    }
}

fn refused(error: &BusError) -> String {
    match error {
        BusError::NoResponders(subject) => format!("nobody is there: nothing answers `{subject}`"),
        BusError::TooLarge { size, limit } => {
            format!("too large: the history has {size} bytes, and NATS carries {limit}")
        }
        BusError::Denied(_)
        | BusError::TimedOut { .. }
        | BusError::Away(_)
        | BusError::Ended
        | BusError::Unfit(_) => error.to_string(),
    }
}
