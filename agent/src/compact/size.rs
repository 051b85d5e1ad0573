//! Estimated sizes. Four characters count as one token, and every image or file counts as the same
//! number of characters.

use planck_common::message::{MessageBody, Part};

/// The assumed size of an image or a file, in characters, until the provider has counted it.
const ATTACHMENT: usize = 6_000;

/// Returns the estimated number of tokens in a text of `chars` characters.
pub fn tokens(chars: usize) -> u64 {
    chars.div_ceil(4) as u64
}

/// Returns the estimated number of tokens in a message.
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
