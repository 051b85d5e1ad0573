//! One request and its reply, repeated as the protocol says.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use planck_common::{
    event::json,
    reply::{ReplyError, decode},
    subject::Address,
};
use serde::{Serialize, de::DeserializeOwned};

use super::error::{Again, ClientError};
use crate::bus::{Bus, BusError};

/// How long a node may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long to wait before a request is repeated: a stopped node leaves the queue group in this time.
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
        Self { bus, deadline: DEADLINE }
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
        loop {
            let error = match self.once(to, body.clone()).await {
                Ok(ok) => return Ok(ok),
                Err(error) => error,
            };
            let may = match (error.again(), repeat) {
                (Again::NotDone, Repeat::Harmless | Repeat::IfNotDone) | (Again::Unknown, Repeat::Harmless) => true,
                (Again::Never, _) | (_, Repeat::Never) | (Again::Unknown, Repeat::IfNotDone) => false,
            };
            if !may || repeats == REPEATS {
                return Err(error);
            }
            repeats += 1;
            tracing::debug!(%to, repeats, %error, "asking again");
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn once<T: DeserializeOwned>(&self, to: &Address, body: Bytes) -> Result<T, ClientError> {
        let reply = self.bus.request(to, body, self.deadline).await.map_err(ClientError::Unreachable)?;
        decode(&reply).map_err(|error| match error {
            ReplyError::Refused(refusal) => ClientError::Refused(refusal),
            // Whoever else answered, our node has not.
            ReplyError::Foreign => ClientError::Unreachable(BusError::TimedOut { subject: to.to_string(), after: self.deadline }),
            ReplyError::Malformed(error) => ClientError::Malformed { to: to.to_string(), what: error.to_string() },
        })
    }
}
