//! Makes calls to the sidecar, and receives its replies.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_nats::{Client, Subscriber};
use futures_util::StreamExt as _;
use planck_common::{event::ToolEffect, service::ServiceInfo, subject::Prefix};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    CheckPlan, Error,
    discovery::{EndpointKind, OfferedEndpoint},
    sample,
    wire::{FinalReply, ReplyPart, read, shown},
};

pub struct Checker {
    pub client: Client,
    pub plan: CheckPlan,
    pub instances: Vec<ServiceInfo>,
    pub offers: Vec<OfferedEndpoint>,
    /// A call that the sidecar has answered with `ok` within the patience.
    pub quick: Option<(OfferedEndpoint, Value)>,
    run: u32,
    calls: AtomicU64,
}

/// A request, before it is sent.
#[derive(Debug, Clone)]
pub struct CheckRequest {
    pub subject: String,
    pub call_id: String,
    pub body: Value,
    compactor: bool,
}

/// A call that was sent.
pub struct PendingCall {
    replies: Subscriber,
    compactor: bool,
    pub progress: usize,
    pub malformed: Option<String>,
}

/// How a call ended, or that it had not ended when the checker stopped waiting.
#[derive(Debug, Clone, PartialEq)]
pub enum ObservedEnd {
    FinalReply(FinalReply),
    Malformed(String),
    NoResponders,
    Silent(Duration),
}

impl Checker {
    pub fn new(client: Client, plan: CheckPlan, instances: Vec<ServiceInfo>) -> Self {
        let offers = instances
            .first()
            .map(OfferedEndpoint::of_all)
            .unwrap_or_default();
        Self {
            client,
            plan,
            instances,
            offers,
            quick: None,
            run: fastrand::u32(..),
            calls: AtomicU64::new(0),
        }
    }

    pub fn patience(&self) -> Duration {
        self.plan.patience
    }

    pub fn prefix(&self) -> &Prefix {
        &self.plan.connection.prefix
    }

    pub fn fresh(&self, what: &str) -> String {
        format!(
            "conform-{what}-{:08x}-{}",
            self.run,
            self.calls.fetch_add(1, Ordering::Relaxed)
        )
    }

    pub fn tools(&self) -> impl Iterator<Item = &OfferedEndpoint> {
        self.offers
            .iter()
            .filter(|offer| offer.kind == EndpointKind::Tool)
    }

    /// Returns arguments for a valid call: the given ones, or generated ones. Returns an error if
    /// the tool may not be called or no arguments could be generated.
    pub fn arguments(&self, tool: &OfferedEndpoint, nth: u32) -> Result<Value, String> {
        let given = self.plan.args.iter().find(|(name, _)| *name == tool.name);
        if let Some((_, args)) = given {
            return Ok(args.clone());
        }
        if tool.effect == ToolEffect::Mutating {
            return Err(format!(
                "it is mutating; if it may be called, name its arguments with --args {}=JSON",
                tool.name
            ));
        }
        sample::fitting(&tool.parameters, nth).ok_or_else(|| {
            format!(
                "could not make up arguments that fit; name some with --args {}=JSON",
                tool.name
            )
        })
    }

    /// Builds a request with a new call id and agent id.
    pub fn call(&self, offer: &OfferedEndpoint, args: &Value) -> CheckRequest {
        let call_id = self.fresh("call");
        let body = json!({
            "v": 1, "call_id": call_id, "tool": offer.name, "args": args, "agent_id": self.fresh("agent"),
            "session_id": "conform", "team_id": "conform", "epoch": 1, "deadline_ms": 60_000,
        });
        CheckRequest {
            subject: offer.subject.clone(),
            call_id,
            body,
            compactor: false,
        }
    }

    pub fn compaction(
        &self,
        offer: &OfferedEndpoint,
        messages: &[Value],
        tokens: usize,
    ) -> CheckRequest {
        let call_id = self.fresh("call");
        let body = json!({
            "v": 1, "call_id": call_id, "compactor": offer.name, "model": {"id": "conform", "context_window": 4000},
            "messages": messages, "tokens": tokens, "agent_id": "conform", "session_id": "conform", "deadline_ms": 60_000,
        });
        CheckRequest {
            subject: offer.subject.clone(),
            call_id,
            body,
            compactor: true,
        }
    }

    pub async fn open(&self, request: &CheckRequest) -> Result<PendingCall, Error> {
        self.send(
            &request.subject,
            request.body.to_string(),
            request.compactor,
        )
        .await
    }

    /// Sends a body unchanged. The returned call receives the replies.
    pub async fn send(
        &self,
        subject: &str,
        body: String,
        compactor: bool,
    ) -> Result<PendingCall, Error> {
        let inbox = self.client.new_inbox();
        let replies = self.client.subscribe(inbox.clone()).await.map_err(nats)?;
        self.client
            .publish_with_reply(subject.to_owned(), inbox, body.into())
            .await
            .map_err(nats)?;
        Ok(PendingCall {
            replies,
            compactor,
            progress: 0,
            malformed: None,
        })
    }

