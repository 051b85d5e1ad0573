//! Chooses where to cut a context. A cut keeps calls with their results, keeps the latest messages,
//! and shortens very long results.

use planck_common::message::{MessageBody, MessageRole, Part};

use super::{Line, Rules, tokens_of};

/// The minimum length, in characters, to which a tool result is shortened.
const SHORTEST: usize = 2_000;

/// How a context is made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The index of the first message that is kept.
    pub at: usize,
    /// The length in characters to which the kept tool results are shortened, or `None` if they are
    /// not shortened.
    pub results: Option<usize>,
}

impl Cut {
    /// Returns a cut that keeps the latest messages. If these messages take more than half of
    /// `threshold`, the cut shortens their long tool results. Returns `None` if there is nothing to
    /// summarise or to shorten.
    pub fn find(lines: &[Line], rules: &Rules, threshold: u64) -> Option<Self> {
        let wanted = lines.len().saturating_sub(rules.keep_recent.max(1));
        let at = (0..=wanted)
            .rev()
            .find(|at| is_legal(lines, *at))
            .unwrap_or(0);
        let kept = lines.get(at..).unwrap_or_default();
        let results = shortest_results(kept, threshold / 2);
        let news = lines
            .get(..at)
            .unwrap_or_default()
            .iter()
            .any(|line| !line.is_summary());
        (news || results.is_some()).then_some(Self { at, results })
    }
}

/// Returns whether calls and their results stay together if the context is cut before the message at
/// index `at`. Returns false if there is no such message.
pub fn is_legal(lines: &[Line], at: usize) -> bool {
    lines
        .get(at)
        .is_some_and(|line| line.body.role != MessageRole::ToolResult)
}

/// Returns the length in characters to which tool results have to be shortened: an equal share of
/// `room` tokens for each result, but at least [`SHORTEST`]. Returns `None` if the kept messages
/// fit into `room` tokens, or if no result is longer than that length.
fn shortest_results(kept: &[Line], room: u64) -> Option<usize> {
    let size: u64 = kept.iter().map(|line| line.tokens).sum();
    let results = || {
        kept.iter()
            .flat_map(|line| &line.body.content)
            .filter_map(result_text)
    };
    let share = usize::try_from(room * 4).unwrap_or(usize::MAX) / results().count().max(1);
    let length = share.max(SHORTEST);
    (size > room && results().any(|text| is_longer(text, length))).then_some(length)
}

fn result_text(part: &Part) -> Option<&str> {
    match part {
        Part::ToolResult { text, .. } => Some(text),
        Part::Text { .. }
        | Part::Thinking { .. }
        | Part::ToolCall { .. }
        | Part::Image { .. }
        | Part::File { .. } => None,
    }
}

fn is_longer(text: &str, length: usize) -> bool {
    text.len() > length && text.chars().nth(length).is_some()
}

/// Returns the message with its tool results shortened to `length` characters, or `None` if no
/// result is longer.
pub fn shorten(body: &MessageBody, length: usize) -> Option<MessageBody> {
    if !body
        .content
        .iter()
        .filter_map(result_text)
        .any(|text| is_longer(text, length))
    {
        return None;
    }
    let mut shorter = body.clone();
    for part in &mut shorter.content {
        if let Part::ToolResult { text, .. } = part
            && is_longer(text, length)
        {
            *text = shortened(text, length);
        }
    }
    Some(shorter)
}

/// Returns the beginning and the end of a text, with a note between them that says how many
/// characters are cut. A text of at most `length` characters is returned unchanged.
pub(super) fn shortened(text: &str, length: usize) -> String {
    let (head, tail) = (length - length / 4, length / 4);
    let count = text.chars().count();
    if count <= length {
        return text.into();
    }
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!(
        "{start}\n[… {} characters cut to fit the context …]\n{end}",
        count - head - tail
    )
}

/// Returns the estimated number of tokens in the messages that remain after a cut.
pub(super) fn kept_tokens(lines: &[Line], cut: Cut) -> u64 {
    let kept = lines.get(cut.at..).unwrap_or_default().iter();
    kept.map(
        |line| match cut.results.and_then(|length| shorten(&line.body, length)) {
            Some(shorter) => tokens_of(&shorter),
            None => line.tokens,
        },
    )
    .sum()
}
