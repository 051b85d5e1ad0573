//! What a hostile or a mistaken client gets.

use futures_util::future::join_all;

use super::*;

fn running() -> Value {
    json!({"name": "run_team", "arguments": {"prompt": "Go."}})
}

#[tokio::test]
async fn key_and_role_hold_for_every_tool() {
    let served = Served::with(ScriptedModel::new().text("Hello."), keys()).await;
    for version in [OLD, NEW] {
        let client = |key| McpClient {
            key,
            ..served.client(0, version)
        };
        for key in [None, Some("mallory")] {
            let client = client(key);
            for (method, params) in [("tools/list", json!({})), ("tools/call", running())] {
                let message = client.message(method, params, None);
                let answer = client.open(&message).await;
                assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
                assert_eq!(answer.headers()[header::WWW_AUTHENTICATE], "Bearer");
            }
        }
        let viewer = client(Some("viewer"));
        viewer.work("list_teams", json!({})).await;
        viewer.work("list_sessions", json!({})).await;
        let s = || json!("s1");
        for (tool, arguments) in [
            ("run_team", json!({"prompt": "Go."})),
            ("continue", json!({"session": s(), "prompt": "Go."})),
            (
                "answer",
                json!({"session": s(), "wait": "w", "decision": "allow"}),
            ),
            ("cancel", json!({"session": s()})),
        ] {
            let why = viewer.refused(tool, arguments).await;
            assert!(
                why.starts_with("denied: ") && why.contains("needs `use`"),
                "{why}"
            );
        }
    }
    let ann = McpClient {
        key: Some("ann"),
        ..served.client(0, NEW)
    };
    let work = ann.work("run_team", json!({"prompt": "Go."})).await;
    let log = log_of(&served, work["session"].as_str().unwrap()).await;
    assert!(log.contains(r#""by":"ann""#), "{log}");
}

#[tokio::test]
async fn page_of_a_stranger_is_refused() {
    let served = Served::start(ScriptedModel::new()).await;
    let client = served.client(0, NEW);
    for (name, value) in [
        (header::ORIGIN, "http://evil.example.com"),
        (header::ORIGIN, "null"),
        (header::HOST, "evil.example.com:8400"),
    ] {
        let message = client.message("tools/call", running(), None);
        let mut request = client.request(&message);
        request.headers_mut().insert(name, value.parse().unwrap());
        let answer = served.fronts[0].routes().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{value}");
    }
    let sessions = client.work("list_sessions", json!({})).await;
    assert_eq!(sessions["sessions"], json!([]));
}

#[tokio::test]
async fn body_that_is_no_message_is_named() {
    let served = Served::start(ScriptedModel::new()).await;
    let client = served.client(0, OLD);
    let list = client.message("tools/list", json!({}), None);
    let batch = json!([list, list]).to_string();
    let huge = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"x":"{}"}}}}"#,
        "x".repeat(9 << 20)
    );
    let many = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{{"x":[0{}]}}}}"#,
        ",0".repeat(200_000)
    );
    for (body, status, told) in [
        (batch.clone(), StatusCode::BAD_REQUEST, "-32600"),
        (
            batch[..batch.len() - 9].to_owned(),
            StatusCode::BAD_REQUEST,
            "-32700",
        ),
        ("[]".to_owned(), StatusCode::BAD_REQUEST, "-32600"),
        ("{}".to_owned(), StatusCode::BAD_REQUEST, "-32600"),
        ("7".to_owned(), StatusCode::BAD_REQUEST, "-32600"),
        (String::new(), StatusCode::BAD_REQUEST, "-32700"),
        ("[".repeat(50_000), StatusCode::BAD_REQUEST, "-32700"),
        (huge, StatusCode::PAYLOAD_TOO_LARGE, "8 MiB"),
        (many, StatusCode::PAYLOAD_TOO_LARGE, "values"),
    ] {
        let mut request = client.request(&list);
        *request.body_mut() = Body::from(body.clone());
        let answer = served.fronts[0].routes().oneshot(request).await.unwrap();
        let shown: String = body.chars().take(80).collect();
        assert_eq!(answer.status(), status, "{shown}");
        let text = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains(told), "{shown}: {text}");
    }
    let mut request = client.request(&list);
    request
        .headers_mut()
        .insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    let answer = served.fronts[0].routes().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let get = Request::get("/mcp").header(header::HOST, "127.0.0.1:8400");
    let answer = served.fronts[0]
        .routes()
        .oneshot(get.body(Body::empty()).unwrap());
    assert_eq!(
        answer.await.unwrap().status(),
        StatusCode::METHOD_NOT_ALLOWED
    );
}

