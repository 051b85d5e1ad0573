//! The local compactor calls the agent's own model once, without tools.

use std::sync::Arc;

use futures_util::StreamExt;
use planck_common::{
    message::{MessageBody, MessageMetadata, MessageRole, Part},
    spec::ModelRef,
    usage::Usage,
};

use super::{Material, Request};
use crate::{
    agent::input::CompactionResult,
    model::{Chunk, Failure},
};
use planck_providers::{Clients, Llm, Provider, ReplyProgress, RequestHead};

/// The maximum length of the requested summary in tokens.
const SUMMARY: u64 = 8_192;

/// Asks the model to summarise the messages before the cut.
pub async fn run(
    models: Arc<Llm>,
    clients: Clients,
    model: ModelRef,
    material: Material,
) -> CompactionResult {
    let provider = match models.provider(&model) {
        Ok(provider) => provider,
        Err(error) => return CompactionResult::Failed(error.to_string()),
    };
    let max_output = models.card(&model).max_output.min(SUMMARY);
    let (request, keep_from) = (material.request(), material.keep_from());
    drop(material);
    match ask(&provider, &clients, &model, request, max_output).await {
        Ok((text, usage)) => CompactionResult::Summary {
            text,
            keep_from,
            by: "local".into(),
            usage,
        },
        Err(failure) => CompactionResult::Failed(failure.message),
    }
}

/// Sends one request without tools, and returns the text of the answer.
pub async fn ask(
    provider: &Arc<dyn Provider>,
    clients: &Clients,
    model: &ModelRef,
    request: Request,
    max_output: u64,
) -> Result<(String, Usage), Failure> {
    let mut encoder = provider.encoder(RequestHead {
        model: model.id.clone(),
        system_prompt: request.system.into(),
        tools: Arc::new([]),
        opts: serde_json::Map::new(),
        max_output,
    });
    encoder.push(&MessageBody {
        role: MessageRole::User,
        custom: None,
        content: vec![Part::text(request.user)],
        metadata: MessageMetadata::default(),
    });
    let request = encoder.request();
    drop(encoder);
    let mut stream = provider.stream(clients, &model.id, request);
    let (mut text, mut usage) = (String::new(), Usage::default());
    while let Some(progress) = stream.next().await {
        match progress? {
            ReplyProgress::Chunks(chunks) => chunks.iter().for_each(|chunk| take(&mut text, chunk)),
            ReplyProgress::Finished(finish) => usage = finish.usage,
        }
    }
    Ok((text, usage))
}

fn take(text: &mut String, chunk: &Chunk) {
    match chunk {
        Chunk::Text { text: more, .. } => text.push_str(more),
        Chunk::Thinking { .. }
        | Chunk::Signature { .. }
        | Chunk::Redacted { .. }
        | Chunk::Call { .. }
        | Chunk::Args { .. } => {}
    }
}
