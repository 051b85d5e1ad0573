//! A client of the protocol without the client library. It sends and reads JSON over a NATS
//! connection.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_nats::{Client, Request, RequestErrorKind, ServerAddr};
use bytes::Bytes;
use planck_common::{
    command::{
        Accepted, AgentInfo, AgentVerb, Events, Messages, SessionInfo, SessionVerb, SessionsVerb,
        Snapshot, Started,
    },
    envelope::Envelope,
    message::Message,
    reply::{self, Refusal, ReplyError},
    subject::{Address, LIST, Target},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::eventually::PATIENCE;

/// How long [`Caller::read`] waits for each reply. It sends its request at most [`TRIES`] times.
const TRY: Duration = Duration::from_secs(5);
const TRIES: usize = 4;

/// A NATS connection that waits for each reply for a limited time only.
#[derive(Clone)]
pub struct Caller {
    pub nats: Client,
}

impl Caller {
    pub async fn connect(urls: &str) -> Result<Self> {
        let servers = urls
            .split(',')
            .map(str::parse)
            .collect::<Result<Vec<ServerAddr>, _>>()?;
        let options = async_nats::ConnectOptions::new()
            .request_timeout(Some(PATIENCE))
            .ping_interval(Duration::from_secs(1));
        Ok(Self {
            nats: options.connect(servers).await?,
        })
    }

    /// Sends a request, and returns its reply without decoding it.
    pub async fn raw(&self, subject: &str, body: impl Into<Bytes>) -> Result<async_nats::Message> {
        let asked = self.nats.request(subject.to_owned(), body.into());
        let answer = timeout(PATIENCE, asked)
            .await
            .with_context(|| format!("silence on {subject}"))?;
        answer.with_context(|| format!("asking {subject}"))
    }

    /// Like [`ask`](Self::ask), for requests that may be repeated. It sends a request again if no
    /// reply arrives, because a node that ends does not answer the requests that were on their way
    /// to it.
    pub async fn read<T: DeserializeOwned>(&self, to: &Address, body: &Value) -> Result<T> {
        for _ in 0..TRIES {
            let request = Request::new()
                .payload(body.to_string().into())
                .timeout(Some(TRY));
            match self.nats.send_request(to.to_string(), request).await {
                Ok(answer) => {
                    return decode(to, &answer)?
                        .map_err(|refusal| anyhow::anyhow!("{to} {body}: {refusal}"));
                }
                Err(error) if error.kind() == RequestErrorKind::TimedOut => {}
                Err(error) => return Err(error).with_context(|| format!("asking {to}")),
            }
        }
        bail!("silence on {to}")
    }

    /// Sends a request, and returns the `ok` of its reply, or the refusal.
    pub async fn try_request<T: DeserializeOwned>(
        &self,
        to: &Address,
        body: &Value,
    ) -> Result<Result<T, Refusal>> {
        decode(to, &self.raw(&to.to_string(), body.to_string()).await?)
    }

    pub async fn ask<T: DeserializeOwned>(&self, to: &Address, body: &Value) -> Result<T> {
        self.try_request(to, body)
            .await?
            .map_err(|refusal| anyhow::anyhow!("{to} {body}: {refusal}"))
    }

    /// Sends a request that must be refused, and returns the refusal. Fails if the request is
    /// accepted.
    pub async fn refusal(&self, to: &Address, body: &Value) -> Result<Refusal> {
        let answer: Result<Value, Refusal> = self.try_request(to, body).await?;
        answer
            .err()
            .with_context(|| format!("{to} {body} was not refused"))
    }

    pub async fn start(&self, body: &Value) -> Result<Started> {
        self.ask(&sessions(SessionsVerb::Start), body).await
    }

    pub async fn prompt(&self, session: &str, text: &str) -> Result<Accepted> {
        self.ask(
            &session_at(session, SessionVerb::Prompt),
            &json!({ "text": text }),
        )
        .await
    }

    pub async fn session(&self, session: &str) -> Result<SessionInfo> {
        self.read(&session_at(session, SessionVerb::Info), &json!({}))
            .await
    }

    pub async fn agent(&self, agent: &str) -> Result<AgentInfo> {
        self.read(&agent_at(agent, AgentVerb::Info), &json!({}))
            .await
    }

    pub async fn snapshot(&self, agent: &str) -> Result<Snapshot> {
        self.read(&agent_at(agent, AgentVerb::Snapshot), &json!({}))
            .await
    }

    /// Requests the page of the log that begins with row `from`.
    pub async fn events(&self, session: &str, from: i64) -> Result<Events> {
        self.read(
            &session_at(session, SessionVerb::Events),
            &json!({ "from": from }),
        )
        .await
    }

    /// Requests the whole log from row `from` on, page by page.
    pub async fn log(&self, session: &str, mut from: i64) -> Result<Vec<Envelope>> {
        let mut log = Vec::new();
        loop {
            let page = self.events(session, from).await?;
            for event in &page.events {
                log.push(serde_json::from_str(event.get())?);
            }
            if page.next > page.head {
                return Ok(log);
            }
            from = page.next;
        }
    }

    /// Requests the messages since the latest checkpoint, of one agent or of all.
    pub async fn messages(&self, session: &str, agent: Option<&str>) -> Result<Vec<Message>> {
        let body = json!({ "agent": agent });
        let page: Messages = self
            .read(&session_at(session, SessionVerb::Messages), &body)
            .await?;
        Ok(page
            .messages
            .iter()
            .map(|message| serde_json::from_str(message.get()))
            .collect::<Result<_, _>>()?)
    }
}

fn decode<T: DeserializeOwned>(
    to: &Address,
    answer: &async_nats::Message,
) -> Result<Result<T, Refusal>> {
    match reply::decode(&answer.payload) {
        Ok(ok) => Ok(Ok(ok)),
        Err(ReplyError::Refused(refusal)) => Ok(Err(refusal)),
        Err(error) => Err(error)
            .with_context(|| format!("{to}: {}", String::from_utf8_lossy(&answer.payload))),
    }
}

pub fn sessions(verb: SessionsVerb) -> Address {
    Address::new(Target::Sessions, verb.name())
}

pub fn session_at(session: &str, verb: SessionVerb) -> Address {
    Address::session(session, verb.name())
}

pub fn agent_at(agent: &str, verb: AgentVerb) -> Address {
    Address::agent(agent, verb.name())
}

/// Returns the address of a target's list verb.
pub fn list_of(target: Target) -> Address {
    Address::new(target, LIST)
}
