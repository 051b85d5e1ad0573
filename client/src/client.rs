//! Sends a request and reads its reply, with the retries that the command allows.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use planck_bus::{Bus, BusError, NatsBus};
use planck_common::{
    event::json,
    id::is_id,
    reply::{Code, Refusal, ReplyError, decode},
    subject::{Address, Target},
};

use crate::ConnectOptions;

/// How long one attempt waits for a reply, unless the client has another request timeout.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the first attempt of an idempotent request waits for a reply. The wait is short because
/// a node that dies while it handles a request sends no reply. Each further attempt waits twice as
/// long, up to the request timeout.
const FIRST_TRY: Duration = Duration::from_secs(2);
/// The minimum time between the starts of two attempts. After that time a stopped node has left the
/// queue group.
const PAUSE: Duration = Duration::from_secs(2);
const RETRIES: u32 = 5;

/// When a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// The command is idempotent: it is sent again after every failure that may be temporary.
    Idempotent,
    /// The command is sent again only if the failed attempt was certainly not executed.
    AtMostOnce,
    /// The command is sent once, because the caller needs the first answer.
    Never,
}

impl RetryPolicy {
    pub(super) const fn of(is_idempotent: bool) -> Self {
        match is_idempotent {
            true => Self::Idempotent,
            false => Self::AtMostOnce,
        }
    }
}

/// A handle to a cluster, or to a node in this process. Clones share one connection.
#[derive(Clone)]
pub struct Client {
    bus: Arc<dyn Bus>,
    request_timeout: Duration,
    retry_notice: Option<RetryNotice>,
}

type RetryNotice = Arc<dyn Fn(&ClientError) + Send + Sync>;

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the NATS servers of a cluster: one URL, or several separated by commas. The URL
    /// may contain a user and password, or a token.
    ///
    /// A connection that breaks later is restored automatically.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] when the URL cannot be read, when no server accepts the
    /// connection within five seconds, when the server refuses the user, or when the server is
    /// older than Planck needs.
    pub async fn connect(url: &str) -> Result<Self, ClientError> {
        ConnectOptions::new(url).connect().await
    }

    pub(super) async fn connect_with(
        options: planck_bus::NatsOptions,
    ) -> Result<Self, ClientError> {
        let bus = NatsBus::connect(options)
            .await
            .map_err(ClientError::Unreachable)?;
        Ok(Self::over(Arc::new(bus)))
    }

    /// Creates a client over an existing bus: a connection that the program uses for other
    /// purposes, or the memory bus of a node in this process.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use planck_client::{
    ///     Client,
    ///     bus::{Bus, CommandHandler, MemoryBus, MemoryHub},
    ///     protocol::NodeId,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bus: Arc<dyn Bus> = Arc::new(MemoryBus::new(MemoryHub::new()));
    /// // Instead of a node: every command is answered with an empty list of models.
    /// let answer: CommandHandler = Arc::new(|_command, _body| {
    ///     Box::pin(async { Ok(r#"{"models":[]}"#.to_owned()) })
    /// });
    /// let _serving = bus.serve(&NodeId::mint(), answer).await?;
    ///
    /// let client = Client::over(bus);
    /// assert!(client.models().await?.models.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn over(bus: Arc<dyn Bus>) -> Self {
        Self {
            bus,
            request_timeout: REQUEST_TIMEOUT,
            retry_notice: None,
        }
    }

    /// Sets the maximum time for which one attempt of a request waits for a reply, 10 s by default.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self {
            request_timeout,
            ..self
        }
    }

    /// Sets a function that is called when a request is about to be sent again for the first time,
    /// with the error of the first attempt, so that a program can say why it waits.
    #[must_use]
    pub fn with_retry_notice(self, notice: impl Fn(&ClientError) + Send + Sync + 'static) -> Self {
        Self {
            retry_notice: Some(Arc::new(notice)),
            ..self
        }
    }

    /// Returns whether the connection is up now. A connection that broke is restored automatically,
    /// and a request that is sent meanwhile waits for it.
    pub fn is_connected(&self) -> bool {
        self.bus.is_connected()
    }

    pub(super) fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    /// Sends a command with the attempts that `policy` allows, and returns the node's reply.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        to: &Address,
        body: &(impl Serialize + Sync),
        policy: RetryPolicy,
    ) -> Result<T, ClientError> {
        self.call_that_waits(to, body, policy, Duration::ZERO).await
    }

    /// Sends a command like [`Self::call`]. The node may delay its reply for `wait`, so each attempt
    /// takes this much longer.
    pub(super) async fn call_that_waits<T: DeserializeOwned>(
        &self,
        to: &Address,
        body: &(impl Serialize + Sync),
        policy: RetryPolicy,
        wait: Duration,
    ) -> Result<T, ClientError> {
        // With such a text the subject would be none of a command, and no node would answer.
        if let Target::Agent(id) | Target::Session(id) | Target::Node(id) = &to.target
            && !is_id(id)
        {
            return Err(ClientError::Refused(Refusal::bad_request(format!(
                "malformed id or name `{id}`: expected 1 to 64 characters of A-Z a-z 0-9 _ -"
            ))));
        }
        let body = Bytes::from(json(body));
        let mut retries = 0;
        let mut unclear = None;
        let mut timeout = if policy == RetryPolicy::Idempotent {
            FIRST_TRY.min(self.request_timeout)
        } else {
            self.request_timeout
        };
        loop {
            let next = Instant::now() + PAUSE;
            let error = match self.once(to, body.clone(), wait + timeout).await {
                Ok(ok) => return Ok(ok),
                Err(error) => error,
            };
            let may_retry = match (error.failed_try(), policy) {
                (FailedTry::NotExecuted, RetryPolicy::Idempotent | RetryPolicy::AtMostOnce)
                | (FailedTry::MaybeExecuted, RetryPolicy::Idempotent) => true,
                (FailedTry::Final, _)
                | (_, RetryPolicy::Never)
                | (FailedTry::MaybeExecuted, RetryPolicy::AtMostOnce) => false,
            };
            if !may_retry || retries == RETRIES {
                // An earlier attempt may have been executed, although the last one was not.
                let is_unsent = error.failed_try() == FailedTry::NotExecuted;
                return Err(unclear.filter(|_| is_unsent).unwrap_or(error));
            }
            retries += 1;
            tracing::debug!(%to, retries, %error, "sending a request again");
            if let Some(notice) = self.retry_notice.as_ref().filter(|_| retries == 1) {
                notice(&error);
            }
            if error.failed_try() == FailedTry::MaybeExecuted {
                unclear = Some(error);
            }
            timeout = self.request_timeout.min(timeout * 2);
            tokio::time::sleep_until(next).await;
        }
    }

    async fn once<T: DeserializeOwned>(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<T, ClientError> {
        let reply = self
            .bus
            .request(to, body, timeout)
            .await
            .map_err(ClientError::Unreachable)?;
        decode(&reply).map_err(|error| match error {
            ReplyError::Refused(refusal) => ClientError::Refused(refusal),
            // Another program answered, such as a stream that records requests. No node has
            // answered.
            ReplyError::Foreign => ClientError::Unreachable(BusError::TimedOut {
                subject: to.to_string(),
                after: timeout,
            }),
            ReplyError::Malformed(error) => ClientError::Malformed {
                to: to.to_string(),
                what: error.to_string(),
            },
        })
    }
}

