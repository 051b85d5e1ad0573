//! Sends requests and subscribes. Each request has its own inbox, so replies to other requests do
//! not end it, and a late reply to a request that timed out reaches no one.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, HeaderMap, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use planck_common::{
    NodeId,
    subject::{Address, Prefix},
};
use serde::Deserialize;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::link::{Denials, NatsLink};
use crate::{
    BusError, Delivery, Observed,
    telemetry::{self, TRACEPARENT},
};

/// How long a request waits for a link that is down.
pub const LINK_PATIENCE: Duration = Duration::from_millis(500);
/// The pause before one more attempt if there were no responders, because nodes may be reconnecting
/// to another server.
const AGAIN: Duration = Duration::from_millis(100);
/// How long a subscription may take to become active on the server.
const IN_FORCE: Duration = Duration::from_secs(3);
/// How much later a refusal may arrive than the reply that the server sent after it, because
/// another task of the client delivers refusals.
const TRAIL: Duration = Duration::from_millis(10);

/// Sends a request and waits for one reply of this protocol. Tries once more if there were no
/// responders. `subject` has no prefix.
pub async fn request(
    link: &NatsLink,
    prefix: &Prefix,
    subject: &str,
    body: Bytes,
    patience: Duration,
) -> Result<Bytes, BusError> {
    let deadline = Instant::now() + patience;
    let limit = link.client.max_payload();
    if body.len() > limit {
        return Err(BusError::TooLarge {
            size: body.len(),
            limit,
        });
    }
    link.up_by(deadline.min(Instant::now() + LINK_PATIENCE))
        .await?;
    let messages = [Outgoing {
        subject: prefix.on(subject),
        headers: trace_headers(),
        body,
    }];
    let ask = Ask {
        link,
        messages: &messages,
        name: subject,
        deadline,
        patience,
        fits: is_ours,
    };
    match ask.once().await {
        Err(BusError::NoResponders(_)) if Instant::now() + AGAIN < deadline => {
            sleep(AGAIN).await;
            ask.once().await
        }
        result => result,
    }
}

/// A message to send, with its complete subject.
pub struct Outgoing {
    pub subject: String,
    pub headers: Option<HeaderMap>,
    pub body: Bytes,
}

/// Messages to send in order, with one inbox for the replies.
pub struct Ask<'a> {
    pub link: &'a NatsLink,
    pub messages: &'a [Outgoing],
    /// The name of the request in errors.
    pub name: &'a str,
    pub deadline: Instant,
    pub patience: Duration,
    /// The function that returns whether a reply is the answer. Other replies are ignored.
    pub fits: fn(&[u8]) -> bool,
}

impl Ask<'_> {
    pub async fn once(&self) -> Result<Bytes, BusError> {
        let inbox = self.link.client.new_inbox();
        let mut denials = self.link.events.denials();
        let subjects: Vec<&str> = self
            .messages
            .iter()
            .map(|message| message.subject.as_str())
            .chain([inbox.as_str()])
            .collect();
        tokio::select! {
            biased;
            reply = self.exchange(&inbox) => reply,
            denied = denials.of(&subjects) => Err(denied),
            down = self.link.went_down() => Err(down),
            () = sleep_until(self.deadline) => {
                Err(BusError::TimedOut { subject: self.name.into(), after: self.patience })
            }
        }
    }

    async fn exchange(&self, inbox: &str) -> Result<Bytes, BusError> {
        let mut replies = self
            .link
            .client
            .subscribe(inbox.to_owned())
            .await
            .map_err(|error| lost(&error))?;
        for message in self.messages {
            message.send(&self.link.client, inbox, self.name).await?;
        }
        while let Some(reply) = replies.next().await {
            if reply.status == Some(StatusCode::NO_RESPONDERS) {
                return Err(BusError::NoResponders(self.name.into()));
            }
            if (self.fits)(&reply.payload) {
                return Ok(reply.payload);
            }
        }
        Err(BusError::Away("the connection was closed".into()))
    }
}

impl Outgoing {
    /// Sends the message, with `inbox` as its reply subject.
    pub async fn send(&self, client: &Client, inbox: &str, name: &str) -> Result<(), BusError> {
        let Self {
            subject,
            headers,
            body,
        } = self;
        let (subject, inbox) = (subject.clone(), inbox.to_owned());
        let sent = match headers {
            Some(headers) => {
                client
                    .publish_with_reply_and_headers(subject, inbox, headers.clone(), body.clone())
                    .await
            }
            None => {
                client
                    .publish_with_reply(subject, inbox, body.clone())
                    .await
            }
        };
        sent.map_err(|error| match error.kind() {
            async_nats::client::PublishErrorKind::MaxPayloadExceeded => BusError::TooLarge {
                size: body.len(),
                limit: client.max_payload(),
            },
            async_nats::client::PublishErrorKind::InvalidSubject => {
                BusError::NoResponders(name.into())
            }
            async_nats::client::PublishErrorKind::Send => lost(&error),
        })
    }
}

