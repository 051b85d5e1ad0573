//! The bridge against a fake server on pipes of this process.

mod questions;

use std::{sync::Arc, time::Duration};

use planck_sidecar::{Harness, Sidecar, ToolEffect};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, duplex},
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    connection::LiveServer,
    offer::{Offer, OfferedTool},
    server::tool,
    session::{self, Session, SessionEnd},
    supervisor::Link,
};

const PATIENCE: Duration = Duration::from_secs(20);

struct FakeServer {
    input: Lines<BufReader<DuplexStream>>,
    output: DuplexStream,
}

impl FakeServer {
    /// Returns a server and the client's ends of its pipes.
    fn new() -> (Self, DuplexStream, DuplexStream) {
        let (input, theirs) = duplex(1 << 16);
        let (ours, output) = duplex(1 << 16);
        let server = Self {
            input: BufReader::new(theirs).lines(),
            output,
        };
        (server, ours, input)
    }

    /// Opens a session with a server that speaks the older version of the protocol.
    async fn open() -> (Session, Self) {
        let (mut server, ours, input) = Self::new();
        let (session, ()) = tokio::join!(Session::over_streams(ours, input), server.greet());
        (session.unwrap(), server)
    }

    async fn greet(&mut self) {
        let discover = self.next("server/discover").await;
        let refusal = json!({"code": -32601, "message": "Method not found"});
        self.send(json!({"jsonrpc": "2.0", "id": discover["id"], "error": refusal}))
            .await;
        let initialize = self.next("initialize").await;
        let info = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1.2.3"}});
        self.answer(&initialize, info).await;
        self.next("notifications/initialized").await;
    }

    async fn next(&mut self, method: &str) -> Value {
        let message = self.message().await;
        assert_eq!(message["method"], method, "{message}");
        message
    }

    async fn message(&mut self) -> Value {
        let line = timeout(PATIENCE, self.input.next_line()).await.unwrap();
        serde_json::from_str(&line.unwrap().unwrap()).unwrap()
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.output.write_all(line.as_bytes()).await.unwrap();
    }

    async fn answer(&mut self, request: &Value, result: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
            .await;
    }
}

fn offered(name: &str, effect: ToolEffect) -> OfferedTool {
    OfferedTool {
        name: name.into(),
        server_name: name.into(),
        description: "d".into(),
        parameters: serde_json::from_value(json!({"type": "object"})).unwrap(),
        output: None,
        effect,
    }
}

/// A sidecar with the tool `slow`, whose calls go to a server.
fn sidecar(effect: ToolEffect, link: Link) -> Harness {
    let (_, links) = watch::channel(link);
    let sidecar = Sidecar::new("fake", "1.0.0").unwrap();
    Harness::of(sidecar.tool(tool(&offered("slow", effect), &links, None)))
}

fn up(session: &Session) -> (Arc<LiveServer>, Link) {
    let server = Arc::new(LiveServer::new(session));
    (server.clone(), Link::Up(server))
}

#[tokio::test]
async fn all_pages_of_tools_are_read() {
    let (session, mut server) = FakeServer::open().await;
    assert_eq!(session::version(&session.peer), "1.2.3");
    let listed = async {
        for (cursor, next) in [(None, Some("a")), (Some("a"), Some("b")), (Some("b"), None)] {
            let request = server.next("tools/list").await;
            assert_eq!(
                request["params"].get("cursor").and_then(Value::as_str),
                cursor
            );
            let name = format!("after-{}", cursor.unwrap_or("start"));
            let tool = json!({"name": name, "inputSchema": {"type": "object"}});
            let mut page = json!({"tools": [tool]});
            if let Some(next) = next {
                page["nextCursor"] = next.into();
            }
            server.answer(&request, page).await;
        }
    };
    let (tools, ()) = tokio::join!(session::tools(&session.peer, PATIENCE), listed);
    let (tools, warning) = tools.unwrap();
    assert_eq!((tools.len(), warning), (3, None));
}

