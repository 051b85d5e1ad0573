//! Makes calls to the sidecar, and parses its replies strictly.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use futures_util::StreamExt as _;
use planck_common::{PROTOCOL_VERSION, event::ToolEffect, service::ServiceInfo, subject::Prefix};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    CheckError, CheckPlan,
    discovery::{EndpointKind, OfferedEndpoint},
    sample,
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

    pub async fn open(&self, request: &CheckRequest) -> Result<PendingCall, CheckError> {
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
    ) -> Result<PendingCall, CheckError> {
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
    pub async fn gather(&self, subject: String) -> Result<Vec<Value>, CheckError> {
        gather(&self.client, subject).await
    }
}

/// How long the next of several replies may take.
const BETWEEN: Duration = Duration::from_millis(700);

pub async fn gather(client: &Client, subject: String) -> Result<Vec<Value>, CheckError> {
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
pub async fn listen(client: &Client, subject: String) -> Result<Subscriber, CheckError> {
    let heard = client.subscribe(subject).await.map_err(nats)?;
    let _nobody = client.request(client.new_inbox(), "".into()).await;
    Ok(heard)
}

pub fn nats(error: impl std::fmt::Display) -> CheckError {
    CheckError::Nats(error.to_string())
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

/// One message to the reply subject.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyPart {
    Progress,
    FinalReply(FinalReply),
    /// A message that breaks the protocol, with the reason.
    Malformed(String),
    /// The server has no subscription for the request.
    NoResponders,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum FinalReply {
    Ok(String),
    Error(String),
    Compact { summary: String, keep_from: i64 },
    Skip,
}

/// The keys of which a tool's message must have exactly one, besides `v`.
const OF_TOOLS: &[&str] = &["ok", "error", "progress"];
/// The keys of which a compactor's message must have exactly one, besides `v`.
const OF_COMPACTORS: &[&str] = &["compact", "skip", "error"];

/// The header in which service libraries put an error.
const ERROR_HEADER: &str = "Nats-Service-Error";

pub fn read(message: &Message, compactor: bool) -> ReplyPart {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return ReplyPart::NoResponders;
    }
    if let Some(error) = message
        .headers
        .as_ref()
        .and_then(|headers: &HeaderMap| headers.get(ERROR_HEADER))
        && message.payload.is_empty()
    {
        return ReplyPart::Malformed(format!(
            "the error is in the header {ERROR_HEADER} ({error}), and the body is empty; send {{\"v\":1,\"error\":\"text\"}}"
        ));
    }
    let text = String::from_utf8_lossy(&message.payload);
    parse(&text, compactor)
        .unwrap_or_else(|why| ReplyPart::Malformed(format!("{why}: {}", shown(&text))))
}

fn parse(text: &str, compactor: bool) -> Result<ReplyPart, String> {
    let reply: Value =
        serde_json::from_str(text).map_err(|error| format!("the answer is not JSON ({error})"))?;
    if reply.get("v").and_then(Value::as_u64) != Some(PROTOCOL_VERSION.into()) {
        return Err("the answer needs \"v\":1".into());
    }
    let known = if compactor { OF_COMPACTORS } else { OF_TOOLS };
    let mut present = known
        .iter()
        .filter_map(|key| Some((*key, reply.get(*key)?)));
    match (present.next(), present.next()) {
        (Some((key, value)), None) => piece(key, value),
        _ => Err(format!(
            "the answer needs exactly one of {}",
            known.join(", ")
        )),
    }
}

fn piece(key: &str, value: &Value) -> Result<ReplyPart, String> {
    let text = || {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("`{key}` must be text"))
    };
    let said = match key {
        "ok" => FinalReply::Ok(text()?),
        "error" => FinalReply::Error(text()?),
        "skip" if value == &Value::Bool(true) => FinalReply::Skip,
        "skip" => return Err("`skip` must be true".into()),
        "compact" => FinalReply::Compact {
            summary: value
                .get("summary")
                .and_then(Value::as_str)
                .ok_or("`compact.summary` must be text")?
                .into(),
            keep_from: value
                .get("keep_from")
                .and_then(Value::as_i64)
                .ok_or("`compact.keep_from` must be a message id, a number")?,
        },
        _ => return progress(value).map(|()| ReplyPart::Progress),
    };
    Ok(ReplyPart::FinalReply(said))
}

fn progress(value: &Value) -> Result<(), String> {
    if !value.get("message").is_some_and(Value::is_string) {
        return Err("`progress` needs a `message`, as in {\"progress\":{\"message\":\"text\",\"percent\":50}}".into());
    }
    match value.get("percent") {
        None => Ok(()),
        Some(percent)
            if percent
                .as_f64()
                .is_some_and(|percent| (0.0..=100.0).contains(&percent)) =>
        {
            Ok(())
        }
        Some(percent) => Err(format!(
            "`progress.percent` must be a number from 0 to 100, or left out; it is {percent}"
        )),
    }
}

/// Returns the beginning of a text, short enough to quote in a finding.
pub fn shown(text: &str) -> String {
    const MOST: usize = 200;
    let cut: String = text.chars().take(MOST).collect();
    if cut.len() < text.len() {
        format!("{cut}…")
    } else {
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_strictly() {
        let tools = [
            (
                r#"{"v":1,"ok":"a"}"#,
                Ok(ReplyPart::FinalReply(FinalReply::Ok("a".into()))),
            ),
            (
                r#"{"v":1,"error":"a","new":1}"#,
                Ok(ReplyPart::FinalReply(FinalReply::Error("a".into()))),
            ),
            (
                r#"{"v":1,"progress":{"message":"m"}}"#,
                Ok(ReplyPart::Progress),
            ),
            (
                r#"{"v":1,"progress":{"message":"m","percent":101}}"#,
                Err("percent"),
            ),
            (r#"{"v":1,"progress":"m"}"#, Err("message")),
            (r#"{"v":1,"ok":{"a":1}}"#, Err("must be text")),
            (r#"{"v":1,"ok":"a","error":"b"}"#, Err("exactly one")),
            (r#"{"v":1,"result":"a"}"#, Err("exactly one")),
            (r#"{"ok":"a"}"#, Err("\"v\":1")),
            ("ok", Err("not JSON")),
        ];
        for (text, expected) in tools {
            match (parse(text, false), expected) {
                (Ok(piece), Ok(expected)) => assert_eq!(piece, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (parsed, _) => panic!("{text}: {parsed:?}"),
            }
        }
        let compact = parse(r#"{"v":1,"compact":{"summary":"s","keep_from":7}}"#, true);
        assert_eq!(
            compact,
            Ok(ReplyPart::FinalReply(FinalReply::Compact {
                summary: "s".into(),
                keep_from: 7
            }))
        );
        assert_eq!(
            parse(r#"{"v":1,"skip":true}"#, true),
            Ok(ReplyPart::FinalReply(FinalReply::Skip))
        );
        assert!(parse(r#"{"v":1,"skip":false}"#, true).is_err());
        assert!(parse(r#"{"v":1,"ok":"a"}"#, true).is_err());
    }
}
