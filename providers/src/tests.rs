//! Tests every provider against the scripted model server, which refuses invalid requests as the
//! real servers do.

mod connections;
mod routes;

use std::time::Duration;

use futures_util::StreamExt;
use planck_common::{
    message::{MediaSource, MessageBody, MessageRole, Part, StopReason, text_of},
    spec::ModelRef,
};
use planck_scripted_model::{Pace, Reply, Script, ScriptedCall, ScriptedFault, Server, When};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    ClientOptions, Clients, Llm, LlmOptions, Provider, ProviderOptions, ReplyProgress, RequestHead,
    Times, WireKind,
    testing::{folded, head, message, result, user},
};
use crate::secret::Secret;
use planck_agent::model::{Failure, FailureKind, Finish};

const PROVIDERS: &[&str] = &[
    "anthropic",
    "openai",
    "responses",
    "google",
    "ollama",
    "llama_cpp",
    "scripted",
];
const KEY: &str = "key-0123456789";

fn model(server: &Server, provider: &str) -> ModelRef {
    let base_url = match provider {
        "openai" | "responses" | "scripted" | "deepseek" | "moonshot" => server.openai_url(),
        "llama_cpp" => server.llama_cpp_url(),
        _ => server.url(),
    };
    ModelRef {
        provider: provider.into(),
        id: "test-model".into(),
        base_url: Some(base_url),
    }
}

/// Returns providers that send their requests to `server`, with a key and the given time limits.
fn llm(server: &Server, times: Times) -> Llm {
    let options = |name: &&str| {
        let base_url = model(server, name).base_url;
        let wire = (*name == "responses").then_some(WireKind::Responses);
        let options = ProviderOptions {
            wire,
            key: Some(Secret::new(KEY)),
            base_url,
            times,
            ..ProviderOptions::default()
        };
        ((*name).to_owned(), options)
    };
    Llm::new(LlmOptions {
        providers: PROVIDERS.iter().map(options).collect(),
        ..LlmOptions::default()
    })
}

fn http() -> Clients {
    Clients::new(&ClientOptions::default()).unwrap()
}

async fn ask(
    client: &Clients,
    provider: &dyn Provider,
    head: RequestHead,
    messages: &[MessageBody],
) -> Result<(MessageBody, Finish), Failure> {
    let model = head.model.clone();
    let mut encoder = provider.encoder(head);
    messages.iter().for_each(|message| encoder.push(message));
    let mut stream = provider.stream(client, &model, encoder.request(None));
    let mut chunks = Vec::new();
    let mut end = None;
    while let Some(progress) = timeout(Duration::from_secs(20), stream.next())
        .await
        .expect("the stream goes on")
    {
        assert!(end.is_none(), "nothing follows the end");
        match progress {
            Ok(ReplyProgress::Chunks(more)) => chunks.extend(more),
            Ok(ReplyProgress::Finished(finish)) => end = Some(Ok(finish)),
            Err(failure) => end = Some(Err(failure)),
        }
    }
    let finish = end.expect("a stream has an end")?;
    Ok((message(MessageRole::Assistant, folded(&chunks)), finish))
}

async fn fails(client: &Clients, provider: &str, reply: Reply, times: Times) -> Failure {
    let server = Server::start(Script::new().always(reply)).await.unwrap();
    let provider = llm(&server, times)
        .provider(&model(&server, provider))
        .unwrap();
    ask(
        client,
        &*provider,
        head("test-model", json!({})),
        &[user("go")],
    )
    .await
    .unwrap_err()
}

