//! What a collector gets of a team at work: spans with ids and counts, and nothing that was said.

mod listener;
mod prometheus;

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use async_nats::HeaderMap;
use planck_common::{
    command::{Accepted, SessionVerb},
    reply,
};
use planck_scripted_model::{Reply, Script};
use planck_tests::{
    caller::session_at,
    world::{Backend, World},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::teams::scene::{Scene, by, lead, member};

/// Everything that was sent to it.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<u8>>>);

impl Collector {
    async fn start(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let collector = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(collector.clone().take(stream));
            }
        });
        Ok(url)
    }

    /// One request a connection.
    async fn take(self, mut stream: TcpStream) -> Option<()> {
        let mut seen = Vec::new();
        let (end, length) = loop {
            stream.read_buf(&mut seen).await.ok().filter(|read| *read > 0)?;
            let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
            break (end + 4, head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse::<usize>().ok()?);
        };
        while seen.len() < end + length {
            stream.read_buf(&mut seen).await.ok().filter(|read| *read > 0)?;
        }
        self.0.lock().unwrap().extend_from_slice(&seen[end..]);
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await.ok()
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        self.0.lock().unwrap().windows(bytes.len()).any(|window| window == bytes)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_and_calls_are_spans_of_the_callers_trace() -> Result<()> {
    let collector = Collector::default();
    let url = collector.start().await?;
    let script = Script::new()
        .rounds(
            by("lead"),
            [Reply::call("ask_agent", json!({ "agent": "helper", "question": "hush-hush" })), Reply::text("done")],
        )
        .rounds(by("helper"), [Reply::call("bash", json!({ "command": "echo top-secret" })), Reply::text("classified")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let node = world.node_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)]).await?;
    let recorder = world.record().await?;
    let started = world.caller.start(&json!({ "dir": world.dir(), "members": [lead(&[]), member("helper", &["bash"])] })).await?;
    let mut headers = HeaderMap::new();
    headers.insert("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let to = session_at(&started.session_id, SessionVerb::Prompt).to_string();
    let body = json!({ "text": "confidential" }).to_string();
    let answer = world.caller.nats.request_with_headers(to, headers, body.into()).await?;
    let accepted: Accepted = reply::decode(&answer.payload).context("the prompt was refused")?;
    recorder.answered(&accepted.prompt_id).await?;
    let session = started.session_id.to_string();
    Scene { world, node: Some(node), recorder, started }.end().await?;

    let spans = ["invoke_agent lead", "invoke_agent helper", "chat test", "execute_tool ask_agent", "execute_tool bash"];
    for known in spans.into_iter().chain([session.as_str(), "gen_ai.usage.output_tokens", "tool_call"]) {
        assert!(collector.holds(known.as_bytes()), "no {known}");
    }
    let trace = u128::from_str_radix("0af7651916cd43dd8448eb211c80319c", 16)?.to_be_bytes();
    assert!(collector.holds(&trace), "the turn is part of the caller's trace");
    for said in ["hush-hush", "top-secret", "classified", "confidential"] {
        assert!(!collector.holds(said.as_bytes()), "{said} left the machine");
    }
    Ok(())
}
