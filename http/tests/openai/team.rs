//! A team whose lead delegates: the answer is open until the work is over.

use planck_client::protocol::command::AgentState;

use super::*;

const CHAT: &str = "/openai/v1/chat/completions";
const RESPONSES: &str = "/openai/v1/responses";
const FIRST: &str = "It is at work.";
const LAST: &str = "Seven, says the helper.";

/// The models of the team `crew`. The helper's reply has this pace.
pub(super) fn crew(pace: Duration) -> [ScriptedModel; 2] {
    let task = json!({"agent": "helper", "task": "How many?"});
    let lead = ScriptedModel::named("lead").call("delegate_task", task);
    let response = json!({"response": "Seven."});
    [
        lead.text(FIRST).text(LAST).text("More."),
        ScriptedModel::named("helper")
            .pace(pace)
            .call("send_response", response)
            .text("Sent."),
    ]
}

/// The models of the team `crew`, whose helper takes minutes. The lead speaks slowly when it is told
/// that the helper was stopped, and to a later prompt.
pub(super) fn slow_crew() -> [ScriptedModel; 2] {
    let [_, helper] = crew(Duration::from_secs(120));
    let task = json!({"agent": "helper", "task": "How many?"});
    let lead = ScriptedModel::named("lead")
        .pace(PACE)
        .call("delegate_task", task);
    let speech = [STORY; 3].join(" ");
    [lead.text(FIRST).text(&*speech).text(speech), helper]
}

async fn served() -> Served {
    let [lead, helper] = crew(PACE / 8);
    Served::of([lead, helper]).await
}