/// Calls of tools that are refused, each with a part of the reason.
fn mistakes() -> Vec<(&'static str, Value, &'static str)> {
    let run = |field: &str, value: Value| {
        let mut arguments = json!({"prompt": "a"});
        arguments[field] = value;
        arguments
    };
    let missing = || json!({"session": "missing", "prompt": "a"});
    let answer =
        |session: &str, wait: &str| json!({"session": session, "wait": wait, "decision": "allow"});
    vec![
        ("run_team", json!({}), "missing field `prompt`"),
        ("run_team", json!({"prompt": " "}), "empty"),
        ("run_team", run("dir", json!("/")), "unknown field `dir`"),
        ("run_team", run("workspace", json!("local:/")), "local"),
        ("run_team", run("workspace", json!("nowhere")), "nowhere"),
        ("run_team", run("team", json!("nobody")), "nobody"),
        ("run_team", run("wait_seconds", json!(51)), "`status`"),
        (
            "run_team",
            run("request_key", json!("a b")),
            "`request_key`",
        ),
        ("status", json!({"session": ".."}), "malformed"),
        ("status", json!({"session": "a.*"}), "malformed"),
        ("status", json!({"session": "missing"}), "no session"),
        ("continue", missing(), "no session"),
        ("cancel", json!({"session": "missing"}), "no session"),
        ("answer", answer("missing", "w"), "missing"),
        ("answer", answer("a", ".."), "`wait`"),
        ("list_sessions", json!({"limit": 0}), "1 to 50"),
        ("list_teams", json!({"all": true}), "`all`"),
    ]
}

#[tokio::test]
async fn mistake_of_a_model_is_told_with_the_way_out() {
    let served = Served::start(ScriptedModel::new()).await;
    let client = served.client(0, OLD);
    let unknown = client
        .ask("tools/call", json!({"name": "run_teams", "arguments": {}}))
        .await;
    assert_eq!(unknown["error"]["code"], -32_602, "{unknown}");
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("did you mean `run_team`")
    );
    let method = client.ask("tools/clal", json!({})).await;
    assert_eq!(method["error"]["code"], -32_601, "{method}");
    let now = json!({"session": "missing", "wait_seconds": 0});
    assert!(client.refused("status", now).await.contains("no session"));
    for (tool, arguments, told) in mistakes() {
        let why = client.refused(tool, arguments.clone()).await;
        assert!(why.contains(told), "{tool} {arguments}: {why}");
    }
}

/// A caller of the role `use` gets no folder of the machine.
#[tokio::test]
async fn caller_names_only_a_workspace() {
    let served = Served::with(ScriptedModel::new(), keys()).await;
    let ann = McpClient {
        key: Some("ann"),
        ..served.client(0, NEW)
    };
    let why = ann
        .refused(
            "run_team",
            json!({"prompt": "a", "workspace": "local:/etc"}),
        )
        .await;
    assert!(
        why.starts_with("denied") && why.contains("`operate`"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn thousand_calls_at_once_are_answered() {
    let served = Served::start(ScriptedModel::new().pace(PACE * 200).text(STORY)).await;
    let client = served.client(0, NEW);
    let work = client
        .work("run_team", json!({"prompt": "Go.", "wait_seconds": 0}))
        .await;
    let session = &work["session"];
    let calls = (0..1_000).map(|number| {
        let client = served.client(number % 2, if number % 3 == 0 { OLD } else { NEW });
        async move {
            let arguments = json!({"session": session, "wait_seconds": 1});
            client.call("status", arguments).await
        }
    });
    let results = join_all(calls).await;
    // A node that answers as many requests as it can refuses further ones, and says so.
    let (refused, shown): (Vec<_>, Vec<_>) =
        results.iter().partition(|result| result["isError"] == true);
    let says = |result: &&Value| result["content"][0]["text"].as_str().unwrap().to_owned();
    for why in refused.iter().map(says) {
        assert!(why.contains("try again in a second"), "{why}");
    }
    let is_working = |result: &&Value| result["structuredContent"]["state"] == "working";
    assert!(
        shown.len() >= 256 && shown.iter().all(is_working),
        "{shown:?}"
    );
    client
        .work("status", json!({"session": session, "wait_seconds": 0}))
        .await;
}
