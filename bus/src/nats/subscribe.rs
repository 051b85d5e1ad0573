//! Subscribes, and waits until the server has what was sent.

use std::{sync::Arc, time::Duration};

use async_nats::{HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use planck_common::{
    NodeId,
    subject::{Address, Prefix},
};
use tokio::time::{Instant, timeout};

use super::{
    link::{Denials, NatsLink},
    request::{LINK_PATIENCE, Outgoing, exchange},
};
use crate::{BusError, Delivery, Observed};

/// How long a subscription may take to become active on the server.
const IN_FORCE: Duration = Duration::from_secs(3);
/// How much later a refusal may arrive than the reply that the server sent after it, because
/// another task of the client delivers refusals.
const TRAIL: Duration = Duration::from_millis(10);

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
            async_nats::SubscribeErrorKind::Other => BusError::Away(error.to_string()),
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
    let observer = LossObserver {
        _link: link,
        messages,
        denials,
        subject,
        prefix: prefix.clone(),
    };
    Ok(stream::unfold(Some(observer), |observer| async { observer?.next().await }).boxed())
}

struct LossObserver {
    /// The link, whose connection stays open as long as the observer exists.
    _link: Arc<NatsLink>,
    messages: Subscriber,
    denials: Denials,
    subject: String,
    prefix: Prefix,
}

impl LossObserver {
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
    match exchange(link, &messages, &nobody, IN_FORCE, |_| true).await {
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