#[tokio::test]
async fn endless_pages_are_bounded() {
    let (session, mut server) = FakeServer::open().await;
    let tool = json!({"name": "t", "inputSchema": {"type": "object"}});
    let endless = async {
        loop {
            let request = server.next("tools/list").await;
            let page = json!({"tools": [tool], "nextCursor": "again"});
            server.answer(&request, page).await;
        }
    };
    tokio::select! {
        () = endless => {}
        listed = session::tools(&session.peer, PATIENCE) => {
            let (tools, warning) = listed.unwrap();
            assert!(tools.len() <= 1024 && warning.is_some(), "{warning:?}");
        }
    }
}

#[tokio::test]
async fn a_call_has_progress_and_an_answer() {
    let (session, mut server) = FakeServer::open().await;
    let (_, link) = up(&session);
    let harness = sidecar(ToolEffect::Mutating, link);
    let answering = async {
        let call = server.next("tools/call").await;
        let params = &call["params"];
        assert_eq!(
            (&params["name"], &params["arguments"]),
            (&json!("slow"), &json!({"a": 1}))
        );
        let token = &params["_meta"]["progressToken"];
        let report = json!({"progressToken": token, "progress": 1, "total": 4});
        server
            .send(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": report}))
            .await;
        // The report is handled by a task of its own.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let content = json!([{"type": "text", "text": "ready"}]);
        server.answer(&call, json!({"content": content})).await;
    };
    let call = harness.request("slow", r#"{"a":1}"#).send();
    let (answer, ()) = tokio::join!(call, answering);
    assert_eq!(answer.said, Ok("ready".into()));
    assert_eq!(answer.progress, [("1 of 4".to_owned(), Some(25.0))]);
}

#[tokio::test]
async fn structured_content_is_compared_with_its_schema() {
    let (session, mut server) = FakeServer::open().await;
    let (_, link) = up(&session);
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}});
    let adds = OfferedTool {
        output: Some(serde_json::from_value(schema).unwrap()),
        ..offered("add", ToolEffect::Pure)
    };
    let (_, links) = watch::channel(link);
    let sidecar = Sidecar::new("fake", "1.0.0").unwrap();
    let harness = Harness::of(sidecar.tool(tool(&adds, &links, None)));
    for (sum, fits) in [(json!(5), true), (json!("five"), false)] {
        let answering = async {
            let call = server.next("tools/call").await;
            let result = json!({"content": [], "structuredContent": {"sum": sum}});
            server.answer(&call, result).await;
        };
        let (said, ()) = tokio::join!(harness.call("add", "{}"), answering);
        let said = said.unwrap();
        assert_eq!(!said.contains("does not fit"), fits, "{said}");
        assert!(said.contains(&sum.to_string()), "{said}");
    }
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server() {
    let (session, mut server) = FakeServer::open().await;
    let (_, link) = up(&session);
    let harness = sidecar(ToolEffect::Mutating, link);
    let cancelling = async {
        let call = server.next("tools/call").await;
        harness.cancel("one");
        let cancelled = server.next("notifications/cancelled").await;
        assert_eq!(cancelled["params"]["requestId"], call["id"]);
    };
    let call = harness.request("slow", "{}").call_id("one").send();
    let (answer, ()) = tokio::join!(call, cancelling);
    assert!(answer.said.unwrap_err().starts_with("cancelled"));
}

#[tokio::test]
async fn a_call_at_its_deadline_is_cancelled_at_the_server() {
    let (session, mut server) = FakeServer::open().await;
    let (_, link) = up(&session);
    let harness = sidecar(ToolEffect::Mutating, link);
    let waiting = async {
        server.next("tools/call").await;
        server.next("notifications/cancelled").await;
    };
    let call = harness
        .request("slow", "{}")
        .deadline(Duration::from_millis(300));
    let (answer, ()) = tokio::join!(call.send(), waiting);
    assert!(answer.said.is_err());
}

#[tokio::test]
async fn roots_are_listed_and_sampling_is_refused() {
    let (session, mut server) = FakeServer::open().await;
    let ask = |id: &str, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    server.send(ask("r", "roots/list", json!({}))).await;
    let roots = server.message().await;
    assert_eq!(
        (&roots["id"], &roots["result"]["roots"]),
        (&json!("r"), &json!([]))
    );
    let sampling = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 9});
    server
        .send(ask("s", "sampling/createMessage", sampling))
        .await;
    let refused = server.message().await;
    assert!(
        refused["id"] == "s" && refused["error"].is_object(),
        "{refused}"
    );
    drop(session);
}

