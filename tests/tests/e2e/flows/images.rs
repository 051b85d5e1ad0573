//! A prompt with an image goes to the model in the provider's form, and is stored as it was sent.

use anyhow::Result;
use planck_common::{
    command::{Accepted, SessionVerb},
    message::{MessageRole, text_of},
};
use planck_scripted_model::{Script, When};
use planck_tests::{
    caller::session_at,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// A grey pixel.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGN4DgAA6gDphpkEXgAAAABJRU5ErkJggg==";

/// A provider's model, and where and how the request's body contains the image in the provider's
/// format.
struct Wire {
    model: [&'static str; 2],
    at: &'static str,
    is: Value,
}

fn wires() -> Vec<Wire> {
    let anthropic = json!({ "type": "base64", "media_type": "image/png", "data": PNG });
    let google = json!({ "mimeType": "image/png", "data": PNG });
    vec![
        Wire {
            model: ["anthropic", "claude-sonnet-5-5"],
            at: "/messages/0/content/1/source",
            is: anthropic,
        },
        Wire {
            model: ["openai", "gpt-5"],
            at: "/messages/1/content/1/image_url/url",
            is: format!("data:image/png;base64,{PNG}").into(),
        },
        Wire {
            model: ["google", "gemini-2.5-pro"],
            at: "/contents/0/parts/1/inlineData",
            is: google,
        },
        Wire {
            model: ["ollama", "llava"],
            at: "/messages/1/images/0",
            is: PNG.into(),
        },
    ]
}

async fn shown(backend: Backend) -> Result<()> {
    let script = Script::new()
        .rule(When::any().user("colour"), "Still grey.")
        .always("A grey dot.");
    let world = World::start(backend, script).await?;
    let (url, openai) = (world.model.url(), world.model.openai_url());
    let environment = [
        ("ANTHROPIC_API_KEY", "none"),
        ("ANTHROPIC_BASE_URL", url.as_str()),
        ("OPENAI_API_KEY", "none"),
        ("OPENAI_BASE_URL", openai.as_str()),
        ("GOOGLE_API_KEY", "none"),
        ("GOOGLE_BASE_URL", url.as_str()),
        ("OLLAMA_HOST", url.as_str()),
    ];
    let (node, recorder) = (world.node_with(&environment).await?, world.record().await?);
    let image = json!({ "type": "image", "mime": "image/png", "data": PNG });
    for Wire {
        model: [provider, model],
        at,
        is,
    } in wires()
    {
        let member = json!({ "type": "agent", "provider": provider, "model_id": model, "system_prompt": "Look." });
        let started = world
            .caller
            .start(&json!({ "dir": world.dir(), "members": [member] }))
            .await?;
        let session = started.session_id.as_str();
        let body = json!({ "content": [{ "type": "text", "text": "What is this?" }, image] });
        let prompted: Accepted = world
            .caller
            .ask(&session_at(session, SessionVerb::Prompt), &body)
            .await?;
        recorder.answered(&prompted.prompt_id).await?;
        let prompted = world.caller.prompt(session, "And its colour?").await?;
        recorder.answered(&prompted.prompt_id).await?;
        world.check_model()?;

        let requests = world.model.requests();
        for request in requests.iter().rev().take(2) {
            assert_eq!(
                request.body.pointer(at),
                Some(&is),
                "{provider}: {}",
                request.body
            );
        }
        let messages = world.caller.messages(session, None).await?;
        let roles: Vec<MessageRole> = messages.iter().map(|message| message.role).collect();
        assert_eq!(
            roles,
            [
                MessageRole::User,
                MessageRole::Assistant,
                MessageRole::User,
                MessageRole::Assistant
            ],
            "{provider}"
        );
        assert_eq!(
            serde_json::to_value(&messages[0].content)?,
            body["content"],
            "{provider}: kept as it came"
        );
        assert_eq!(text_of(&messages[3].content), "Still grey.", "{provider}");
    }
    node.leave().await
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_shown_to_models_and_kept_on_sqlite() -> Result<()> {
    shown(Backend::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the twin on SQLite is always run: make test-all"]
async fn images_are_shown_to_models_and_kept_on_postgres() -> Result<()> {
    shown(Backend::Postgres).await
}
