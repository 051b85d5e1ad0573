//! Estimated sizes: four characters to a token, and a flat price for what is no text.

use planck_common::message::{Body, Part};

/// What an image or a file is taken for, in characters, until the provider has counted it.
const ATTACHMENT: usize = 6_000;

/// The tokens of so many characters.
pub fn tokens(chars: usize) -> u64 {
    chars.div_ceil(4) as u64
}

/// The tokens of a message.
pub fn tokens_of(body: &Body) -> u64 {
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
