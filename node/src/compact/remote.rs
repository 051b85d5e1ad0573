//! Compaction by a sidecar. The sidecar's summary is used only if it is valid and makes the context
//! small enough.

use planck_common::{
    AgentId, CallId, PROTOCOL_VERSION, Seq, SessionId, Timestamp,
    message::Message,
    sidecar::{CompactMessage, CompactModel, CompactRequest},
    usage::Usage,
};

use super::{Line, Material};
use crate::{agent::input::CompactionResult, sidecar::Sidecars};

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
