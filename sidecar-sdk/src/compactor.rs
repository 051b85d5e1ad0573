//! A compactor: it replaces the older part of a conversation by a summary.

use std::collections::HashSet;

use async_trait::async_trait;
use planck_common::{
    Seq,
    message::{Message, Part},
    service::Metadata,
    sidecar::{COMPACTOR_TIMEOUT_MS, CompactModel, CompactSaid, metadata},
};

use crate::Context;

/// What a compactor decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The summary stands for every message before `keep_from`, which is the id of the first that
    /// stays. It has to be shorter than what it replaces, and a tool's result has to stay with its
    /// call.
    Compact { summary: String, keep_from: Seq },
    /// Leave the conversation as it is.
    Skip,
}

/// What is to be compacted.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub model: CompactModel,
    /// In order; an earlier summary is the first.
    pub messages: Vec<Message>,
    /// An estimate for all of it.
    pub tokens: u64,
}

/// Answers within its own time-out of 2 minutes, else the node compacts by itself.
#[async_trait]
pub trait Compactor: Send + Sync {
    /// # Errors
    /// The text is logged by the node, which then compacts by itself.
    async fn compact(
        &self,
        context: Context,
        conversation: Conversation,
    ) -> Result<Decision, String>;

    /// What it does, for people.
    fn description(&self) -> &'static str {
        ""
    }
}

impl Conversation {
    /// Where to cut so that at least the last `keep` messages stay, and every tool's result with
    /// its call. `None` when nothing would be cut off.
    pub fn cut(&self, keep: usize) -> Option<Seq> {
        let most = self.messages.len().checked_sub(keep.max(1))?;
        let at = (1..=most).rev().find(|at| self.is_whole_from(*at))?;
        self.messages.get(at).map(|message| message.id)
    }

    /// Whether no result from there on lacks its call.
    fn is_whole_from(&self, at: usize) -> bool {
        let parts = || {
            self.messages
                .iter()
                .skip(at)
                .flat_map(|message| &message.content)
        };
        let calls: HashSet<&str> = parts()
            .filter_map(|part| call(part).and_then(Result::ok))
            .collect();
        parts()
            .filter_map(|part| call(part).and_then(Result::err))
            .all(|result| calls.contains(result))
    }
}

/// The id of a call, or as an error that of a result.
fn call(part: &Part) -> Option<Result<&str, &str>> {
    match part {
        Part::ToolCall { call_id, .. } => Some(Ok(call_id)),
        Part::ToolResult { call_id, .. } => Some(Err(call_id)),
        Part::Text { .. } | Part::Thinking { .. } | Part::Image { .. } | Part::File { .. } => None,
    }
}

pub(crate) fn said(decision: Result<Decision, String>) -> CompactSaid {
    match decision {
        Ok(Decision::Compact { summary, keep_from }) => CompactSaid::Compact { summary, keep_from },
        Ok(Decision::Skip) => CompactSaid::Skip(true),
        Err(error) => CompactSaid::Error(error),
    }
}

pub(crate) fn metadata(compactor: &dyn Compactor) -> Metadata {
    let pairs = [
        (metadata::KIND, metadata::COMPACTOR.to_owned()),
        (metadata::DESCRIPTION, compactor.description().to_owned()),
        (metadata::TIMEOUT_MS, COMPACTOR_TIMEOUT_MS.to_string()),
    ];
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
