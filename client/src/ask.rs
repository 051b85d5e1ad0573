//! One request and its reply, repeated as the protocol says.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use planck_common::{
    event::json,
    reply::{ReplyError, decode},
    subject::Address,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::error::{Again, ClientError};
use planck_bus::{Bus, BusError};

/// How long a node may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a try waits that may be repeated: a node that died with a request takes it along. Each
/// further one waits twice as long.
const FIRST_TRY: Duration = Duration::from_secs(2);
/// From one try to the next at least: a stopped node leaves the queue group in this time.
const PAUSE: Duration = Duration::from_secs(2);
const REPEATS: u32 = 5;

/// Whether a request may be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Done twice it is the same as done once.
    Harmless,
    /// It is repeated only where it was surely not done.
    IfNotDone,
    /// The caller wants the first answer.
    Never,
}

/// Commands to a cluster, or to the node in this process.
#[derive(Clone)]
pub struct Client {
    bus: Arc<dyn Bus>,
    deadline: Duration,
}

impl Client {
    pub fn new(bus: Arc<dyn Bus>) -> Self {
        Self {
            bus,
            deadline: DEADLINE,
        }
    }

    /// With another time for a node to answer in.
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    pub(super) fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Asks once, or until a node has answered.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        to: &Address,
        body: &(impl Serialize + Sync),
        repeat: Repeat,
    ) -> Result<T, ClientError> {
        let body = Bytes::from(json(body));
        let mut repeats = 0;
        let mut patience = if repeat == Repeat::Harmless {
            FIRST_TRY.min(self.deadline)
        } else {
            self.deadline
        };
        loop {
            let next = Instant::now() + PAUSE;
            let error = match self.once(to, body.clone(), patience).await {
                Ok(ok) => return Ok(ok),
                Err(error) => error,
            };
            let may = match (error.again(), repeat) {
                (Again::NotDone, Repeat::Harmless | Repeat::IfNotDone)
                | (Again::Unknown, Repeat::Harmless) => true,
                (Again::Never, _) | (_, Repeat::Never) | (Again::Unknown, Repeat::IfNotDone) => {
                    false
                }
            };
            if !may || repeats == REPEATS {
                return Err(error);
            }
            repeats += 1;
            tracing::debug!(%to, repeats, %error, "asking again");
            patience = self.deadline.min(patience * 2);
            tokio::time::sleep_until(next).await;
        }
    }

    async fn once<T: DeserializeOwned>(
        &self,
        to: &Address,
        body: Bytes,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let reply = self
            .bus
            .request(to, body, patience)
            .await
            .map_err(ClientError::Unreachable)?;
        decode(&reply).map_err(|error| match error {
            ReplyError::Refused(refusal) => ClientError::Refused(refusal),
            // Whoever else answered, our node has not.
            ReplyError::Foreign => ClientError::Unreachable(BusError::TimedOut {
                subject: to.to_string(),
                after: patience,
            }),
            ReplyError::Malformed(error) => ClientError::Malformed {
                to: to.to_string(),
                what: error.to_string(),
            },
        })
    }
}
