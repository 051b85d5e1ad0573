//! Responses.

use super::*;

const PATH: &str = "/openai/v1/responses";

fn number(event: &Value) -> u64 {
    event["sequence_number"].as_u64().unwrap()
}

/// Returns the text that a client puts together.
fn deltas(events: &[Value]) -> String {
    let deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    deltas
        .map(|event| event["delta"].as_str().unwrap())
        .collect()
}

fn kinds(events: &[Value]) -> Vec<(u64, String)> {
    let others = events.iter().filter(|event| event["delta"].is_null());
    others
        .map(|event| (number(event), event["type"].as_str().unwrap().to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_has_the_same_numbers_at_every_reading() {
    // Pieces that arrive together are sent together, which a busy machine must not do with nearly all.
    let model = ScriptedModel::new().pace(PACE).text(STORY);
    let served = Served::start(model).await;
    let body = json!({"model": "planck", "stream": true, "input": "a"});
    let live = events(served.post(PATH, &[], &body).await, |_| false).await;
    assert!(
        live.iter()
            .filter(|event| event["delta"].is_string())
            .count()
            > 2,
        "{live:?}"
    );
    assert!(live.is_sorted_by(|a, b| number(a) < number(b)));
    let id = live[0]["response"]["id"].as_str().unwrap();
    let all = events(
        served.get(&format!("{PATH}/{id}?stream=true")).await,
        |_| false,
    )
    .await;
    assert_eq!(kinds(&live), kinds(&all));
    assert_eq!((deltas(&live), deltas(&all)), (STORY.into(), STORY.into()));
    for (at, event) in live.iter().enumerate() {
        let after = number(event);
        let path = format!("{PATH}/{id}?stream=true&starting_after={after}");
        let rest = events(served.get(&path).await, |_| false).await;
        assert_eq!(
            deltas(&live[..=at]) + &deltas(&rest),
            STORY,
            "after {event}"
        );
        assert_eq!(kinds(&rest), kinds(&live[at + 1..]), "after {event}");
    }
    let beyond = number(live.last().unwrap()) + 1;
    let beyond = served
        .get(&format!("{PATH}/{id}?stream=true&starting_after={beyond}"))
        .await;
    assert_eq!(read(beyond).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn place_is_continued_once() {
    let model = ScriptedModel::new()
        .text("one")
        .pace(PACE)
        .text(STORY)
        .text("more");
    let served = Served::start(model).await;
    let (_, first) = read(
        served
            .post(PATH, &[], &json!({"model": "planck", "input": "a"}))
            .await,
    )
    .await;
    let next =
        |text: &str| json!({"model": "planck", "input": text, "previous_response_id": first["id"]});
    let (b, c) = (next("b"), next("c"));
    let (b, c) = tokio::join!(served.post(PATH, &[], &b), served.post(PATH, &[], &c));
    let session = first["conversation"]["id"].as_str().unwrap();
    let mut statuses = [b.status(), c.status()];
    statuses.sort();
    assert_eq!(statuses, [StatusCode::OK, StatusCode::CONFLICT]);
    assert_eq!(
        served.turns(session).await,
        2,
        "one of two prompts is taken"
    );
    let again = read(served.post(PATH, &[], &next("d")).await).await;
    assert_eq!(
        (again.0, &again.1["error"]["code"]),
        (StatusCode::CONFLICT, &json!("previous_response_not_latest"))
    );
    assert_eq!(served.turns(session).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn results_come_together_and_tools_are_those_of_the_start() {
    let model = ScriptedModel::new()
        .call("look", json!({"at": 1}))
        .text("seen");
    let served = Served::start(model).await;
    let look = json!([{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}]);
    let ask = json!({"model": "planck", "input": "a", "tools": look});
    let (_, first) = read(served.post(PATH, &[], &ask).await).await;
    let call = &first["output"][0];
    assert_eq!(
        (&call["type"], &call["arguments"]),
        (&json!("function_call"), &json!(r#"{"at":1}"#)),
        "{first}"
    );
    let prompt = json!({"model": "planck", "input": "b", "previous_response_id": first["id"]});
    let early = read(served.post(PATH, &[], &prompt).await).await;
    assert_eq!(
        (early.0, &early.1["error"]["code"]),
        (StatusCode::CONFLICT, &json!("results_missing"))
    );
    let result = json!({"model": "planck", "input": [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "here"}]});
    let (status, done) = read(served.post(PATH, &[], &result).await).await;
    assert_eq!(
        (status, &done["output"][0]["content"][0]["text"]),
        (StatusCode::OK, &json!("seen")),
        "{done}"
    );
    let other = json!({"model": "planck", "input": [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "there"}]});
    assert_eq!(
        read(served.post(PATH, &[], &other).await).await.0,
        StatusCode::CONFLICT
    );
    let tools = json!({"model": "planck", "input": "b", "previous_response_id": done["id"],
        "tools": [{"type": "function", "name": "other"}]});
    let (status, error) = read(served.post(PATH, &[], &tools).await).await;
    assert_eq!(
        (status, &error["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("tools"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_no_response_are_not_found() {
    let served = Served::start(ScriptedModel::new().text("one")).await;
    let (_, first) = read(
        served
            .post(PATH, &[], &json!({"model": "planck", "input": "a"}))
            .await,
    )
    .await;
    let id = first["id"].as_str().unwrap();
    for id in [
        "x",
        "resp_nobody_0",
        &format!("{id}.1"),
        &format!("{id}999"),
        "resp_a.b_0",
    ] {
        let (status, body) = read(served.get(&format!("{PATH}/{id}")).await).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{id}: {body}");
    }
}