#[tokio::test]
async fn a_lost_server_ends_its_calls_at_once_by_their_effect() {
    for (effect, text) in [
        (ToolEffect::Pure, "nothing was changed"),
        (ToolEffect::Idempotent, "again with the same arguments"),
        (ToolEffect::Mutating, "may or may not have taken effect"),
    ] {
        let (session, mut server) = FakeServer::open().await;
        let (live, link) = up(&session);
        let harness = sidecar(effect, link);
        let began = Instant::now();
        let losing = async {
            server.next("tools/call").await;
            live.end("it ended: killed by SIGKILL");
        };
        let (said, ()) = tokio::join!(harness.call("slow", "{}"), losing);
        let said = said.unwrap_err();
        assert!(said.contains(text) && said.contains("SIGKILL"), "{said}");
        assert!(began.elapsed() < Duration::from_secs(2));
    }
}

#[tokio::test]
async fn a_call_while_the_server_is_away_is_refused_at_once() {
    let harness = sidecar(
        ToolEffect::Mutating,
        Link::Away {
            why: "it ended: exit status 1".into(),
            failed_starts: 1,
        },
    );
    let said = harness.call("slow", "{}").await.unwrap_err();
    assert!(
        said.contains("nothing was done") && said.contains("exit status 1"),
        "{said}"
    );
}

#[tokio::test]
async fn a_call_waits_for_a_server_that_is_being_started() {
    let (link, links) = watch::channel(Link::Starting);
    let fake = Sidecar::new("fake", "1.0.0").unwrap();
    let slow = tool(&offered("slow", ToolEffect::Mutating), &links, None);
    let harness = Harness::of(fake.tool(slow));
    let starting = async {
        let (session, mut server) = FakeServer::open().await;
        link.send_replace(up(&session).1);
        let call = server.next("tools/call").await;
        let content = json!([{"type": "text", "text": "ready"}]);
        server.answer(&call, json!({"content": content})).await;
        session
    };
    let (said, _session) = tokio::join!(harness.call("slow", "{}"), starting);
    assert_eq!(said, Ok("ready".into()));
}

#[tokio::test]
async fn a_flood_ends_the_session() {
    let (mut session, mut server) = FakeServer::open().await;
    let chunk = vec![b'x'; 1 << 16];
    let flood = async { while server.output.write_all(&chunk).await.is_ok() {} };
    let (end, ()) = tokio::join!(timeout(PATIENCE, session.ended()), flood);
    assert_eq!(end, Ok(SessionEnd::LongLine));
}

#[tokio::test]
async fn a_server_that_does_not_read_is_not_read() {
    let (session, mut server) = FakeServer::open().await;
    let ping = |id| json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
    let pings: String = (0..100_000).map(|id| format!("{}\n", ping(id))).collect();
    let written = timeout(
        Duration::from_secs(3),
        server.output.write_all(pings.as_bytes()),
    );
    assert!(written.await.is_err(), "all requests were read");
    drop(session);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_needs_long_to_start_is_understood() {
    let (mut server, ours, input) = FakeServer::new();
    let slow = async {
        let discover = server.next("server/discover").await;
        let initialize = server.next("initialize").await;
        let refusal = json!({"code": -32601, "message": "Method not found"});
        server
            .send(json!({"jsonrpc": "2.0", "id": discover["id"], "error": refusal}))
            .await;
        let info = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "fake", "version": "1.2.3"}});
        server.answer(&initialize, info).await;
        server.next("notifications/initialized").await;
    };
    let (session, ()) = tokio::join!(Session::over_streams(ours, input), slow);
    assert_eq!(session::version(&session.unwrap().peer), "1.2.3");
}

#[tokio::test]
async fn a_changed_list_is_noticed() {
    let (session, mut server) = FakeServer::open().await;
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
    server.send(changed).await;
    timeout(PATIENCE, session.tools_changed.notified())
        .await
        .unwrap();
}

#[test]
fn an_offer_is_compared_by_all_that_agents_see() {
    let offer = |effect| Offer {
        version: "1.0.0".into(),
        tools: vec![offered("t", effect)],
        left_out: Vec::new(),
    };
    assert_ne!(offer(ToolEffect::Pure), offer(ToolEffect::Mutating));
}
