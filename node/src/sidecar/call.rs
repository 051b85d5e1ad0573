//! One call to a sidecar: the request, the progress messages, the answer, and the error if there is
//! no answer.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use planck_common::{
    CallId, PROTOCOL_VERSION, SidecarId,
    event::json,
    sidecar::{Cancel, IN_PROGRESS, ToolMessage, ToolReply},
    subject::Topic,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::known::{KnownSidecars, TakerWatch};
use crate::bus::{Bus, BusError, ReplyStream, StreamedReply};
use planck_toolbox::{CallProgress, ToolOutcome};

/// The pause before a request is repeated because no instance received it. An instance may just be
/// moving to another NATS server.
const AGAIN: Duration = Duration::from_millis(100);

/// The maximum pause before a request is repeated because an earlier try of the same call is still
/// running.
const STILL_RUNS: Duration = Duration::from_millis(500);

/// The receiver of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallTarget {
    Sidecar(SidecarId),
    /// Any service that listens on a NATS subject. It may answer in plain text.
    Plain,
}

/// One call that is ready to be sent.
pub struct SidecarCall<'a> {
    pub name: &'a str,
    pub subject: &'a str,
    pub target: &'a CallTarget,
    pub call_id: &'a CallId,
    pub body: Bytes,
    /// The maximum time to wait for the answer or the next progress message.
    pub idle: Duration,
    /// The maximum duration of the call, whatever progress the sidecar reports.
    pub longest: Duration,
    pub may_run_again: bool,
    /// Whether an earlier try of the call may have taken effect.
    pub is_repeat: bool,
}

/// The bus, the cancellation and the progress callback of the agent that makes the call, and the
/// instances that the node knows.
pub struct CallContext<'a> {
    pub bus: &'a dyn Bus,
    pub cancel: &'a CancellationToken,
    pub progress: &'a (dyn Fn(CallProgress) + Send + Sync),
    pub known: Option<&'a KnownSidecars>,
}

/// The reason why a call has no answer.
enum CallFailure {
    /// The call had no effect: the request was not sent, or no service received it.
    Undone(String),
    /// It is unknown whether the call took effect.
    Open(String),
}

/// A message that arrived in reply to the request.
enum ReplyMessage {
    Progress(CallProgress),
    Answer(ToolOutcome),
    /// An earlier try of the same call is still running.
    Running,
    /// A message that is not part of the protocol, such as the acknowledgement of a JetStream
    /// stream that stores requests.
    Foreign,
}

