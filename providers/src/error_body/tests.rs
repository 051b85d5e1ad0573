use serde_json::json;

use super::*;

/// The cases are error bodies that providers have sent.
#[test]
fn errors_of_providers_are_classified() {
    use FailureKind::{Auth, ContextFull, Refused, Transient};
    let google = |code: u16, status: &str, message: &str| json!({"error": {"code": code, "message": message, "status": status}});
    let openai = |kind: &str, code: &str, message: &str| json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
    let anthropic = |kind: &str, message: &str| json!({"type": "error", "error": {"type": kind, "message": message}});
    for (status, body, kind) in [
        (
            400,
            anthropic(
                "invalid_request_error",
                "prompt is too long: 213251 tokens > 200000 maximum",
            ),
            ContextFull,
        ),
        (
            400,
            anthropic(
                "invalid_request_error",
                "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
            ),
            ContextFull,
        ),
        (
            413,
            anthropic("request_too_large", "Request exceeds the maximum size"),
            ContextFull,
        ),
        (
            400,
            anthropic(
                "invalid_request_error",
                "Your credit balance is too low to access the Anthropic API.",
            ),
            Refused,
        ),
        (
            400,
            anthropic(
                "invalid_request_error",
                "messages.0.content: text content blocks must be non-empty",
            ),
            Refused,
        ),
        (
            401,
            anthropic("authentication_error", "invalid x-api-key"),
            Auth,
        ),
        (
            429,
            anthropic(
                "rate_limit_error",
                "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
            ),
            Transient,
        ),
        (529, anthropic("overloaded_error", "Overloaded"), Transient),
        (
            400,
            openai(
                "invalid_request_error",
                "context_length_exceeded",
                "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000 tokens.",
            ),
            ContextFull,
        ),
        (
            400,
            openai(
                "invalid_request_error",
                "context_length_exceeded",
                "Your input exceeds the context window of this model. Please adjust your input and try again.",
            ),
            ContextFull,
        ),
        (
            429,
            openai(
                "tokens",
                "rate_limit_exceeded",
                "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
            ),
            ContextFull,
        ),
        (
            429,
            openai(
                "requests",
                "rate_limit_exceeded",
                "Rate limit reached for gpt-4o on requests per min",
            ),
            Transient,
        ),
        (
            429,
            openai(
                "insufficient_quota",
                "insufficient_quota",
                "You exceeded your current quota, please check your plan and billing details.",
            ),
            Refused,
        ),
        (
            401,
            openai(
                "invalid_request_error",
                "invalid_api_key",
                "Incorrect API key provided: sk-abc***xyz.",
            ),
            Auth,
        ),
        (
            404,
            openai(
                "invalid_request_error",
                "model_not_found",
                "The model `gpt-9` does not exist or you do not have access to it.",
            ),
            Refused,
        ),
        (
            400,
            json!({"object": "error", "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens", "type": "BadRequestError", "code": 400}),
            ContextFull,
        ),
        (
            400,
            google(
                400,
                "INVALID_ARGUMENT",
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            ),
            ContextFull,
        ),
        (
            400,
            google(
                400,
                "INVALID_ARGUMENT",
                "API key not valid. Please pass a valid API key.",
            ),
            Auth,
        ),
        (
            400,
            json!([google(
                400,
                "INVALID_ARGUMENT",
                "Invalid JSON payload received."
            )]),
            Refused,
        ),
        (
            503,
            google(
                503,
                "UNAVAILABLE",
                "The model is overloaded. Please try again later.",
            ),
            Transient,
        ),
        (
            400,
            json!({"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it", "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}}),
            ContextFull,
        ),
        (
            503,
            json!({"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
            Transient,
        ),
        (404, json!({"error": "model 'nope' not found"}), Refused),
        (
            400,
            json!({"error": "input length exceeds the context length"}),
            ContextFull,
        ),
        (422, json!({"detail": "field required"}), Refused),
    ] {
        let error_body = ProviderError::read(body.to_string().as_bytes()).unwrap();
        assert_eq!(error_body.kind(Some(status)), kind, "{status} {body}");
    }
}

#[test]
fn an_error_in_a_stream_has_no_status_of_its_own() {
    let midway = |body: &str| ProviderError::read(body.as_bytes()).unwrap().midway().kind;
    assert_eq!(
        midway(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
        FailureKind::Transient
    );
    assert_eq!(
        midway(r#"{"error":{"type":"invalid_request_error","message":"no"}}"#),
        FailureKind::Refused
    );
    assert_eq!(
        midway(r#"{"error":{"code":401,"message":"no"}}"#),
        FailureKind::Auth
    );
    assert_eq!(
        midway(r#"{"error":"something new"}"#),
        FailureKind::Transient
    );
}

#[test]
fn a_long_message_is_cut_and_says_so() {
    let told = |length: usize| {
        let error =
            json!({"error": {"type": "bad", "message": format!("{}end", "x".repeat(length))}});
        ProviderError::read(error.to_string().as_bytes())
            .unwrap()
            .text()
    };
    assert!(told(7_000).ends_with("xend"));
    assert!(told(60_000).ends_with("x… (cut after 8000 of 60008 characters)"));
}

#[test]
fn the_wait_of_google_is_read_from_the_body() {
    let body = json!({"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED",
        "details": [{"@type": "type.googleapis.com/google.rpc.Help"}, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17.5s"}]}});
    let error_body = ProviderError::read(body.to_string().as_bytes()).unwrap();
    assert_eq!(error_body.retry_after, Some(Duration::from_millis(17_500)));
    assert!(error_body.is_overload());
}

#[test]
fn a_wait_is_read_from_the_words_of_a_message() {
    for (words, millis) in [
        (
            "Rate limit reached for gpt-6 on tokens per min: Limit 30000, Used 29000. Please try again in 2.5s. Visit …",
            Some(2_500),
        ),
        ("Please try again in 345ms.", Some(345)),
        ("Please try again in 6m0s.", Some(360_000)),
        (
            "Please try again in 1h2m59.56s. Need more tokens?",
            Some(3_779_560),
        ),
        (
            "Requests have exceeded the rate limit of your tier. Please retry after 10 seconds.",
            Some(10_000),
        ),
        ("Please retry in 17.25s.", Some(17_250)),
        ("Please try again in 2 days", None),
        ("Please try again in 99999999999999999999999999s", None),
        ("Please try again in ..s", None),
        ("Please try again in a moment.", None),
        ("Please try again later.", None),
    ] {
        let midway =
            ProviderError::read(json!({"error": {"message": words}}).to_string().as_bytes())
                .unwrap()
                .midway();
        assert_eq!(
            midway.retry_after.map(|wait| wait.as_millis()),
            millis,
            "{words}"
        );
    }
}

#[test]
fn a_body_without_an_error_is_read_as_none() {
    for body in ["", "<html>", "{}", "[]", "3", r#"{"error":{}}"#] {
        assert_eq!(ProviderError::read(body.as_bytes()), None, "{body}");
    }
}