    /// Makes a call and waits for its end.
    pub async fn ask(&self, request: &CheckRequest) -> ObservedEnd {
        match self.open(request).await {
            Ok(mut line) => line.end(self.patience()).await,
            Err(error) => ObservedEnd::Malformed(error.to_string()),
        }
    }

    pub async fn publish(&self, subject: String, body: String) {
        let _reported_by_what_follows = self.client.publish(subject, body.into()).await;
    }

    /// Collects the replies of all instances to a request, until none has arrived for [`BETWEEN`].
    pub async fn gather(&self, subject: String) -> Result<Vec<Value>, Error> {
        gather(&self.client, subject).await
    }
}

/// How long the next of several replies may take.
const BETWEEN: Duration = Duration::from_millis(700);

pub async fn gather(client: &Client, subject: String) -> Result<Vec<Value>, Error> {
    let inbox = client.new_inbox();
    let mut replies = client.subscribe(inbox.clone()).await.map_err(nats)?;
    client
        .publish_with_reply(subject, inbox, "".into())
        .await
        .map_err(nats)?;
    let mut gathered = Vec::new();
    while let Ok(Some(message)) = timeout(BETWEEN, replies.next()).await {
        if message.status.is_some() {
            break;
        }
        gathered.extend(serde_json::from_slice::<Value>(&message.payload).ok());
    }
    Ok(gathered)
}

/// Subscribes to a subject. The subscription receives every message that is published after this
/// function has returned. To ensure this, a request makes a round trip to the server, which answers
/// that there are no responders.
pub async fn listen(client: &Client, subject: String) -> Result<Subscriber, Error> {
    let heard = client.subscribe(subject).await.map_err(nats)?;
    let _nobody = client.request(client.new_inbox(), "".into()).await;
    Ok(heard)
}

pub fn nats(error: impl std::fmt::Display) -> Error {
    Error::Nats(error.to_string())
}

impl PendingCall {
    /// Returns the next message, or `None` if none arrives within `within`.
    pub async fn next(&mut self, within: Duration) -> Option<ReplyPart> {
        let message = timeout(within, self.replies.next()).await.ok()??;
        Some(read(&message, self.compactor))
    }

    /// Waits for the answer for at most `within`. Counts the progress reports before it, which do
    /// not extend the wait, and stores the first malformed one.
    pub async fn end(&mut self, within: Duration) -> ObservedEnd {
        let until = Instant::now() + within;
        loop {
            match self
                .next(until.saturating_duration_since(Instant::now()))
                .await
            {
                Some(ReplyPart::Progress) => self.progress += 1,
                Some(ReplyPart::FinalReply(said)) => return ObservedEnd::FinalReply(said),
                Some(ReplyPart::Malformed(why)) if why.contains("`progress") => {
                    self.malformed.get_or_insert(why);
                }
                Some(ReplyPart::Malformed(why)) => return ObservedEnd::Malformed(why),
                Some(ReplyPart::NoResponders) => return ObservedEnd::NoResponders,
                None => return ObservedEnd::Silent(within),
            }
        }
    }

    /// Waits for the first progress report, but at most for `within`. Returns the end of the call
    /// if the call ends first, otherwise `None`.
    pub async fn begun(&mut self, within: Duration) -> Option<ObservedEnd> {
        match self.next(within).await {
            Some(ReplyPart::Progress) => {
                self.progress += 1;
                None
            }
            Some(ReplyPart::Malformed(why)) if why.contains("`progress") => {
                self.malformed = Some(why);
                None
            }
            Some(ReplyPart::FinalReply(said)) => Some(ObservedEnd::FinalReply(said)),
            Some(ReplyPart::Malformed(why)) => Some(ObservedEnd::Malformed(why)),
            Some(ReplyPart::NoResponders) => Some(ObservedEnd::NoResponders),
            None => None,
        }
    }
}

impl ObservedEnd {
    /// Returns the text of an `ok`, or an error that describes any other end.
    pub fn ok(self) -> Result<String, String> {
        match self {
            Self::FinalReply(FinalReply::Ok(text)) => Ok(text),
            other @ (Self::FinalReply(_)
            | Self::Malformed(_)
            | Self::NoResponders
            | Self::Silent(_)) => Err(other.describe()),
        }
    }

    /// Returns the text of an `error`, or an error that describes any other end.
    pub fn error(self) -> Result<String, String> {
        match self {
            Self::FinalReply(FinalReply::Error(text)) => Ok(text),
            other @ (Self::FinalReply(_)
            | Self::Malformed(_)
            | Self::NoResponders
            | Self::Silent(_)) => Err(other.describe()),
        }
    }

    pub fn describe(&self) -> String {
        match self {
            Self::FinalReply(FinalReply::Ok(text)) => {
                format!("it was answered with ok: {}", shown(text))
            }
            Self::FinalReply(FinalReply::Error(text)) => {
                format!("it was answered with an error: {}", shown(text))
            }
            Self::FinalReply(FinalReply::Compact { .. }) => "it was answered with a summary".into(),
            Self::FinalReply(FinalReply::Skip) => "it was answered with skip".into(),
            Self::Malformed(why) => why.clone(),
            Self::NoResponders => "no instance takes requests on its subject".into(),
            Self::Silent(within) => format!("there was no answer within {within:?}"),
        }
    }
}
