//! What a collector receives from a working team: spans with ids and counts, and no content.

mod listener;
mod prometheus;

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result};
use async_nats::HeaderMap;
use opentelemetry::trace::TraceContextExt;
use planck_common::{
    command::{Accepted, SessionVerb},
    reply,
};
use planck_scripted_model::{Reply, Script};
use planck_sidecar::{Sidecar, Tool};
use planck_tests::{
    caller::session_at,
    world::{Backend, World},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    sidecars::serving::{Args, Serving},
    teams::scene::{Scene, by, lead, member},
};

/// Everything that was sent to the collector.
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

    /// Reads the only request of a connection, keeps its body, and accepts it.
    async fn take(self, mut stream: TcpStream) -> Option<()> {
        let mut seen = Vec::new();
        let (end, length) = loop {
            stream
                .read_buf(&mut seen)
                .await
                .ok()
                .filter(|read| *read > 0)?;
            let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
            break (
                end + 4,
                head.lines()
                    .find_map(|line| line.strip_prefix("content-length: "))?
                    .parse::<usize>()
                    .ok()?,
            );
        };
        while seen.len() < end + length {
            stream
                .read_buf(&mut seen)
                .await
                .ok()
                .filter(|read| *read > 0)?;
        }
        self.0.lock().unwrap().extend_from_slice(&seen[end..]);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            .await
            .ok()
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        self.0
            .lock()
            .unwrap()
            .windows(bytes.len())
            .any(|window| window == bytes)
    }
}

/// Returns a sidecar whose tool records the span that is current while it runs.
fn place(joined: &Arc<Mutex<Option<String>>>) -> Sidecar {
    let joined = Arc::clone(joined);
    let answer = move |context: planck_sidecar::Context, _: Args| {
        let joined = Arc::clone(&joined);
        async move {
            let current = opentelemetry::Context::current();
            let span = current.span().span_context().clone();
            let current = format!("{}-{}", span.trace_id(), span.span_id());
            assert_eq!(context.traceparent(), Some(&*format!("00-{current}-01")));
            *joined.lock().unwrap() = Some(current);
            Ok::<_, Infallible>("there".to_owned())
        }
    };
    Sidecar::new("atlas", "1.0.0")
        .unwrap()
        .tool(Tool::new("place", "Says where it is.", answer).pure())
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_and_calls_are_spans_of_the_callers_trace() -> Result<()> {
    let collector = Collector::default();
    let url = collector.start().await?;
    let script = Script::new()
        .rounds(
            by("lead"),
            [
                Reply::call(
                    "ask_agent",
                    json!({ "agent": "helper", "question": "hush-hush" }),
                ),
                Reply::text("done"),
            ],
        )
        .rounds(
            by("helper"),
            [
                Reply::call("bash", json!({ "command": "echo top-secret" })),
                Reply::call("place", json!({})),
                Reply::call("bash", json!({ "command": "exit 3" })),
                Reply::text("classified"),
            ],
        );
    let world = World::start(Backend::Sqlite, script).await?;
    let joined: Arc<Mutex<Option<String>>> = Arc::default();
    let sidecar = Serving::start(&world, place(&joined));
    let node = world
        .node_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)])
        .await?;
    let recorder = world.record().await?;
    let started =
        world.caller.start(&json!({ "dir": world.dir(), "members": [lead(&[]), member("helper", &["bash", "place"])] })).await?;
    let mut headers = HeaderMap::new();
    headers.insert(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    let to = session_at(&started.session_id, SessionVerb::Prompt).to_string();
    let body = json!({ "text": "confidential" }).to_string();
    let answer = world
        .caller
        .nats
        .request_with_headers(to, headers, body.into())
        .await?;
    let accepted: Accepted = reply::decode(&answer.payload).context("the prompt was refused")?;
    recorder.answered(&accepted.prompt_id).await?;
    let session = started.session_id.to_string();
    Scene {
        world,
        node: Some(node),
        recorder,
        started,
    }
    .end()
    .await?;
    sidecar.end().await?;

    let joined = joined
        .lock()
        .unwrap()
        .take()
        .context("the sidecar was not called")?;
    assert!(
        joined.starts_with("0af7651916cd43dd8448eb211c80319c"),
        "{joined}: its spans are part of the caller's trace"
    );
    let spans = [
        "invoke_agent lead",
        "invoke_agent helper",
        "chat test",
        "execute_tool ask_agent",
        "execute_tool bash",
    ];
    let attributes = [
        "gen_ai.usage.output_tokens",
        "gen_ai.response.id",
        "gen_ai.response.model",
        "server.address",
        "service.instance.id",
        "host.name",
        "tool_error",
        "planck_turns_total",
        "gen_ai.client.operation.duration",
        "gen_ai.client.token.usage",
    ];
    for known in spans
        .into_iter()
        .chain(attributes)
        .chain([session.as_str(), "tool_call"])
    {
        assert!(collector.holds(known.as_bytes()), "no {known}");
    }
    let trace = u128::from_str_radix("0af7651916cd43dd8448eb211c80319c", 16)?.to_be_bytes();
    assert!(
        collector.holds(&trace),
        "the turn is part of the caller's trace"
    );
    for noise in ["code.file.path", "thread.id", "busy_ns", "session.new"] {
        assert!(
            !collector.holds(noise.as_bytes()),
            "{noise} says nothing of the work"
        );
    }
    for said in ["hush-hush", "top-secret", "classified", "confidential"] {
        assert!(!collector.holds(said.as_bytes()), "{said} left the machine");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn content_is_sent_only_if_it_is_configured() -> Result<()> {
    let collector = Collector::default();
    let url = collector.start().await?;
    let script = Script::new().rounds(
        by("lead"),
        [
            Reply::call("bash", json!({ "command": "echo top-$((6 * 7))-secret" })),
            Reply::text("classified"),
        ],
    );
    let world = World::start(Backend::Sqlite, script).await?;
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("PLANCK_TELEMETRY_CONTENT", "true"),
    ];
    let (node, recorder) = (world.node_with(&environment).await?, world.record().await?);
    let members = [lead(&["bash"])];
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": members, "prompt": "confidential" }))
        .await?;
    recorder
        .answered(started.prompt_id.as_ref().context("no prompt")?)
        .await?;
    Scene {
        world,
        node: Some(node),
        recorder,
        started,
    }
    .end()
    .await?;
    for said in [
        "You are lead.",
        "confidential",
        "top-$((6 * 7))-secret",
        "top-42-secret",
        "classified",
        "gen_ai.output.messages",
    ] {
        assert!(collector.holds(said.as_bytes()), "no {said}");
    }
    Ok(())
}
