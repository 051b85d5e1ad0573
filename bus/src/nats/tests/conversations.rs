//! Tests of requests that are answered in several messages.

use std::time::Duration;

use async_nats::{Client, HeaderMap, Message};
use bytes::Bytes;
use futures_util::{StreamExt, future::join_all};
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::{ReplyStream, StreamedReply};

const PATIENCE: Duration = Duration::from_secs(20);

const ASKED: &str = "tool.a.b";

/// Starts a service that answers each request with `answer`. The service has its own connection.
async fn answering<F, R>(world: &Nats, answer: F) -> JoinHandle<()>
where
    F: Fn(Client, Message) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let client = world.connect().await.link.client.clone();
    let mut asked = client.subscribe(ASKED).await.unwrap();
    client.flush().await.unwrap();
    let _in_force = client.request(client.new_inbox(), Bytes::new()).await;
    tokio::spawn(async move {
        while let Some(message) = asked.next().await {
            tokio::spawn(answer(client.clone(), message));
        }
    })
}

async fn next(conversation: &mut ReplyStream) -> Result<StreamedReply, BusError> {
    timeout(PATIENCE, conversation.next())
        .await
        .expect("nothing came")
        .expect("the conversation ended")
}

fn said(text: &str) -> Result<StreamedReply, BusError> {
    Ok(StreamedReply {
        payload: Bytes::copy_from_slice(text.as_bytes()),
        error: None,
    })
}

#[tokio::test]
async fn replies_come_in_order_and_errors_from_their_headers() {
    let world = Nats::start();
    let bus = world.connect().await;
    let answers = answering(&world, |client, message| async move {
        let reply = message.reply.unwrap();
        for part in ["1", "2"] {
            client.publish(reply.clone(), part.into()).await.unwrap();
        }
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Service-Error", "broken");
        client
            .publish_with_headers(reply, headers, message.payload)
            .await
            .unwrap();
    });
    let answers = answers.await;
    let mut heard = bus.request_stream(ASKED, "question".into()).await.unwrap();
    assert_eq!(next(&mut heard).await, said("1"));
    assert_eq!(next(&mut heard).await, said("2"));
    assert_eq!(
        next(&mut heard).await,
        Ok(StreamedReply {
            payload: "question".into(),
            error: Some("broken".into())
        })
    );
    answers.abort();
}

#[tokio::test]
async fn concurrent_conversations_get_their_own_replies_over_one_subscription() {
    let world = Nats::start();
    let bus = world.connect().await;
    let answers = answering(&world, |client, message| async move {
        client
            .publish(message.reply.unwrap(), message.payload)
            .await
            .unwrap()
    });
    let answers = answers.await;
    let ask = async |text: String| {
        let mut heard = bus
            .request_stream(ASKED, text.clone().into())
            .await
            .unwrap();
        assert_eq!(next(&mut heard).await, said(&text));
    };
    ask("the first".into()).await;
    let before = subscriptions(&world);
    join_all((0..500).map(|n| ask(n.to_string()))).await;
    assert_eq!(subscriptions(&world), before);
    answers.abort();
}

#[tokio::test]
async fn request_that_cannot_be_sent_is_refused() {
    let world = Nats::with("max_payload: 1000");
    let bus = world.connect().await;
    let error = bus
        .request_stream(ASKED, vec![b'x'; 1001].into())
        .await
        .err();
    assert_eq!(
        error,
        Some(BusError::TooLarge {
            size: 1001,
            limit: 1000
        })
    );
}

#[tokio::test]
async fn reply_may_arrive_after_an_outage() {
    let mut world = Nats::start();
    let bus = world.connect().await;
    let (asked, mut heard_of) = tokio::sync::mpsc::unbounded_channel();
    let answers = answering(&world, move |client, message| {
        let asked = asked.clone();
        async move { asked.send((client, message.reply.unwrap())).unwrap() }
    });
    let answers = answers.await;
    let mut heard = bus.request_stream(ASKED, Bytes::new()).await.unwrap();
    let (client, reply) = timeout(PATIENCE, heard_of.recv()).await.unwrap().unwrap();
    world.server.restart().unwrap();
    // The reply is sent repeatedly, because the caller may reconnect later than the service.
    let answering = async {
        loop {
            client.publish(reply.clone(), "late".into()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        said_late = next(&mut heard) => assert_eq!(said_late, said("late")),
        () = answering => {}
    }
    answers.abort();
}

const USERS: &str = r#"
authorization { users: [
  { user: mute, password: secret, permissions: { publish: ["$JS.API.INFO"], subscribe: ["_INBOX.mute.>"] } }
] }
"#;

#[tokio::test]
async fn forbidden_conversation_is_denied_at_once_every_time() {
    let world = Nats::with(USERS);
    let bus = world.connect_as("mute").await.unwrap();
    for _ in 0..3 {
        let mut heard = bus.request_stream(ASKED, Bytes::new()).await.unwrap();
        let error = next(&mut heard).await.unwrap_err();
        assert!(
            matches!(&error, BusError::Denied(text) if text.contains(ASKED)),
            "{error}"
        );
    }
}
