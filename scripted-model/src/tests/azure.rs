use serde_json::{Value, json};

use super::{events, http::post};
use crate::{Script, Server};

const CURRENT: &str = "/openai/v1/chat/completions";
const KEY: &[(&str, &str)] = &[("api-key", "k")];

fn sound(model: &str) -> Value {
    json!({"model": model, "stream": true, "max_completion_tokens": 9, "messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test]
async fn both_addresses_are_served() {
    let server = Server::start(Script::new().key("k").always("hi"))
        .await
        .unwrap();
    for path in [
        CURRENT,
        "/openai/v1/chat/completions?api-version=preview",
        "/openai/deployments/gpt/chat/completions?api-version=2024-10-21",
    ] {
        let answer = post(&server, path, KEY, &sound("gpt")).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert!(
            events(&answer)[0].get("prompt_filter_results").is_some(),
            "{}",
            answer.body
        );
    }
}

#[tokio::test]
async fn request_that_the_real_server_refuses_is_refused() {
    let server = Server::start(Script::new().key("k")).await.unwrap();
    let older =
        |name: &str, query: &str| format!("/openai/deployments/{name}/chat/completions{query}");
    let mut limited = sound("gpt");
    limited["max_tokens"] = json!(9);
    for (path, headers, body, status, says) in [
        (
            CURRENT.to_owned(),
            &[("authorization", "Bearer k")][..],
            sound("gpt"),
            401,
            "invalid subscription key",
        ),
        (
            CURRENT.to_owned(),
            KEY,
            sound("absent"),
            404,
            "DeploymentNotFound",
        ),
        (
            CURRENT.to_owned(),
            KEY,
            limited,
            400,
            "Use 'max_completion_tokens' instead",
        ),
        (
            format!("{CURRENT}?api-version=2024-10-21"),
            KEY,
            sound("gpt"),
            400,
            "API version not supported",
        ),
        (
            older("gpt", ""),
            KEY,
            sound("gpt"),
            404,
            "Resource not found",
        ),
        (
            older("gpt", "?api-version=latest"),
            KEY,
            sound("gpt"),
            404,
            "Resource not found",
        ),
        (
            older("absent", "?api-version=2025-04-01-preview"),
            KEY,
            sound("gpt"),
            404,
            "DeploymentNotFound",
        ),
    ] {
        let refused = post(&server, &path, headers, &body).await;
        assert_eq!(refused.status, status, "{path}: {}", refused.body);
        assert!(refused.body.contains(says), "{path}: {}", refused.body);
    }
}
