use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use planck_common::{AgentId, CallId, SessionId, usage::Usage};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};

use super::*;

fn options(otlp_endpoint: Option<String>) -> TelemetryOptions {
    TelemetryOptions {
        log: "off".into(),
        json: true,
        otlp_endpoint,
        service_name: "planck-test".into(),
        content: false,
        metrics: false,
        listen: None,
        hosts: AllowedHosts::default(),
    }
}

/// Accepts one HTTP request and returns its head and its body.
async fn collect(listener: TcpListener) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut seen = Vec::new();
    loop {
        stream.read_buf(&mut seen).await.unwrap();
        let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap()
            .parse::<usize>()
            .unwrap();
        if seen.len() >= end + 4 + length {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
            return (head, seen[end + 4..].to_vec());
        }
    }
}

#[tokio::test]
async fn spans_reach_a_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collected = tokio::spawn(collect(listener));
    let (subscriber, telemetry) = subscriber(&options(Some(endpoint))).unwrap();
    let traceparent = tracing::subscriber::with_default(subscriber, || {
        let session = SessionId::parse("s1").unwrap();
        let turn = genai::invoke_agent(&session, &AgentId::parse("a1").unwrap(), "builder");
        let _turn = turn.enter();
        genai::record_usage(
            &genai::chat("anthropic", "some-model", Some(("api.example", 443))),
            &Usage {
                output_tokens: 7,
                ..Usage::default()
            },
        );
        drop(genai::execute_tool("bash", &CallId::parse("c1").unwrap()));
        traceparent().unwrap()
    });
    telemetry.shutdown(Duration::from_secs(5)).await;
    let (head, body) = timeout(Duration::from_secs(5), collected)
        .await
        .unwrap()
        .unwrap();
    assert!(head.starts_with("post /v1/traces"), "{head}");
    assert!(
        traceparent.starts_with("00-") && traceparent.len() == 55,
        "{traceparent}"
    );
    let text = String::from_utf8_lossy(&body);
    for part in [
        "planck-test",
        "invoke_agent builder",
        "gen_ai.conversation.id",
        "chat some-model",
        "api.example",
        "gen_ai.usage.output_tokens",
        "execute_tool bash",
    ] {
        assert!(text.contains(part), "no {part}");
    }
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_password_of_a_collector_is_in_no_log_and_no_error() {
    let log = Log::default();
    let writer = log.clone();
    let everything = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // The exporter works on threads of its own.
    tracing::subscriber::set_global_default(everything).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endpoint = format!("http://ou:S%45CRETOTLP@{address}");
    let collected = tokio::spawn(collect(listener));
    let (subscriber, telemetry) = subscriber(&options(Some(endpoint))).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        drop(genai::execute_tool("bash", &CallId::parse("c1").unwrap()));
    });
    telemetry.shutdown(Duration::from_secs(5)).await;
    let (head, _) = timeout(Duration::from_secs(5), collected)
        .await
        .unwrap()
        .unwrap();
    let login = "b3U6U0VDUkVUT1RMUA==".to_ascii_lowercase();
    assert!(
        head.contains(&format!("authorization: basic {login}")),
        "{head}"
    );
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains(&address.to_string()), "{log}");
    for secret in ["CRETOTLP", "b3U6U0VDUkVUT1RMUA"] {
        assert!(!log.contains(secret), "{log}");
    }
    for wrong in ["http://ou:SECRET@[::1", "http://ou:SECRET@a b/"] {
        let error = Collector(wrong).unfit(&"no").to_string();
        assert!(!error.contains("SECRET"), "{error}");
    }
}

#[tokio::test]
async fn a_parent_from_another_process_is_adopted() {
    let (subscriber, telemetry) = subscriber(&options(Some("http://127.0.0.1:9".into()))).unwrap();
    tracing::subscriber::with_default(subscriber, || {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let span = tracing::info_span!("command");
        set_parent(&span, parent);
        let _inside = span.enter();
        let own = traceparent().unwrap();
        assert_eq!(&own[..36], &parent[..36], "the trace is the caller's");
        assert_ne!(own, parent);
    });
    telemetry.shutdown(Duration::from_millis(100)).await;
}

#[test]
fn without_a_collector_nothing_is_traced() {
    let (subscriber, telemetry) = subscriber(&options(None)).unwrap();
    assert!(telemetry.traces.is_none());
    tracing::subscriber::with_default(subscriber, || {
        let _span = tracing::info_span!("command").entered();
        assert_eq!(traceparent(), None);
    });
}

#[test]
fn an_error_names_a_bad_filter() {
    let error = subscriber(&TelemetryOptions {
        log: "planck=loud".into(),
        ..options(None)
    })
    .err()
    .unwrap();
    assert!(error.to_string().contains("planck=loud"), "{error}");
}
