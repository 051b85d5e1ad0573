//! The two compactors: one calls the agent's own model once, without tools, the other asks a
//! sidecar. `planck_agent::compact` decides which messages they receive and checks their summaries.

use std::sync::Arc;

use futures_util::StreamExt;
use planck_common::{
    AgentId, CallId, PROTOCOL_VERSION, Seq, SessionId, Timestamp,
    message::{Message, MessageBody, MessageMetadata, MessageRole, Part},
    sidecar::{CompactMessage, CompactModel, CompactRequest},
    spec::ModelRef,
    usage::Usage,
};
use planck_providers::{Clients, Llm, Provider, ReplyProgress, RequestHead};

use crate::{
    agent::input::CompactionResult,
    model::{Chunk, Failure},
    sidecar::Sidecars,
};

pub use planck_agent::compact::*;

/// The maximum length of the requested summary in tokens.
const SUMMARY: u64 = 8_192;

/// Asks the model to summarise the messages before the cut.
pub async fn summarise(
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
    match ask_model(&provider, &clients, &model, request, max_output).await {
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
pub async fn ask_model(
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
    let request = encoder.request(None);
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

/// A request for a summary of one agent's context.
pub struct SummaryRequest {
    pub sidecars: Sidecars,
    /// The name of the compactor in the agent's spec.
    pub compactor: String,
    pub model: String,
    pub agent: AgentId,
    pub session: SessionId,
    /// The number of tokens at which a context is compacted.
    pub threshold: u64,
}

impl SummaryRequest {
    /// Asks the sidecar and returns its answer. Fails with the reason if there is no answer that
    /// can be used. The caller then uses the local compactor.
    pub async fn run(&self, material: &Material) -> Result<CompactionResult, String> {
        self.ask(material)
            .await
            .map_err(|why| format!("the compactor `{}` is of no use: {why}", self.compactor))
    }

    async fn ask(&self, material: &Material) -> Result<CompactionResult, String> {
        let compactor = self.sidecars.compactor(&self.compactor).await?;
        let request = CompactRequest {
            v: PROTOCOL_VERSION,
            call_id: CallId::mint(),
            compactor: compactor.own_name().to_owned(),
            model: CompactModel {
                id: self.model.clone(),
                context_window: material.context_window,
            },
            messages: material
                .lines
                .iter()
                .map(|line| self.message(line))
                .collect(),
            tokens: material.tokens,
            agent_id: self.agent.clone(),
            session_id: self.session.clone(),
            deadline_ms: u64::try_from(compactor.timeout().as_millis()).unwrap_or(u64::MAX),
        };
        match compactor.ask(&request).await? {
            CompactMessage::Compact { summary, keep_from } => {
                self.judge(material, summary, keep_from, compactor.name())
            }
            CompactMessage::Skip(_) => Ok(CompactionResult::Skipped),
            CompactMessage::Error(why) => Err(why),
        }
    }

    /// Refuses a summary that is not valid. If the context has reached the threshold, also refuses
    /// a summary that does not bring it below the threshold, because compaction would immediately
    /// be due again and the sidecar would be asked repeatedly.
    fn judge(
        &self,
        material: &Material,
        text: String,
        keep_from: Seq,
        by: String,
    ) -> Result<CompactionResult, String> {
        let replacement = material
            .check(&text, keep_from)
            .map_err(|fault| fault.to_string())?;
        if replacement.tokens >= self.threshold && material.tokens >= self.threshold {
            return Err(format!(
                "the context would still be too full: {} tokens of {}",
                replacement.tokens, self.threshold
            ));
        }
        Ok(CompactionResult::Summary {
            text,
            keep_from,
            by,
            usage: Usage::default(),
        })
    }

    fn message(&self, line: &Line) -> Message {
        let body = (*line.body).clone();
        Message {
            id: line.id,
            agent_id: self.agent.clone(),
            at: Timestamp::now(),
            role: body.role,
            custom: body.custom,
            content: body.content,
            metadata: body.metadata,
        }
    }
}
