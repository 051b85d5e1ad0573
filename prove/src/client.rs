//! Requests of the wire protocol, as JSON over a connection to NATS.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_nats::{ConnectOptions, Request, RequestErrorKind, ServerAddr};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// How long one try of a request waits for its reply.
const TRY: Duration = Duration::from_secs(2);
/// The pause before a request is sent again. It is short, so that clients ask as soon as the cluster
/// is back, when its nodes may not begin work yet.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection to NATS, and the words before each subject of the cluster.
#[derive(Clone)]
pub struct Caller {
    pub nats: async_nats::Client,
    prefix: String,
}

/// The reply to a request.
pub enum Answer {
    Ok(Value),
    Refused {
        why: String,
        is_retryable: bool,
    },
    /// No reply came, so the request may have been performed.
    Silence(String),
}

impl Caller {
    /// Connects to a server. The connection is made again whenever it breaks.
    pub async fn connect(login: ConnectOptions, url: &str, prefix: &str) -> Result<Self> {
        let servers = url
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<ServerAddr>, _>>()?;
        let user = servers
            .iter()
            .find_map(|server| Some((plain(server.username()?), plain(server.password()?))));
        let options = match user {
            Some((user, password)) => login.user_and_password(user, password),
            None => login,
        };
        let options = options
            .name("planck prove")
            .connection_timeout(Duration::from_secs(5))
            .ping_interval(Duration::from_secs(1))
            .reconnect_delay_callback(|_| Duration::from_millis(100));
        let nats = options.connect(servers).await;
        Ok(Self {
            nats: nats.with_context(|| format!("cannot reach NATS at {}", without_secret(url)))?,
            prefix: prefix.to_owned(),
        })
    }

    /// Returns a subject of the cluster.
    pub fn subject(&self, words: &str) -> String {
        format!("{}.{words}", self.prefix)
    }

    /// Sends a request once.
    pub async fn try_ask(&self, words: &str, body: &Value) -> Answer {
        let request = Request::new()
            .payload(body.to_string().into())
            .timeout(Some(TRY));
        let reply = match self.nats.send_request(self.subject(words), request).await {
            Ok(reply) => reply,
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                return Answer::Refused {
                    why: "no node answers".into(),
                    is_retryable: true,
                };
            }
            Err(error) => return Answer::Silence(error.to_string()),
        };
        let Ok(mut read) = serde_json::from_slice::<Value>(&reply.payload) else {
            return Answer::Silence("the reply is no JSON".into());
        };
        if let Some(ok) = read.get_mut("ok") {
            return Answer::Ok(ok.take());
        }
        let error = read.get("error").cloned().unwrap_or(Value::Null);
        Answer::Refused {
            why: text(&error, "message").to_owned(),
            is_retryable: error.get("retryable") == Some(&Value::Bool(true)),
        }
    }

    /// Sends a request that is harmless to repeat, until it is performed.
    pub async fn ask(&self, words: &str, body: &Value, patience: Duration) -> Result<Value> {
        match self.ask_or_be_refused(words, body, patience).await? {
            Ok(ok) => Ok(ok),
            Err(why) => bail!("{words} is refused: {why}"),
        }
    }

    /// Sends a request that is harmless to repeat, until it is performed or refused for good. Returns why
    /// it is refused.
    pub async fn ask_or_be_refused(
        &self,
        words: &str,
        body: &Value,
        patience: Duration,
    ) -> Result<Result<Value, String>> {
        let until = Instant::now() + patience;
        loop {
            let why = match self.try_ask(words, body).await {
                Answer::Ok(ok) => return Ok(Ok(ok)),
                Answer::Refused {
                    why,
                    is_retryable: false,
                } => return Ok(Err(why)),
                Answer::Refused { why, .. } | Answer::Silence(why) => why,
            };
            if Instant::now() > until {
                bail!("{words} was not performed within {patience:?}: {why}");
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads the log of a session from row `from` on, page by page.
    pub async fn log(&self, session: &str, from: u64, patience: Duration) -> Result<Vec<Value>> {
        let mut log = Vec::new();
        let mut from = from;
        loop {
            let words = format!("cmd.session.{session}.events");
            let body = serde_json::json!({ "from": from });
            let mut page = self.ask(&words, &body, patience).await?;
            if let Some(Value::Array(events)) = page.get_mut("events").map(Value::take) {
                log.extend(events);
            }
            let number = |name| page.get(name).and_then(Value::as_u64);
            let (Some(next), Some(head)) = (number("next"), number("head")) else {
                bail!("{words} does not tell where the log goes on");
            };
            if next > head {
                return Ok(log);
            }
            from = next;
        }
    }
}

/// Returns a part of an address without its escapes.
fn plain(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

/// Returns a field that is a text, or the empty text.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Returns a field of an event's data that is a text, or the empty text.
pub fn data<'a>(event: &'a Value, name: &str) -> &'a str {
    event.get("data").map_or("", |data| text(data, name))
}

/// Returns the ids of the inputs whose turn ends with an event.
pub fn inputs_that_end(event: &Value) -> impl Iterator<Item = &str> {
    let is_end = matches!(text(event, "type"), "turn_end" | "error");
    let inputs = event.pointer("/data/inputs").and_then(Value::as_array);
    let inputs = inputs.filter(|_| is_end).into_iter().flatten();
    inputs.filter_map(Value::as_str)
}

/// Returns the number of an event in the log, or `None` for a live event.
pub fn seq(event: &Value) -> Option<u64> {
    event.get("seq").and_then(Value::as_u64)
}

/// Returns an address without the user and the password in it.
pub fn without_secret(url: &str) -> String {
    let hidden = |url: &str| match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (_, _) => url.to_owned(),
    };
    url.split(',').map(hidden).collect::<Vec<_>>().join(",")
}
