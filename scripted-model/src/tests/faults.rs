use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::http::{Answer, open, post};
use crate::{Pace, Reply, Script, ScriptedFault, Server};

const PATH: &str = "/v1/chat/completions";

fn body() -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]})
}

fn script(reply: Reply) -> Script {
    Script::new().without_auth().always(reply)
}

async fn play(reply: Reply) -> Answer {
    post(
        &Server::start(script(reply)).await.unwrap(),
        PATH,
        &[],
        &body(),
    )
    .await
}

#[tokio::test]
async fn status_comes_with_the_error_of_the_provider_and_retry_after() {
    let fault = ScriptedFault::Status {
        status: 429,
        body: None,
        retry_after: Some("7".to_owned()),
    };
    let answer = play(Reply::fault(fault)).await;
    assert_eq!(answer.status, 429);
    assert!(answer.head.contains("retry-after: 7"), "{}", answer.head);
    assert!(
        answer.body.contains("rate_limit_exceeded"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn web_page_can_replace_the_stream() {
    let answer = play(Reply::fault(ScriptedFault::Html("<html>".to_owned()))).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "<html>"));
    assert!(answer.head.contains("text/html"));
}

#[tokio::test]
async fn broken_stream_ends_early_or_with_an_error_event() {
    let reply = || Reply::text("one two three").pace(Pace::default().chunk(4));
    let cases = [
        (ScriptedFault::Cut { after: 2 }, false, "one "),
        (ScriptedFault::End { after: 2 }, true, "one "),
        (
            ScriptedFault::Error {
                after: 2,
                message: "busy".to_owned(),
            },
            true,
            r#""message":"busy""#,
        ),
    ];
    for (fault, whole, says) in cases {
        let answer = play(reply().with_fault(fault)).await;
        assert_eq!(
            (answer.status, answer.whole),
            (200, whole),
            "{}",
            answer.body
        );
        assert!(
            answer.body.contains(says) && !answer.body.contains("two"),
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn hanging_stream_ends_when_the_server_stops() {
    for fault in [
        ScriptedFault::HangBeforeHead,
        ScriptedFault::Hang { after: 2 },
    ] {
        let server = Server::start(script(Reply::text("one").with_fault(fault)))
            .await
            .unwrap();
        let mut stream = open(&server, PATH, &[], &body()).await;
        let mut bytes = Vec::new();
        let early =
            tokio::time::timeout(Duration::from_millis(100), stream.read_to_end(&mut bytes)).await;
        assert!(
            early.is_err(),
            "it ended: {}",
            String::from_utf8_lossy(&bytes)
        );
        let (stopped, _) = tokio::join!(server.stop(), stream.read_to_end(&mut bytes));
        stopped.unwrap();
    }
}

#[tokio::test]
async fn deltas_come_at_their_pace_and_bytes_may_be_cut_anywhere() {
    let started = Instant::now();
    let pace = Pace::per_second(100.0).chunk(1);
    let paced = play(Reply::text("0123456789").pace(pace)).await;
    assert!(
        started.elapsed() >= Duration::from_millis(100),
        "{:?}",
        started.elapsed()
    );
    assert!(paced.whole);
    let whole = play(Reply::text("wörter 🦀 überall")).await;
    let split = play(Reply::text("wörter 🦀 überall").split(7)).await;
    assert_eq!(whole.body, split.body);
}

#[tokio::test]
async fn staggered_streams_begin_at_different_instants() {
    let pace = Pace::per_second(5.0).chunk(1).staggered();
    let offsets: Vec<_> = (0..20).map(|_| pace.offset()).collect();
    let (least, most) = (offsets.iter().min().unwrap(), offsets.iter().max().unwrap());
    assert!(*most < Duration::from_millis(200), "{most:?}");
    assert!(*most - *least > Duration::from_millis(20), "{offsets:?}");
    assert_eq!(Pace::per_second(5.0).offset(), Duration::ZERO);
}

#[tokio::test]
async fn dropped_server_ends_its_streams_and_closes_its_listener() {
    let server = Server::start(script(
        Reply::text("one").with_fault(ScriptedFault::Hang { after: 1 }),
    ))
    .await
    .unwrap();
    let (mut stream, address) = (open(&server, PATH, &[], &body()).await, server.address());
    let mut head = [0; 15];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!((&head, server.streams()), (b"HTTP/1.1 200 OK", 1));
    drop(server);
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await; // a reset also ends the stream
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
}