fn texts(response: &Value) -> Vec<&str> {
    let items = response["output"].as_array().unwrap().iter();
    let messages = items.filter(|item| item["type"] == "message");
    messages
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_has_the_result_of_the_team() {
    let served = served().await;
    let ask = json!({"role": "user", "content": "How many?"});
    let body = json!({"model": "crew", "messages": [ask]});
    let response = served.post(CHAT, &[], &body).await;
    let session = session(response.headers());
    let (status, body) = read(response).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let choice = &body["choices"][0];
    assert_eq!(
        (text(&body), &choice["finish_reason"]),
        (LAST, &json!("stop"))
    );
    assert_eq!(choice["message"]["reasoning_content"], FIRST);

    // What the client shows chooses the session, and the next prompt follows the work.
    let answer = json!({"role": "assistant", "content": LAST});
    let more = json!({"role": "user", "content": "And?"});
    let body = json!({"model": "crew", "messages": [ask, answer, more]});
    let response = served.post(CHAT, &[], &body).await;
    assert_eq!(super::session(response.headers()), session);
    assert_eq!(text(&read(response).await.1), "More.");
}

#[tokio::test(flavor = "multi_thread")]
async fn streamed_completion_ends_with_the_result_of_the_team() {
    let served = served().await;
    let messages = json!([{"role": "user", "content": "How many?"}]);
    let body = json!({"model": "crew", "messages": messages, "stream": true});
    let chunks = events(served.post(CHAT, &[], &body).await, |_| false).await;
    let deltas = chunks.iter().map(|chunk| &chunk["choices"][0]);
    let text: String = deltas
        .clone()
        .filter_map(|choice| choice["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, format!("{FIRST}\n\n{LAST}"));
    let ends = deltas.filter_map(|choice| choice["finish_reason"].as_str());
    assert_eq!(ends.collect::<Vec<_>>(), ["stop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_ends_with_the_first_turn_if_the_client_wants_that() {
    let served = served().await;
    let messages = json!([{"role": "user", "content": "How many?"}]);
    let body = json!({"model": "crew", "messages": messages});
    let until = |value| [("x-planck-until", value)];
    let first = served.post(CHAT, &until("turn"), &body).await;
    assert_eq!(text(&read(first).await.1), FIRST);
    for path in [CHAT, RESPONSES] {
        let body = json!({"model": "crew", "messages": messages, "input": "a"});
        let (status, body) = read(served.post(path, &until("noon"), &body).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("x-planck-until"), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn response_has_a_message_for_each_turn_at_every_reading() {
    let served = served().await;
    let body = json!({"model": "crew", "input": "How many?", "stream": true});
    let live = events(served.post(RESPONSES, &[], &body).await, |_| false).await;
    let last = &live.last().unwrap()["response"];
    assert_eq!(last["status"], "completed", "{last}");
    assert_eq!(texts(last), [FIRST, LAST]);
    let id = last["id"].as_str().unwrap();
    // Another front knows nothing of the answer.
    let options = FrontOptions::default();
    let other = Front::new(served.runtime.client().clone(), options);
    for routes in [served.routes.clone(), other.routes()] {
        let get = async |path: String| {
            let asked = request(Method::GET, &path).body(Body::empty()).unwrap();
            let answer = routes.clone().oneshot(asked);
            tokio::time::timeout(PATIENCE, answer)
                .await
                .unwrap()
                .unwrap()
        };
        let (_, again) = read(get(format!("{RESPONSES}/{id}")).await).await;
        assert_eq!(
            (&again["output"], &again["usage"]),
            (&last["output"], &last["usage"])
        );
        assert_eq!(again["status"], "completed");
        let numbers = |events: &[Value]| -> Vec<(u64, String)> {
            let whole = events.iter().filter(|event| event["delta"].is_null());
            whole
                .map(|event| {
                    let number = event["sequence_number"].as_u64().unwrap();
                    (number, event["type"].as_str().unwrap().to_owned())
                })
                .collect()
        };
        let replayed = events(get(format!("{RESPONSES}/{id}?stream=true")).await, |_| {
            false
        })
        .await;
        assert_eq!(numbers(&replayed), numbers(&live));
        // The stream is continued in the second turn.
        let middle = live.len() - 5;
        let after = live[middle]["sequence_number"].as_u64().unwrap();
        let path = format!("{RESPONSES}/{id}?stream=true&starting_after={after}");
        let rest = events(get(path).await, |_| false).await;
        assert_eq!(numbers(&rest), numbers(&live[middle + 1..]));
    }
    let body = json!({"model": "crew", "input": "And?", "previous_response_id": id});
    let (_, next) = read(served.post(RESPONSES, &[], &body).await).await;
    assert_eq!(texts(&next), ["More."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn background_response_is_in_progress_until_the_team_is_done_and_is_cancelled_as_a_whole() {
    let served = Served::of(slow_crew()).await;
    let body = json!({"model": "crew", "input": "How many?", "background": true});
    let (_, response) = read(served.post(RESPONSES, &[], &body).await).await;
    let path = format!("{RESPONSES}/{}", response["id"].as_str().unwrap());
    // The lead's first turn ends while the helper works.
    let session = response["conversation"]["id"].as_str().unwrap();
    let is_first_over = async || {
        let info = served.runtime.client().session(session).await.unwrap();
        let [lead, helper] = info.agents.as_slice() else {
            panic!("{info:?}")
        };
        lead.state == AgentState::Idle && helper.state == AgentState::Streaming
    };
    let begun = async {
        while !is_first_over().await {
            tokio::time::sleep(PACE).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    let (_, working) = read(served.get(&path).await).await;
    assert_eq!(working["status"], "in_progress", "{working}");
    assert_eq!(texts(&working), [FIRST]);

    let cancelled = served
        .post(&format!("{path}/cancel"), &[], &json!({}))
        .await;
    let (status, cancelled) = read(cancelled).await;
    assert_eq!(status, StatusCode::OK, "{cancelled}");
    let info = served.runtime.client().session(session).await.unwrap();
    let is_idle = |state| state == AgentState::Idle;
    assert!(info.agents.iter().all(|agent| is_idle(agent.state)));
    let (_, after) = read(served.get(&path).await).await;
    for response in [cancelled, after] {
        assert_eq!(response["status"], "cancelled", "{response}");
    }
}
