//! Chat completions.

use super::*;

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

#[tokio::test(flavor = "multi_thread")]
async fn history_continues_its_session_and_another_history_starts_one() {
    let model = ["one", "two", "other two", "three", "more"];
    let model = model
        .iter()
        .fold(ScriptedModel::new(), |model, text| model.text(*text));
    let served = Served::start(model).await;
    let (first, one) = served.chat(&[], &json!([user("a")])).await;
    assert_eq!(text(&one), "one");
    let mut messages = vec![user("a"), assistant("one"), user("b")];
    let (second, two) = served.chat(&[], &json!(messages)).await;
    assert_eq!((second.as_str(), text(&two)), (first.as_str(), "two"));
    // The client regenerates the second answer: the first session keeps the one that it has.
    let (branch, two) = served.chat(&[], &json!(messages)).await;
    assert_ne!(branch, first);
    assert_eq!(text(&two), "other two");
    messages.extend([assistant("other two"), user("c")]);
    let (third, three) = served.chat(&[], &json!(messages)).await;
    assert_eq!((third.as_str(), text(&three)), (branch.as_str(), "three"));
    messages[3] = assistant("two");
    let (fourth, more) = served.chat(&[], &json!(messages)).await;
    assert_eq!((fourth.as_str(), text(&more)), (first.as_str(), "more"));
    assert_eq!(
        (served.turns(&first).await, served.turns(&branch).await),
        (3, 2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_with_images_and_several_texts_continue_their_session() {
    let model = ScriptedModel::new().text("one").text("two").text("three");
    let served = Served::start(model).await;
    let image = json!({"role": "user", "content": [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]});
    let texts = json!({"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
    ]});
    let (first, _) = served.chat(&[], &json!([image])).await;
    let mut messages = vec![image, assistant("one"), texts];
    let (second, _) = served.chat(&[], &json!(messages)).await;
    messages.extend([assistant("two"), user("c")]);
    let (third, three) = served.chat(&[], &json!(messages)).await;
    assert_eq!((&second, &third), (&first, &first));
    assert_eq!(text(&three), "three");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_is_sent_again_runs_once() {
    let model = ScriptedModel::new().text("one").text("two").text("three");
    let served = Served::start(model).await;
    let retry = [("x-stainless-retry-count", "1")];
    let (first, _) = served.chat(&[], &json!([user("a")])).await;
    let (again, one) = served.chat(&retry, &json!([user("a")])).await;
    assert_eq!((again.as_str(), text(&one)), (first.as_str(), "one"));
    let messages = json!([user("a"), assistant("one"), user("b")]);
    served.chat(&[], &messages).await;
    let (again, two) = served.chat(&retry, &messages).await;
    assert_eq!((again.as_str(), text(&two)), (first.as_str(), "two"));
    let key = [("idempotency-key", "k1")];
    let (keyed, three) = served.chat(&key, &json!([user("a")])).await;
    let (again, same) = served.chat(&key, &json!([user("a")])).await;
    assert_eq!((again, text(&same)), (keyed, text(&three)));
    let body = json!({"model": "planck", "messages": [user("else")]});
    let other = served
        .post("/openai/v1/chat/completions", &key, &body)
        .await;
    assert_eq!(read(other).await.0, StatusCode::CONFLICT);
}

#[tokio::test(flavor = "multi_thread")]
async fn named_session_takes_only_its_own_history() {
    let model = ScriptedModel::new().text("one").text("two").text("three");
    let served = Served::start(model).await;
    let name = [("x-planck-session", "my-chat")];
    let (first, _) = served.chat(&name, &json!([user("a")])).await;
    let (second, _) = served.chat(&name, &json!([user("b")])).await;
    let whole = json!([
        user("a"),
        assistant("one"),
        user("b"),
        assistant("two"),
        user("c")
    ]);
    let (third, three) = served.chat(&name, &whole).await;
    assert_eq!((&second, &third, text(&three)), (&first, &first, "three"));
    let body = json!({"model": "planck", "messages": [user("x"), assistant("y"), user("z")]});
    let other = served
        .post("/openai/v1/chat/completions", &name, &body)
        .await;
    let (status, body) = read(other).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (StatusCode::CONFLICT, &json!("history_differs"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn client_that_goes_away_aborts_nothing() {
    let model = ScriptedModel::new().pace(PACE).text(STORY).text("end");
    let served = Served::start(model).await;
    let body = json!({"model": "planck", "stream": true, "messages": [user("a")]});
    let response = served.post("/openai/v1/chat/completions", &[], &body).await;
    let is_text = |event: &Value| {
        event["choices"][0]["delta"]["content"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    };
    let session = session(response.headers());
    let seen = events(response, is_text).await;
    assert!(seen.iter().any(is_text));
    let messages = json!([user("a"), assistant("Once there"), user("b")]);
    let (same, end) = served.chat(&[], &messages).await;
    assert_eq!((same, text(&end)), (session, "end"));
}

/// Some clients make the model call a tool to get its answer, and send the result only with the next
/// message. They do not answer the calls that the model makes in between.
#[tokio::test(flavor = "multi_thread")]
async fn message_after_the_results_of_tools_is_the_next_prompt() {
    let call = |model: ScriptedModel| model.call("answer", json!({"city": "Rome"}));
    let first = || call(ScriptedModel::new());
    for model in [first().text("Thanks."), call(first())] {
        let served = Served::start(model.text("Rain.")).await;
        let parameters = json!({"name": "answer", "parameters": {"type": "object"}});
        let tools = json!([{"type": "function", "function": parameters}]);
        let ask = async |headers: &[(&str, &str)], messages: &Value| {
            let body = json!({"model": "planck", "messages": messages, "tools": tools});
            let path = "/openai/v1/chat/completions";
            let response = served.post(path, headers, &body).await;
            let session = session(response.headers());
            let (status, body) = read(response).await;
            assert_eq!(status, StatusCode::OK, "{body}");
            (session, body["choices"][0]["message"].clone())
        };
        let (first, called) = ask(&[], &json!([user("Where?")])).await;
        let id = &called["tool_calls"][0]["id"];
        let result = json!({"role": "tool", "tool_call_id": id, "content": "seen"});
        let messages = json!([user("Where?"), called, result, user("And the weather?")]);
        for headers in [&[][..], &[("x-stainless-retry-count", "1")]] {
            let (second, answer) = ask(headers, &messages).await;
            assert_eq!((&second, &answer["content"]), (&first, &json!("Rain.")));
        }
        assert_eq!(served.turns(&first).await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_form_that_clients_read() {
    let served = Served::start(ScriptedModel::new()).await;
    let path = "/openai/v1/chat/completions";
    let ask = |body: &'static str, kind: &'static str| {
        request(Method::POST, path)
            .header(header::CONTENT_TYPE, kind)
            .body(Body::from(body))
            .unwrap()
    };
    for (body, kind, status) in [
        ("{", "application/json", 400),
        ("[]", "application/json", 400),
        ("", "application/json", 400),
        ("{}", "text/plain", 415),
        (
            r#"{"model":"planck","messages":[]}"#,
            "application/json",
            400,
        ),
        (
            r#"{"model":"planck","messages":[{"role":"user","content":"a"}],"n":0}"#,
            "application/json",
            400,
        ),
        (
            r#"{"model":"x","messages":[{"role":"user","content":"a"}]}"#,
            "application/json",
            404,
        ),
        (
            r#"{"model":"planck","messages":[{"role":"tool","tool_call_id":"call_s_0_c","content":"a"}]}"#,
            "application/json",
            404,
        ),
    ] {
        let response = served.send(ask(body, kind)).await;
        assert_eq!(response.headers()["x-should-retry"], "false", "{body}");
        let (found, error) = read(response).await;
        assert_eq!(found.as_u16(), status, "{body}: {error}");
        assert!(
            error["error"]["message"].is_string() && error["error"]["type"].is_string(),
            "{error}"
        );
    }
    let nothing = read(served.get("/openai/v1/engines").await).await;
    assert_eq!(
        (nothing.0, &nothing.1["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("not_found"))
    );
}