impl SidecarCall<'_> {
    /// Makes the call. Returns the answer, or an error for the model. Sends `cancel` to
    /// the sidecar if the call may have taken effect without an answer, or if the future is
    /// dropped.
    pub async fn run(self, context: &CallContext<'_>) -> ToolOutcome {
        let withdrawn = Withdrawal {
            bus: context.bus,
            sidecar: self.target.sidecar(),
            call_id: self.call_id,
        };
        let mut has_run = self.is_repeat;
        let answer = self.converse(context, &mut has_run).await;
        let answer = answer.map_err(|failure| match failure {
            CallFailure::Undone(why) if has_run => CallFailure::Open(why),
            CallFailure::Undone(_) | CallFailure::Open(_) => failure,
        });
        if !matches!(answer, Err(CallFailure::Open(_))) {
            withdrawn.forget();
        }
        answer.unwrap_or_else(|failure| ToolOutcome::error(failure.describe()))
    }

    /// Sends the request, again if that may help, and reads the replies up to the answer. Sets
    /// `has_run` as soon as a reply shows that some try of the call is running.
    async fn converse(
        &self,
        context: &CallContext<'_>,
        has_run: &mut bool,
    ) -> Result<ToolOutcome, CallFailure> {
        let (mut deadline, mut has_retried) = (CallDeadline::new(self.idle, self.longest), false);
        let (mut takers, mut answers) = self.ask(context).await?;
        loop {
            let received = tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(CallFailure::Open("it was told to stop".into())),
                message = answers.next() => message,
                () = sleep_until(deadline.until) => return Err(CallFailure::Open(deadline.over())),
                Some(()) = all_gone(takers.as_mut()) => return Err(self.lost()),
            };
            match received {
                Some(Ok(message)) => match self.read(message) {
                    ReplyMessage::Progress(progress) => {
                        *has_run = true;
                        deadline.renew();
                        takers.as_mut().map(TakerWatch::hear);
                        (context.progress)(progress);
                        // Reports without end would keep the timer from being polled.
                        if Instant::now() >= deadline.until {
                            return Err(CallFailure::Open(deadline.over()));
                        }
                    }
                    ReplyMessage::Answer(answer) => return Ok(answer),
                    ReplyMessage::Running
                        if self.may_run_again && Instant::now() >= deadline.until =>
                    {
                        return Err(CallFailure::Open(deadline.over()));
                    }
                    ReplyMessage::Running if self.may_run_again => {
                        *has_run = true;
                        sleep(STILL_RUNS.min(self.idle)).await;
                        (takers, answers) = self.ask(context).await?;
                    }
                    ReplyMessage::Running => return Ok(ToolOutcome::error(IN_PROGRESS)),
                    ReplyMessage::Foreign => {}
                },
                Some(Err(BusError::NoResponders(_))) if !has_retried => {
                    has_retried = true;
                    sleep(AGAIN).await;
                    (takers, answers) = self.ask(context).await?;
                }
                Some(Err(error)) => return Err(self.refused(error)),
                None => {
                    return Err(CallFailure::Open(
                        "the connection to NATS was closed".into(),
                    ));
                }
            }
        }
    }

    /// Sends the request. Also returns a watch over the instances that may take it.
    async fn ask<'a>(
        &'a self,
        context: &CallContext<'a>,
    ) -> Result<(Option<TakerWatch<'a>>, ReplyStream), CallFailure> {
        let sidecar = self.target.sidecar();
        let takers = sidecar.and_then(|sidecar| context.known?.watch(sidecar));
        let conversation = context
            .bus
            .request_stream(self.subject, self.body.clone())
            .await;
        let answers = conversation.map_err(|error| self.refused(error))?;
        Ok((takers, answers))
    }

    fn lost(&self) -> CallFailure {
        let sidecar = self.target.sidecar().map_or("", SidecarId::as_str);
        CallFailure::Open(format!(
            "it went away: no instance of the sidecar `{sidecar}` is left that can have taken the call"
        ))
    }

    /// Parses a message and discards the result. The fuzz target uses this function.
    #[cfg(any(test, feature = "fuzz"))]
    pub fn reads(&self, message: StreamedReply) {
        let _message = self.read(message);
    }

    fn read(&self, message: StreamedReply) -> ReplyMessage {
        if let Some(error) = message.error {
            return ReplyMessage::Answer(ToolOutcome::error(error));
        }
        match serde_json::from_slice::<ToolReply>(&message.payload) {
            Ok(ToolReply {
                message: ToolMessage::Progress { message, percent },
                ..
            }) => ReplyMessage::Progress(CallProgress { message, percent }),
            Ok(ToolReply {
                message: ToolMessage::Ok(text),
                ..
            }) => ReplyMessage::Answer(ToolOutcome::ok(text)),
            Ok(ToolReply {
                message: ToolMessage::Ask(question),
                ..
            }) => ReplyMessage::Answer(ToolOutcome::asks(question)),
            Ok(ToolReply {
                message: ToolMessage::InProgress,
                ..
            }) => ReplyMessage::Running,
            Ok(ToolReply {
                message: ToolMessage::Error(text),
                ..
            }) => ReplyMessage::Answer(ToolOutcome::error(text)),
            Err(_) if *self.target == CallTarget::Plain => {
                ReplyMessage::Answer(ToolOutcome::ok(String::from_utf8_lossy(&message.payload)))
            }
            Err(why) if is_ours(&message.payload) => {
                ReplyMessage::Answer(ToolOutcome::error(format!(
                    "the sidecar's answer cannot be read: {why}; it may or may not have taken effect"
                )))
            }
            Err(_) => ReplyMessage::Foreign,
        }
    }

    fn refused(&self, error: BusError) -> CallFailure {
        let name = self.name;
        match error {
            BusError::NoResponders(_) => CallFailure::Undone(match self.target {
                CallTarget::Sidecar(sidecar) => {
                    format!(
                        "nobody is there: no instance of the sidecar `{sidecar}` takes calls of `{name}`"
                    )
                }
                CallTarget::Plain => format!("nobody is there: nothing answers `{}`", self.subject),
            }),
            BusError::TooLarge { size, limit } => CallFailure::Undone(format!(
                "too large: the call has {size} bytes, and NATS carries {limit}; send less"
            )),
            BusError::Denied(why) => CallFailure::Undone(format!(
                "denied: this node may not call `{}`: {why}",
                self.subject
            )),
            BusError::TimedOut { .. }
            | BusError::Away(_)
            | BusError::Ended
            | BusError::Unfit(_) => CallFailure::Undone(error.to_string()),
        }
    }
}

/// Waits until all instances are gone that may have taken a call. Returns `None` at once if they are
/// not known.
async fn all_gone(takers: Option<&mut TakerWatch<'_>>) -> Option<()> {
    takers?.gone().await;
    Some(())
}

impl CallFailure {
    fn describe(self) -> String {
        match self {
            Self::Undone(why) => format!("{why}. Nothing was done"),
            Self::Open(why) => format!("{why}; it may or may not have taken effect"),
        }
    }
}

/// Returns whether a message is a JSON object with the key `v`, as every message of the sidecar
/// protocol is.
pub fn is_ours(payload: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(payload)
        .is_ok_and(|message| message.contains_key("v"))
}

/// The deadline of a call. Each progress message extends it, up to the maximum duration.
struct CallDeadline {
    idle: Duration,
    last: Instant,
    until: Instant,
}

impl CallDeadline {
    fn new(idle: Duration, longest: Duration) -> Self {
        let now = Instant::now();
        Self {
            idle,
            last: now + longest,
            until: now + idle.min(longest),
        }
    }

    fn renew(&mut self) {
        self.until = self.last.min(Instant::now() + self.idle);
    }

    fn over(&self) -> String {
        match self.until >= self.last {
            true => "it timed out: it made progress, but took too long in all".into(),
            false => format!(
                "it timed out: no sign of life for {} ms",
                self.idle.as_millis()
            ),
        }
    }
}

/// A guard that sends `cancel` to the sidecar when it is dropped. [`forget`](Self::forget) drops
/// the guard without the message, for a call that needs no cancellation.
pub struct Withdrawal<'a> {
    pub bus: &'a dyn Bus,
    pub sidecar: Option<&'a SidecarId>,
    pub call_id: &'a CallId,
}

impl Withdrawal<'_> {
    pub fn forget(mut self) {
        self.sidecar = None;
    }
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if let Some(sidecar) = self.sidecar {
            let cancel = Cancel {
                v: PROTOCOL_VERSION,
                call_id: self.call_id.clone(),
            };
            self.bus
                .publish(Topic::Cancel(sidecar).to_string(), json(&cancel).into());
        }
    }
}
