//! The requests of Open WebUI 0.12.4, as it sent them to a front: a chat with its title, suggestions
//! and tags, a second message, an answer that is made again, an edited question and a stop.

use planck_client::{
    FollowEvent,
    protocol::{
        SessionId,
        command::ListSessions,
        event::{Event, TurnOutcome},
    },
};

use super::*;

const RECORDED: &str = include_str!("open-webui.json");
const PATH: &str = "/openai/v1/chat/completions";

/// The recorded requests. Those of a person have the same tools, which are recorded once.
struct Recorded {
    requests: Value,
    tools: Value,
}

impl Recorded {
    fn read() -> Self {
        let recorded: Value = serde_json::from_str(RECORDED).unwrap();
        Self {
            requests: recorded["requests"].clone(),
            tools: recorded["tools"].clone(),
        }
    }

    async fn send(&self, served: &Served, name: &str) -> Response<Body> {
        let recorded = &self.requests[name];
        let mut body = recorded["body"].clone();
        if body["stream"] == true {
            body["tools"] = self.tools.clone();
        }
        let headers = recorded["headers"].as_object().unwrap();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
            .collect();
        served.post(PATH, &headers, &body).await
    }

    /// Sends a message of a person, and returns the session and the text of the streamed answer.
    async fn chat(&self, served: &Served, name: &str) -> (String, String) {
        let response = self.send(served, name).await;
        let session = session(response.headers());
        let events = events(response, |_| false).await;
        let texts = events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        (session, texts.collect())
    }

    /// Sends a task, and returns the text of the answer.
    async fn task(&self, served: &Served, name: &str) -> String {
        let (status, body) = read(self.send(served, name).await).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        text(&body).to_owned()
    }
}

async fn sessions(served: &Served) -> Vec<String> {
    let filter = ListSessions::default();
    let sessions = served.runtime.client().sessions(&filter).await.unwrap();
    let ids = sessions.sessions.iter().map(|row| row.id.to_string());
    ids.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_of_open_webui_is_one_session_and_its_tasks_leave_none() {
    let replies = [
        "a title",
        "Hello, I am the first answer.",
        "ideas",
        "tags",
        "More of it, the second answer.",
        "ideas",
        "Another second answer.",
        "Less of it, an edited answer.",
    ];
    let model = replies
        .iter()
        .fold(ScriptedModel::new(), |model, text| model.text(*text));
    let served = Served::start(model).await;
    let recorded = Recorded::read();
    assert_eq!(recorded.task(&served, "title").await, "a title");
    assert_eq!(sessions(&served).await, Vec::<String>::new());
    let (first, hello) = recorded.chat(&served, "hello").await;
    assert_eq!(hello, "Hello, I am the first answer.");
    assert_eq!(recorded.task(&served, "follow_ups").await, "ideas");
    assert_eq!(recorded.task(&served, "tags").await, "tags");
    let (second, more) = recorded.chat(&served, "more").await;
    assert_eq!(more, "More of it, the second answer.");
    assert_eq!(second, first);
    assert_eq!(recorded.task(&served, "follow_ups").await, "ideas");
    assert_eq!(sessions(&served).await, std::slice::from_ref(&first));
    // The same request again is an answer that the person wants made again.
    let (again, _) = recorded.chat(&served, "more").await;
    assert_ne!(again, first);
    let (edited, less) = recorded.chat(&served, "edited").await;
    assert_eq!(less, "Less of it, an edited answer.");
    assert!(edited != first && edited != again);
    assert_eq!(served.turns(&first).await, 2);
    assert_eq!(sessions(&served).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_in_open_webui_aborts_the_turn() {
    let model = ScriptedModel::new().pace(PACE * 25).text(STORY);
    let served = Served::start(model).await;
    let recorded = Recorded::read();
    let response = recorded.send(&served, "hello").await;
    let session = session(response.headers());
    let is_text = |event: &Value| {
        event["choices"][0]["delta"]["content"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    };
    // The rest of the stream is dropped here, which closes the connection.
    assert!(events(response, is_text).await.iter().any(is_text));
    let client = served.runtime.client();
    let mut follow = client
        .follow(&SessionId::parse(&session).unwrap(), 1)
        .await
        .unwrap();
    let ended = async {
        loop {
            let FollowEvent::Durable(event) = follow.next().await.unwrap() else {
                continue;
            };
            if let Some(Ok(Event::TurnEnd(end))) = event.event() {
                return end.outcome;
            }
        }
    };
    let outcome = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert_eq!(outcome, TurnOutcome::Aborted);
}

/// Without the header, a closed connection may be an accident: `client_that_goes_away_aborts_nothing`.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_wish_for_a_closed_connection_is_refused() {
    let served = Served::start(ScriptedModel::new()).await;
    let body = json!({"model": "planck", "messages": [{"role": "user", "content": "a"}]});
    let wish = [("x-planck-on-disconnect", "explode")];
    let (status, error) = read(served.post(PATH, &wish, &body).await).await;
    assert_eq!(
        (status, &error["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("x-planck-on-disconnect"))
    );
}

/// The session of a task is deleted, which a key of the role `use` may not do to other sessions.
#[tokio::test(flavor = "multi_thread")]
async fn task_never_continues_a_session() {
    let call = json!({"id": "call_s_0_c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let served = Served::start(ScriptedModel::new()).await;
    let body = json!({"model": "planck", "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_s_0_c", "content": "done"},
    ]});
    let task = [("x-planck-task", "title")];
    let (status, error) = read(served.post(PATH, &task, &body).await).await;
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
    assert!(message.contains("x-planck-task"), "{error}");
}

/// Clients show the list to people, who would choose a model for which there is no key.
#[tokio::test(flavor = "multi_thread")]
async fn list_of_models_has_only_those_of_configured_providers() {
    let served = Served::start(ScriptedModel::new()).await;
    let (_, list) = read(served.get("/openai/v1/models").await).await;
    let nodes = served.runtime.client().nodes().await.unwrap().nodes;
    let data = list["data"].as_array().unwrap();
    let ids: Vec<_> = data
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert!(ids.contains(&"planck") && ids.contains(&"duo"), "{ids:?}");
    for id in ids {
        let provider = id.split_once(':').map(|(provider, _)| provider.to_owned());
        let has_key = |provider| nodes.iter().any(|node| node.providers.contains(&provider));
        assert!(
            provider.is_none_or(has_key),
            "{id} is offered without a key"
        );
    }
}