fn names(body: &MessageBody) -> Vec<String> {
    let name = |part: &Part| match part {
        Part::ToolCall { name, args, .. } => Some(format!("{name} {args}")),
        Part::Text { .. }
        | Part::Thinking { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    };
    body.content.iter().filter_map(name).collect()
}

/// Returns a result for each call of the reply. Calls without an id get a unique one, as in the
/// agent.
fn answered(reply: &mut MessageBody, round: usize) -> MessageBody {
    let mut results = Vec::new();
    for (index, part) in reply.content.iter_mut().enumerate() {
        if let Part::ToolCall { id, .. } = part {
            if id.is_empty() {
                *id = format!("x{round}_{index}");
            }
            results.push(result(
                id,
                &format!("result {round} {index}"),
                index % 2 == 1,
            ));
        }
    }
    message(MessageRole::ToolResult, results)
}

#[tokio::test]
async fn parallel_calls_of_several_rounds_are_answered() {
    let rounds = [
        Reply::new()
            .think("hm, ünïcode")
            .say("Looking.")
            .and_call("read", json!({"path": "a \"b\" 🎉"}))
            .and_call("list", json!({}))
            .split(7),
        Reply::new()
            .and_call("read", json!({"path": "c"}))
            .and_call("read", json!({"path": "d"}))
            .and_call("read", json!({"path": "c"}))
            .split(9),
        Reply::new().think("so").say("Done.").split(11),
    ];
    for name in PROVIDERS {
        let server = Server::start(Script::new().rounds(When::any(), rounds.clone()))
            .await
            .unwrap();
        let (provider, client) = (
            llm(&server, Times::default())
                .provider(&model(&server, name))
                .unwrap(),
            http(),
        );
        let mut messages = vec![user("go")];
        let mut seen = Vec::new();
        for round in 0..3 {
            let asked = ask(
                &client,
                &*provider,
                head("test-model", json!({})),
                &messages,
            )
            .await;
            let (mut reply, finish) = asked
                .unwrap_or_else(|failure| panic!("{name}: {failure}: {:?}", server.violations()));
            let calls = names(&reply);
            assert_eq!(
                finish.stop,
                if calls.is_empty() {
                    StopReason::End
                } else {
                    StopReason::ToolUse
                },
                "{name}"
            );
            assert!(finish.usage.tokens() > 0, "{name}: {finish:?}");
            seen.push((text_of(&reply.content), calls));
            let results = answered(&mut reply, round);
            messages.push(reply);
            if round < 2 {
                messages.push(results);
            }
        }
        messages.push(user("thanks"));
        let again = ask(
            &client,
            &*provider,
            head("test-model", json!({})),
            &messages,
        )
        .await;
        assert!(again.is_ok(), "{name}: {again:?}");
        let read = |path: &str| format!("read {}", json!({ "path": path }));
        assert_eq!(
            seen[0],
            (
                "Looking.".into(),
                vec![read("a \"b\" 🎉"), "list {}".into()]
            ),
            "{name}"
        );
        assert_eq!(
            seen[1],
            (String::new(), vec![read("c"), read("d"), read("c")]),
            "{name}"
        );
        assert_eq!(seen[2], ("Done.".into(), vec![]), "{name}");
        assert_eq!(server.violations(), [], "{name}");
    }
}

#[tokio::test]
async fn servers_accept_options_and_attachments() {
    for name in PROVIDERS {
        let server = Server::start(Script::new().always("fine")).await.unwrap();
        let provider = llm(&server, Times::default())
            .provider(&model(&server, name))
            .unwrap();
        let parts = vec![
            Part::text("see"),
            Part::Image {
                mime: "image/png".into(),
                source: MediaSource::Data("iVBORw0KGgo=".into()),
            },
            Part::Image {
                mime: "image/png".into(),
                source: MediaSource::Url("https://example.org/y.png".into()),
            },
            Part::File {
                mime: "text/plain".into(),
                name: Some("n.txt".into()),
                source: MediaSource::Data("aGk=".into()),
            },
            Part::File {
                mime: "application/pdf".into(),
                name: Some("p.pdf".into()),
                source: MediaSource::Data("JVBERi0=".into()),
            },
        ];
        let opts =
            json!({"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 5000, "stop": ["X"]});
        let asked = ask(
            &http(),
            &*provider,
            head("test-model", opts),
            &[message(MessageRole::User, parts), user("more")],
        )
        .await;
        assert_eq!(
            text_of(&asked.unwrap().0.content),
            "fine",
            "{name}: {:?}",
            server.violations()
        );
        let thinking = json!({"thinking_budget": 2000, "max_output_tokens": 5000});
        let partial = message(
            MessageRole::Assistant,
            vec![
                Part::Thinking {
                    text: "cut".into(),
                    signature: None,
                    redacted: false,
                },
                Part::text("Half"),
            ],
        );
        let messages = [
            user("go"),
            partial,
            message(MessageRole::Assistant, vec![]),
            user("go on"),
            user(""),
        ];
        let asked = ask(&http(), &*provider, head("test-model", thinking), &messages).await;
        assert!(asked.is_ok(), "{name}: {asked:?}");
        assert_eq!(server.violations(), [], "{name}");
    }
}

#[tokio::test]
async fn a_user_message_may_follow_results_and_a_call_keeps_its_reasoning() {
    let reply = Reply::new()
        .think("hm")
        .and_call("list", json!({}))
        .and_call("read", json!({"path": "a"}));
    let cases = PROVIDERS.iter().map(|name| (*name, "test-model"));
    for (name, id) in cases.chain([("deepseek", "deepseek-v4-pro"), ("moonshot", "kimi-k3")]) {
        let server = Server::start(Script::new().always(reply.clone()))
            .await
            .unwrap();
        let (base_url, wire) = (
            model(&server, name).base_url,
            (name == "responses").then_some(WireKind::Responses),
        );
        let options = ProviderOptions {
            wire,
            base_url,
            key: Some(Secret::new(KEY)),
            ..ProviderOptions::default()
        };
        let llm = Llm::new(LlmOptions {
            providers: [(name.to_owned(), options)].into(),
            ..LlmOptions::default()
        });
        let provider = llm
            .provider(&ModelRef {
                id: id.into(),
                ..model(&server, name)
            })
            .unwrap();
        let (client, mut messages) = (http(), vec![user("go")]);
        for round in 0..3 {
            let asked = ask(&client, &*provider, head(id, json!({})), &messages).await;
            let (mut reply, _) = asked
                .unwrap_or_else(|failure| panic!("{name}: {failure}: {:?}", server.violations()));
            let results = answered(&mut reply, round);
            messages.extend([reply, results, user("and now?")]);
        }
        assert_eq!(server.violations(), [], "{name}");
    }
}

#[tokio::test]
async fn an_interrupted_reply_can_be_sent_back() {
    let reply = Reply::new()
        .think("a")
        .and_call("list", json!({}))
        .think("b")
        .say("Half")
        .think("c");
    for name in PROVIDERS {
        let server = Server::start(Script::new().always(reply.clone()))
            .await
            .unwrap();
        let (provider, client) = (
            llm(&server, Times::default())
                .provider(&model(&server, name))
                .unwrap(),
            http(),
        );
        let (mut cut, _) = ask(
            &client,
            &*provider,
            head("test-model", json!({})),
            &[user("go")],
        )
        .await
        .unwrap();
        // The agent stores an interrupted reply without its calls, so the test removes them.
        cut.content
            .retain(|part| !matches!(part, Part::ToolCall { .. }));
        cut.metadata.interrupted = true;
        let again = ask(
            &client,
            &*provider,
            head("test-model", json!({})),
            &[user("go"), cut, user("on")],
        )
        .await;
        assert!(again.is_ok(), "{name}: {again:?}");
        assert_eq!(server.violations(), [], "{name}");
    }
}

#[tokio::test]
async fn each_failure_has_its_kind() {
    let status = |status: u16| Reply::fault(ScriptedFault::status(status));
    let said = |code: u16, body: Value| {
        Reply::fault(ScriptedFault::Status {
            status: code,
            body: Some(body.to_string()),
            retry_after: None,
        })
    };
    let full = said(
        400,
        json!({"error": {"message": "prompt is too long: 213251 tokens > 200000 maximum", "type": "invalid_request_error"}}),
    );
    let at = |fault: ScriptedFault| {
        Reply::text("one two three four")
            .pace(Pace::default().chunk(4))
            .with_fault(fault)
    };
    let client = http();
    for name in PROVIDERS {
        for (reply, kind, words) in [
            (status(401), FailureKind::Auth, "status 401 Unauthorized"),
            (status(400), FailureKind::Refused, "status 400 Bad Request"),
            (status(404), FailureKind::Refused, "check the model's name"),
            (status(429), FailureKind::Transient, "status 429"),
            (status(500), FailureKind::Transient, "status 500"),
            (status(529), FailureKind::Transient, "status 529"),
            (full.clone(), FailureKind::ContextFull, "prompt is too long"),
            (
                said(403, json!(format!("no {KEY}!"))),
                FailureKind::Auth,
                "no ***!",
            ),
            (
                Reply::fault(ScriptedFault::Html(
                    "<html><title>Oops</title><body>502 <b>Bad</b></body>".into(),
                )),
                FailureKind::Transient,
                "an HTML page: Oops 502 Bad",
            ),
            (
                at(ScriptedFault::Cut { after: 2 }),
                FailureKind::Transient,
                "broke off",
            ),
            (
                at(ScriptedFault::End { after: 2 }),
                FailureKind::Transient,
                "ended before",
            ),
            (
                at(ScriptedFault::Error {
                    after: 2,
                    message: "Overloaded".into(),
                }),
                FailureKind::Transient,
                "Overloaded",
            ),
        ] {
            let shown = format!("{name}: {reply:?}");
            let failure = fails(&client, name, reply, Times::default()).await;
            assert_eq!(failure.kind, kind, "{shown}: {failure}");
            assert!(
                failure.message.contains(words) && failure.message.starts_with(name),
                "{shown}: {failure}"
            );
            assert!(!failure.message.contains(KEY), "{shown}: {failure}");
        }
    }
}

#[tokio::test]
async fn a_silent_server_runs_into_a_deadline() {
    let short = Duration::from_millis(100);
    let patient = Duration::from_secs(30);
    let first = Times {
        first_byte: short,
        between_content: patient,
        whole: patient,
    };
    // Until the first content, the time for the first byte applies. The test allows 2 s, because a
    // loaded machine may take a while to send the head of the answer.
    let between = Times {
        first_byte: Duration::from_secs(2),
        between_content: short,
        whole: patient,
    };
    let client = http();
    for name in PROVIDERS {
        let before = fails(
            &client,
            name,
            Reply::fault(ScriptedFault::HangBeforeHead),
            first,
        )
        .await;
        assert_eq!(before.kind, FailureKind::Transient, "{name}: {before}");
        assert!(
            before.message.contains("no answer from http://127.0.0.1"),
            "{before}"
        );
        let midway = fails(
            &client,
            name,
            Reply::text("a b c d").with_fault(ScriptedFault::Hang { after: 1 }),
            between,
        )
        .await;
        assert_eq!(midway.kind, FailureKind::Transient, "{name}: {midway}");
        assert!(
            midway.message.contains("brought nothing for 0.1 s"),
            "{midway}"
        );
    }
    let trickle =
        Reply::text("a b c d e f g h i j k l m n o p").pace(Pace::per_second(20.0).chunk(2));
    let whole = fails(
        &client,
        "openai",
        trickle,
        Times {
            whole: Duration::from_millis(200),
            ..Times::default()
        },
    )
    .await;
    assert!(whole.message.contains("too long as a whole"), "{whole}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_passing_failure() {
    for (name, advice) in [
        (
            "openai",
            "; nothing listens there: start the server, or set OPENAI_BASE_URL to its address",
        ),
        (
            "ollama",
            "; nothing listens there: start it with `ollama serve`, or set OLLAMA_HOST to its address",
        ),
    ] {
        let server = Server::start(Script::new()).await.unwrap();
        let (llm, model) = (llm(&server, Times::default()), model(&server, name));
        server.stop().await.unwrap();
        let provider = llm.provider(&model).unwrap();
        let failure = ask(&http(), &*provider, head("m", json!({})), &[user("go")])
            .await
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Transient);
        let expected = format!("{name}: cannot connect to http://127.0.0.1");
        assert!(failure.message.starts_with(&expected), "{failure}");
        assert!(failure.message.ends_with(advice), "{failure}");
    }
}

#[tokio::test]
async fn an_overload_delays_all_requests_of_a_provider() {
    let overload = ScriptedFault::Status {
        status: 429,
        body: None,
        retry_after: Some("0.4".into()),
    };
    let server = Server::start(
        Script::new()
            .limited(1, When::any(), Reply::fault(overload))
            .always("fine"),
    )
    .await
    .unwrap();
    let (llm, client) = (llm(&server, Times::default()), http());
    let provider = llm.provider(&model(&server, "anthropic")).unwrap();
    let messages = [user("go")];
    let failure = ask(&client, &*provider, head("m", json!({})), &messages)
        .await
        .unwrap_err();
    assert_eq!(failure.retry_after, Some(Duration::from_millis(400)));
    let start = Instant::now();
    let asked = (0..3).map(|_| ask(&client, &*provider, head("m", json!({})), &messages));
    for reply in futures_util::future::join_all(asked).await {
        assert_eq!(text_of(&reply.unwrap().0.content), "fine");
    }
    assert!(
        start.elapsed() >= Duration::from_millis(350),
        "{:?}",
        start.elapsed()
    );
    let other = llm.provider(&model(&server, "openai")).unwrap();
    assert!(
        ask(&client, &*other, head("m", json!({})), &messages)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn malformed_calls_reach_the_agent() {
    let wrong = Reply::new()
        .part(planck_scripted_model::ScriptedPart::Call(
            ScriptedCall::new("read", json!({}))
                .id("same")
                .raw("{\"path\": "),
        ))
        .part(planck_scripted_model::ScriptedPart::Call(
            ScriptedCall::new("read", json!({})).id("same").raw(""),
        ));
    for name in ["anthropic", "openai", "responses"] {
        let server = Server::start(Script::new().always(wrong.clone()))
            .await
            .unwrap();
        let provider = llm(&server, Times::default())
            .provider(&model(&server, name))
            .unwrap();
        let mut encoder = provider.encoder(head("m", json!({})));
        encoder.push(&user("go"));
        let stream = provider.stream(&http(), "m", encoder.request(None));
        let chunks: Vec<_> = stream
            .filter_map(async |progress| {
                if let Ok(ReplyProgress::Chunks(chunks)) = progress {
                    Some(chunks)
                } else {
                    None
                }
            })
            .collect()
            .await;
        let told: Vec<String> = chunks
            .concat()
            .iter()
            .map(|chunk| format!("{chunk:?}"))
            .collect();
        assert!(
            told.iter()
                .filter(|chunk| chunk.starts_with("Call"))
                .all(|chunk| chunk.contains("\"same\"")),
            "{name}: {told:?}"
        );
        assert!(
            told.contains(&"Args { part: 1, json: \"{}\" }".to_owned()),
            "{name}: {told:?}"
        );
    }
}
