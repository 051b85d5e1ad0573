//! Checks a compactor's answer, and makes the replacement for the older part of the context.

use planck_common::{
    Seq,
    message::{MessageBody, MessageMetadata, MessageRole, Part},
};

use super::{Cut, Line, Material, cut::kept_tokens, is_legal, prompt::quote, tokens_of};

/// The summary that replaces the older part of the context.
#[derive(Debug, Clone)]
pub struct Replacement {
    pub cut: Cut,
    /// The content of the summary message.
    pub content: Vec<Part>,
    /// The estimated number of tokens in the whole context after the replacement.
    pub tokens: u64,
}

/// The reason why a compactor's answer is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SummaryFault {
    #[error("the summary is empty")]
    Empty,
    #[error("message {0} is not in the context, or is its first")]
    UnknownMessage(Seq),
    #[error("keeping from message {0} would part a call from its result")]
    Splits(Seq),
    #[error("the context would not be smaller: {after} tokens after {before}")]
    NotSmaller { before: u64, after: u64 },
}

impl Material {
    /// Checks a compactor's answer, and returns the replacement for the messages before
    /// `keep_from`.
    pub fn check(&self, summary: &str, keep_from: Seq) -> Result<Replacement, SummaryFault> {
        if summary.trim().is_empty() {
            return Err(SummaryFault::Empty);
        }
        let at = self
            .lines
            .iter()
            .position(|line| line.id == keep_from)
            .filter(|at| *at > 0);
        let at = at.ok_or(SummaryFault::UnknownMessage(keep_from))?;
        if !is_legal(&self.lines, at) {
            return Err(SummaryFault::Splits(keep_from));
        }
        let (older, kept) = self.lines.split_at(at);
        self.replace(
            Cut {
                at,
                results: self.cut.results,
            },
            quote(summary, older, kept),
        )
    }

    /// Returns the replacement for a context that has nothing to summarise: long tool results are
    /// shortened, and the content is that of the earlier summary or, without one, a note.
    pub fn without_summary(&self) -> Result<Replacement, SummaryFault> {
        let earlier = self
            .older()
            .iter()
            .find(|line| line.is_summary())
            .map(|line| line.body.content.clone());
        let note = || {
            vec![Part::text(
                "Long results of tools were shortened to fit the context.",
            )]
        };
        self.replace(self.cut, earlier.unwrap_or_else(note))
    }

    fn replace(&self, cut: Cut, content: Vec<Part>) -> Result<Replacement, SummaryFault> {
        let summary = MessageBody {
            role: MessageRole::Custom,
            custom: None,
            content,
            metadata: MessageMetadata::default(),
        };
        let before = self.fixed
            + self
                .lines
                .iter()
                .map(|line: &Line| line.tokens)
                .sum::<u64>();
        let after = self.fixed + tokens_of(&summary) + kept_tokens(&self.lines, cut);
        if after >= before {
            return Err(SummaryFault::NotSmaller { before, after });
        }
        let tokens = u128::from(after) * u128::from(self.tokens) / u128::from(before.max(1));
        Ok(Replacement {
            cut,
            content: summary.content,
            tokens: u64::try_from(tokens).unwrap_or(u64::MAX),
        })
    }
}