pub fn trace_headers() -> Option<HeaderMap> {
    let trace = telemetry::installed().traceparent()?;
    let mut headers = HeaderMap::new();
    headers.insert(TRACEPARENT, trace.as_str());
    Some(headers)
}

pub fn lost(error: &dyn std::error::Error) -> BusError {
    BusError::Away(error.to_string())
}

/// Returns whether a reply belongs to this protocol. A JetStream stream that records requests sends
/// an acknowledgement before the real reply arrives.
fn is_ours(reply: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Version {
        v: Option<serde::de::IgnoredAny>,
    }
    reply.starts_with(br#"{"v":"#)
        || serde_json::from_slice::<Version>(reply).is_ok_and(|reply| reply.v.is_some())
}

/// Subscribes, and waits until the server has the subscription. A round trip confirms the
/// subscription; a flush does not.
pub async fn subscribe(
    link: &NatsLink,
    prefix: &Prefix,
    subject: &str,
) -> Result<Subscriber, BusError> {
    link.up_by(Instant::now() + LINK_PATIENCE).await?;
    let subject = prefix.on(subject);
    let mut denials = link.events.denials();
    let messages = begin(link, &subject).await?;
    round_trip(link, prefix).await?;
    link.none_denied(&mut denials, &[&subject]).await?;
    Ok(messages)
}

async fn begin(link: &NatsLink, subject: &str) -> Result<Subscriber, BusError> {
    link.client
        .subscribe(subject.to_owned())
        .await
        .map_err(|error| match error.kind() {
            async_nats::SubscribeErrorKind::InvalidSubject
            | async_nats::SubscribeErrorKind::InvalidQueueName => {
                BusError::Denied(format!("`{subject}` is no subject"))
            }
            async_nats::SubscribeErrorKind::Other => lost(&error),
        })
}

/// Subscribes without publishing anything. If the server refuses the subscription, the error
/// arrives as an item.
pub async fn observe(
    link: Arc<NatsLink>,
    prefix: &Prefix,
    subject: &str,
) -> Result<Observed, BusError> {
    link.up_by(Instant::now() + LINK_PATIENCE).await?;
    let (denials, subject) = (link.events.denials(), prefix.on(subject));
    let messages = begin(&link, &subject).await?;
    let observer = Observer {
        _link: link,
        messages,
        denials,
        subject,
        prefix: prefix.clone(),
    };
    Ok(stream::unfold(Some(observer), |observer| async { observer?.next().await }).boxed())
}

struct Observer {
    /// The link, whose connection stays open as long as the observer exists.
    _link: Arc<NatsLink>,
    messages: Subscriber,
    denials: Denials,
    subject: String,
    prefix: Prefix,
}

impl Observer {
    async fn next(mut self) -> Option<(Result<Delivery, BusError>, Option<Self>)> {
        loop {
            let subjects = [self.subject.as_str()];
            let message = tokio::select! {
                biased;
                denied = self.denials.of(&subjects) => return Some((Err(denied), None)),
                message = self.messages.next() => message?,
            };
            let subject = self.prefix.off(&message.subject).map(str::to_owned);
            if let Some(subject) = subject {
                return Some((
                    Ok(Delivery {
                        subject,
                        payload: message.payload,
                    }),
                    Some(self),
                ));
            }
        }
    }
}

/// Waits until the server has handled everything that was sent before. The request goes to a
/// subject without responders: the server's reply to this request, or its refusal, is the
/// confirmation.
pub async fn round_trip(link: &NatsLink, prefix: &Prefix) -> Result<(), BusError> {
    let nobody = Address::node(&NodeId::mint(), "info").to_string();
    let messages = [Outgoing {
        subject: prefix.on(&nobody),
        headers: None,
        body: Bytes::new(),
    }];
    let ask = Ask {
        link,
        messages: &messages,
        name: &nobody,
        deadline: Instant::now() + IN_FORCE,
        patience: IN_FORCE,
        fits: |_| true,
    };
    match ask.once().await {
        Ok(_) | Err(BusError::NoResponders(_) | BusError::Denied(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

impl NatsLink {
    /// Returns an error if the server refused an operation on one of these subjects. The caller
    /// must have made a round trip after these operations. A server without users refuses nothing.
    pub async fn none_denied(
        &self,
        denials: &mut Denials,
        subjects: &[&str],
    ) -> Result<(), BusError> {
        if !self.client.server_info().auth_required {
            return Ok(());
        }
        timeout(TRAIL, denials.of(subjects))
            .await
            .map_or(Ok(()), Err)
    }

    /// Replies to a request. Sends nothing if the request has no reply subject or the link is down.
    pub async fn reply(&self, request: &Message, headers: HeaderMap, body: Bytes) {
        let Some(to) = request.reply.clone() else {
            return;
        };
        let sent = async {
            if headers.is_empty() {
                self.client.publish(to, body).await
            } else {
                self.client.publish_with_headers(to, headers, body).await
            }
        };
        tokio::select! {
            biased;
            sent = sent => {
                if let Err(error) = sent {
                    tracing::warn!(subject = %request.subject, %error, "cannot send a reply");
                }
            }
            _lost_with_the_link = self.went_down() => {}
        }
    }
}