// The errors of calls.

/// The reason why a call failed. Its text says what failed and, where possible, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A node refused the command; the refusal has a [`Code`] and a text.
    #[error("{0}")]
    Refused(Refusal),
    /// No node answered, the request is too large, or the NATS servers cannot be reached or used.
    #[error("{0}{way}", way = way_out(.0))]
    Unreachable(BusError),
    /// A node answered in a form that this version cannot read. The node may have executed the
    /// command.
    #[error(
        "cannot read the answer to {to}: {what}; do node and client have neighbouring versions?"
    )]
    Malformed {
        /// The subject of the command.
        to: String,
        /// What is wrong with the answer.
        what: String,
    },
}

/// Returns advice for the errors of the bus whose text has none, otherwise an empty text.
fn way_out(error: &BusError) -> &'static str {
    match error {
        BusError::TimedOut { .. } => {
            "; a node may be dead or overloaded, and `planck nodes ls` shows them all"
        }
        BusError::NoResponders(_)
        | BusError::TooLarge { .. }
        | BusError::Denied(_)
        | BusError::Away(_)
        | BusError::Ended
        | BusError::Unfit(_) => "",
    }
}

/// The effect of a failed attempt, as far as the client can know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailedTry {
    /// No node executed the command.
    NotExecuted,
    /// A node may have executed the command.
    MaybeExecuted,
    /// The reason for the failure is not temporary.
    Final,
}

impl ClientError {
    /// Returns whether a node may have executed the command in the last attempt, although it
    /// failed. If so, look at the session before you repeat a command that is not idempotent.
    pub fn may_have_been_executed(&self) -> bool {
        match self {
            Self::Unreachable(BusError::TimedOut { .. } | BusError::Away(_) | BusError::Ended)
            | Self::Malformed { .. } => true,
            Self::Unreachable(
                BusError::NoResponders(_)
                | BusError::TooLarge { .. }
                | BusError::Denied(_)
                | BusError::Unfit(_),
            ) => false,
            Self::Refused(refusal) => {
                matches!(refusal.code, Code::OutcomeUnknown | Code::Internal)
            }
        }
    }

    pub(super) fn failed_try(&self) -> FailedTry {
        match self {
            Self::Refused(refusal) if refusal.retryable => FailedTry::NotExecuted,
            Self::Unreachable(BusError::NoResponders(_)) => FailedTry::NotExecuted,
            Self::Unreachable(BusError::TimedOut { .. } | BusError::Away(_)) => {
                FailedTry::MaybeExecuted
            }
            Self::Unreachable(
                BusError::TooLarge { .. }
                | BusError::Denied(_)
                | BusError::Ended
                | BusError::Unfit(_),
            )
            | Self::Refused(_)
            | Self::Malformed { .. } => FailedTry::Final,
        }
    }
}
