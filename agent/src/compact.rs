//! The decisions of compaction, without I/O: when the context is too long, and which part of it a
//! summary replaces.

mod check;
mod cut;
mod prompt;

use std::sync::Arc;

use planck_common::{
    Seq,
    message::{Custom, MessageBody, Part},
};

pub use check::{Replacement, SummaryFault};
pub use cut::{Cut, is_legal, shorten};
pub use prompt::Request;

/// When to compact, and how much to keep.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The share of the context window, from 0 to 1, that has to be used before compaction is due.
    pub ratio: f64,
    /// The minimum number of latest messages to keep; 0 counts as 1. Their tool results may be
    /// shortened.
    pub keep_recent: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            ratio: 0.8,
            keep_recent: 10,
        }
    }
}

impl Rules {
    /// Returns the number of tokens in the context from which compaction is due.
    pub fn threshold(&self, context_window: u64) -> u64 {
        (context_window as f64 * self.ratio) as u64
    }
}

/// One message of the model's context.
#[derive(Debug, Clone)]
pub struct Line {
    /// The message's id, or 0 until it is saved.
    pub id: Seq,
    pub body: Arc<MessageBody>,
    /// The estimated number of tokens.
    pub tokens: u64,
}

impl Line {
    pub fn new(id: Seq, body: Arc<MessageBody>) -> Self {
        let tokens = tokens_of(&body);
        Self { id, body, tokens }
    }

    pub fn is_summary(&self) -> bool {
        self.body.custom == Some(Custom::Summary)
    }
}

/// The input of a compactor.
#[derive(Debug, Clone)]
pub struct Material {
    /// The messages of the whole context, in order.
    pub lines: Vec<Line>,
    /// The estimated number of tokens in the system prompt and the tools.
    pub fixed: u64,
    /// The number of tokens in the whole context: the provider's last count, if there is one, plus
    /// an estimate of what was added since.
    pub tokens: u64,
    pub context_window: u64,
    pub cut: Cut,
}

impl Material {
    /// Returns the messages before the cut, which a summary is to replace.
    pub fn older(&self) -> &[Line] {
        self.lines.get(..self.cut.at).unwrap_or_default()
    }

    /// Returns whether there is a message to summarise besides an earlier summary.
    pub fn has_older(&self) -> bool {
        self.older().iter().any(|line| !line.is_summary())
    }

    /// Returns the id of the first message that is kept.
    pub fn keep_from(&self) -> Seq {
        self.lines.get(self.cut.at).map_or(0, |line| line.id)
    }
}

/// The assumed size of an image or a file, in characters, until the provider has counted it.
const ATTACHMENT: usize = 6_000;

/// Returns the estimated number of tokens in a text of `chars` characters. Four characters count as
/// one token.
pub fn tokens(chars: usize) -> u64 {
    chars.div_ceil(4) as u64
}

/// Returns the estimated number of tokens in a message. Every image or file counts as the same
/// number of characters.
pub fn tokens_of(body: &MessageBody) -> u64 {
    tokens(body.content.iter().map(chars).sum())
}

fn chars(part: &Part) -> usize {
    match part {
        Part::Text { text, .. } | Part::ToolResult { text, .. } => text.chars().count(),
        Part::Thinking {
            text, signature, ..
        } => text.chars().count() + signature.as_ref().map_or(0, String::len),
        Part::ToolCall { name, args, .. } => name.len() + args.get().len(),
        Part::Image { .. } | Part::File { .. } => ATTACHMENT,
    }
}

#[cfg(test)]
mod tests;
