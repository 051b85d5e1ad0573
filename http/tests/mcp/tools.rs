//! The tools, with a client of each generation of the protocol.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test]
async fn both_generations_of_clients_get_the_same_tools() {
    let served = Served::start(ScriptedModel::new()).await;
    let (old, new) = (served.client(0, OLD), served.client(1, NEW));
    let hello = json!({"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let greeted = old.ask("initialize", hello).await;
    assert_eq!(greeted["result"]["protocolVersion"], OLD, "{greeted}");
    assert_eq!(greeted["result"]["serverInfo"]["name"], "planck");
    let found = new.ask("server/discover", json!({})).await;
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(
        versions.contains(&json!(NEW)) && versions.contains(&json!(OLD)),
        "{found}"
    );
    let names = async |client: &McpClient| {
        let listed = client.ask("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap().clone();
        let names = tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    let expected = [
        "list_teams",
        "run_team",
        "continue",
        "status",
        "list_sessions",
        "answer",
        "cancel",
    ];
    assert_eq!(names(&old).await, expected);
    assert_eq!(names(&new).await, expected);
    for client in [old, new] {
        let teams = client.work("list_teams", json!({})).await;
        assert_eq!(teams["teams"][0]["name"], "asker", "{teams}");
        assert_eq!(teams["teams"][0]["description"], "Paints");
        assert!(
            teams["where_teams_work"]
                .as_str()
                .unwrap()
                .contains("`embedded`"),
            "{teams}"
        );
    }
}

#[tokio::test]
async fn run_is_answered_and_continued() {
    let model = ScriptedModel::new().text("Hello.").text("And again.");
    let served = Served::start(model).await;
    for version in [NEW] {
        let client = served.client(0, version);
        let work = client
            .work("run_team", json!({"prompt": "Say hello."}))
            .await;
        assert_eq!(work["state"], "completed", "{work}");
        assert_eq!(work["answer"], "Hello.");
        let session = work["session"].as_str().unwrap();
        // Another front knows as much.
        let other = served.client(1, OLD);
        let more = json!({"session": session, "prompt": "Again."});
        let more = other.work("continue", more).await;
        assert_eq!(
            (&more["state"], &more["answer"]),
            (&json!("completed"), &json!("And again."))
        );
        assert_ne!(more["prompt_id"], work["prompt_id"]);
        let latest = client.work("status", json!({"session": session})).await;
        assert_eq!(latest["answer"], "And again.", "{latest}");
        let first = json!({"session": session, "prompt_id": work["prompt_id"]});
        assert_eq!(client.work("status", first).await["answer"], "Hello.");
    }
}

#[tokio::test]
async fn progress_begins_with_the_session_and_tells_what_agents_do() {
    let model = ScriptedModel::new();
    let model = model.call("paint", json!({"colour": "red"})).text("Done.");
    let served = Served::start(model).await;
    for (front, version) in [(0, OLD), (1, NEW)] {
        let client = served.client(front, version);
        let arguments = json!({"prompt": "Go.", "team": "painter", "request_key": "k1"});
        let params = json!({"name": "run_team", "arguments": arguments});
        let message = client.message("tools/call", params, Some("t1"));
        let mut messages = client.messages(&message).await;
        let result = messages.pop().unwrap();
        assert_eq!(
            result["result"]["structuredContent"]["answer"], "Done.",
            "{result}"
        );
        let told: Vec<&Value> = messages.iter().map(|message| &message["params"]).collect();
        assert!(
            told[0]["message"]
                .as_str()
                .unwrap()
                .starts_with("session k1,"),
            "{told:?}"
        );
        for (index, progress) in told.iter().enumerate() {
            assert_eq!(progress["progressToken"], "t1");
            assert_eq!(progress["progress"].as_f64(), Some(index as f64 + 1.0));
        }
        // The second client repeats the call, and the session is over.
        if version == OLD {
            let call = told.iter().any(|told| {
                told["message"]
                    .as_str()
                    .unwrap()
                    .contains("lead calls paint")
            });
            assert!(call, "{told:?}");
        }
    }
    assert_eq!(served.prompts("k1").await, 1);
}

#[tokio::test]
async fn repeated_call_starts_nothing_and_another_one_with_its_key_is_refused() {
    let model = ScriptedModel::new().text("One.").text("Two.");
    let served = Served::start(model).await;
    let run = json!({"prompt": "Count.", "request_key": "run-1"});
    let (first, second) = (served.client(0, OLD), served.client(1, NEW));
    let (one, again) = tokio::join!(
        first.work("run_team", run.clone()),
        second.work("run_team", run)
    );
    assert_eq!(one, again);
    assert_eq!(one["answer"], "One.");
    let other = json!({"prompt": "Count more.", "request_key": "run-1"});
    let why = first.refused("run_team", other).await;
    assert!(why.contains("new key"), "{why}");
    let more = json!({"session": "run-1", "prompt": "More.", "request_key": "more-1"});
    let two = first.work("continue", more.clone()).await;
    assert_eq!(second.work("continue", more).await, two);
    let other = json!({"session": "run-1", "prompt": "Less.", "request_key": "more-1"});
    assert!(first.refused("continue", other).await.starts_with("exists"));
    assert_eq!(served.prompts("run-1").await, 2);
}

#[tokio::test]
async fn call_that_outlives_its_client_is_found_at_another_front() {
    let served = Served::start(ScriptedModel::new().pace(PACE * 4).text(STORY)).await;
    let client = served.client(0, NEW);
    let params = json!({"name": "run_team", "arguments": {"prompt": "Tell a story."}});
    let message = client.message("tools/call", params, Some("t"));
    let told = first(client.open(&message).await).await;
    // The client has gone, and knows the session only from the progress.
    let told = told["params"]["message"].as_str().unwrap();
    let session = told
        .strip_prefix("session ")
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    let other = served.client(1, OLD);
    let state = async || {
        let arguments = json!({"session": session, "wait_seconds": 0});
        other.call("status", arguments).await["structuredContent"].clone()
    };
    // The session is told before it is started.
    while state().await["state"] != "working" {
        tokio::time::sleep(PACE).await;
    }
    let listed = other.work("list_sessions", json!({})).await;
    assert_eq!(listed["sessions"][0]["session"], session, "{listed}");
    assert_eq!(listed["sessions"][0]["first_prompt"], "Tell a story.");
    let work = other.work("status", json!({"session": session})).await;
    assert_eq!(
        (&work["state"], &work["answer"]),
        (&json!("completed"), &json!(STORY))
    );
    assert_eq!(served.prompts(session).await, 1);
}

#[tokio::test]
async fn agent_that_asks_gets_an_answer() {
    let model = ScriptedModel::new().call("paint", json!({"colour": "red"}));
    let served = Served::start(model.text("Painted.")).await;
    let client = served.client(0, OLD);
    let arguments = json!({"prompt": "Paint.", "team": "asker"});
    let work = client.work("run_team", arguments).await;
    assert_eq!(work["state"], "input_required", "{work}");
    let wait = &work["waits"][0];
    assert_eq!(wait["kind"], "approval");
    assert_eq!(wait["request"]["args"], json!({"colour": "red"}));
    let answer = |digest: &Value, decision: &str| json!({"session": work["session"], "wait": wait["id"], "digest": digest, "decision": decision});
    // An answer to something else than what is asked is refused.
    let why = client
        .refused("answer", answer(&json!("other"), "deny"))
        .await;
    assert!(why.contains("changed"), "{why}");
    client
        .refused("answer", answer(&wait["digest"], "answer"))
        .await;
    let allow = answer(&wait["digest"], "allow");
    let done = served.client(1, NEW).work("answer", allow.clone()).await;
    assert_eq!(done["state"], "completed", "{done}");
    assert_eq!(done["answer"], "Painted.");
    // The same answer again gets the same reply, and another one is refused.
    assert_eq!(client.work("answer", allow).await["answer"], "Painted.");
    let why = client
        .refused("answer", answer(&wait["digest"], "deny"))
        .await;
    assert!(why.starts_with("exists"), "{why}");
    let log = log_of(&served, work["session"].as_str().unwrap()).await;
    assert_eq!(log.matches(r#""type":"tool_start""#).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn front_that_stops_answers_the_calls_that_wait() {
    let served = Served::start(ScriptedModel::new().pace(PACE * 20).text(STORY)).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let front = tokio::spawn(Arc::clone(&served.fronts[0]).serve(listener, stop.clone()));
    let client = served.client(0, OLD);
    let params =
        json!({"name": "run_team", "arguments": {"prompt": "Tell a story.", "request_key": "k"}});
    let message = client.message("tools/call", params, None).to_string();
    let call = tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let size = message.len();
        let head = format!(
            "POST /mcp HTTP/1.0\r\nHost: {address}\r\nAccept: application/json, text/event-stream\r\n\
             Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
        );
        stream
            .write_all((head + &message).as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    });
    let other = served.client(1, OLD);
    let now = || json!({"session": "k", "wait_seconds": 0});
    while other.call("status", now()).await["isError"] == true {
        tokio::time::sleep(PACE).await;
    }
    stop.cancel();
    let answer = tokio::time::timeout(PACE * 250, call).await;
    let answer = answer.expect("the front does not wait").unwrap();
    let answered = data(&answer).pop().expect(&answer);
    let work = &answered["result"]["structuredContent"];
    assert_eq!(work["state"], "working", "{answer}");
    front.await.unwrap();
    // The work goes on without the front.
    assert_eq!(other.work("status", now()).await["state"], "working");
}

#[tokio::test]
async fn work_goes_on_until_it_is_cancelled() {
    let served = Served::start(ScriptedModel::new().pace(PACE * 20).text(STORY)).await;
    let client = served.client(0, NEW);
    let arguments = json!({"prompt": "Tell a story.", "wait_seconds": 2});
    let work = client.work("run_team", arguments).await;
    assert_eq!(work["state"], "working", "{work}");
    assert!(
        work["so_far"].as_str().unwrap().starts_with("Once"),
        "{work}"
    );
    assert_eq!(work["agents"][0]["state"], "streaming");
    let session = &work["session"];
    let arguments = json!({"session": session, "prompt_id": work["prompt_id"], "reason": "enough"});
    let ended = served.client(1, OLD).work("cancel", arguments).await;
    assert_eq!(ended["state"], "cancelled", "{ended}");
    assert!(
        ended["reason"].is_string() && ended["waits"].is_null(),
        "{ended}"
    );
}

#[tokio::test]
async fn answer_has_the_shape_that_was_asked_for() {
    let warm = json!({"city": "Rome", "degrees": 21});
    let served = Served::start(ScriptedModel::new().call("submit_output", warm.clone())).await;
    let properties = json!({"city": {"type": "string"}, "degrees": {"type": "integer"}});
    let schema =
        json!({"type": "object", "properties": properties, "required": ["city", "degrees"]});
    let client = served.client(0, OLD);
    let arguments = json!({"prompt": "How warm is Rome?", "output_schema": schema});
    let work = client.work("run_team", arguments).await;
    assert_eq!(
        (&work["state"], &work["output"]),
        (&json!("completed"), &warm),
        "{work}"
    );
    let wrong = json!({"prompt": "a", "output_schema": {"type": "string"}});
    assert!(client.refused("run_team", wrong).await.contains("object"));
}

#[tokio::test]
async fn failed_work_is_an_error_with_its_reason() {
    let served = Served::start(ScriptedModel::new().failure("no luck").failure("no luck")).await;
    let result = served
        .client(0, OLD)
        .call("run_team", json!({"prompt": "Go."}))
        .await;
    assert_eq!(result["isError"], true, "{result}");
    let work = &result["structuredContent"];
    assert_eq!(work["state"], "failed");
    assert!(
        work["reason"].as_str().unwrap().contains("no luck"),
        "{work}"
    );
}
