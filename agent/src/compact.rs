//! The decisions of compaction, without I/O: when the context is too long, and which part of it a
//! summary replaces.

use std::{fmt::Write as _, sync::Arc};

use planck_common::{
    Seq,
    message::{Custom, MessageBody, MessageMetadata, MessageRole, Part},
};

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

// Chooses where to cut a context. A cut keeps calls with their results, keeps the latest messages,
// and shortens very long results.

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
fn shortened(text: &str, length: usize) -> String {
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
fn kept_tokens(lines: &[Line], cut: Cut) -> u64 {
    let kept = lines.get(cut.at..).unwrap_or_default().iter();
    kept.map(
        |line| match cut.results.and_then(|length| shorten(&line.body, length)) {
            Some(shorter) => tokens_of(&shorter),
            None => line.tokens,
        },
    )
    .sum()
}

// The prompt of the local compactor, and the parts that a summary quotes word for word.

const INSTRUCTIONS: &str = "\
You summarise the earlier part of a conversation between a user and an agent that works with tools. The summary replaces that part: the agent goes on with it and with the latest messages, and sees nothing else of it.
Write:
1. Finished work and the decisions taken, in brief.
2. The current work: what is being done, how far it is, what comes next, in full.
3. The user's latest requests and corrections, in full, in their own words.
4. Key facts: names, numbers, ids, errors and what they meant, commands that work.
5. Paths of files that matter, and what is in them or was changed.
6. Constraints and wishes that still hold.
Take over what still counts of an earlier summary. Do not answer the conversation, do not call tools, do not invent. Write the summary and nothing else.";

/// The maximum length, in characters, of a tool result or of a call's arguments in the prompt.
const QUOTED: usize = 2_000;

/// The one model call of the local compactor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub system: &'static str,
    pub user: String,
}

impl Material {
    /// Returns the request for a summary of the older part. Each message is shortened to an equal
    /// share of half of the context window, but at least to 200 characters.
    pub fn request(&self) -> Request {
        let older = self.older();
        let room = usize::try_from(self.context_window.saturating_mul(2)).unwrap_or(usize::MAX);
        let share = room / older.len().max(1);
        let mut user = String::from("<conversation>\n");
        for line in older {
            user.push_str(&shortened(&written(line), share.max(200)));
        }
        user.push_str("</conversation>\n\nWrite the summary.");
        Request {
            system: INSTRUCTIONS,
            user,
        }
    }
}

fn written(line: &Line) -> String {
    let mut text = format!("<{}>\n", speaker(&line.body));
    for part in &line.body.content {
        write_part(&mut text, part);
    }
    text.push_str("</message>\n");
    text
}

fn speaker(body: &MessageBody) -> &'static str {
    match (body.role, &body.custom) {
        (MessageRole::User, _) => "message from=\"user\"",
        (MessageRole::Assistant, _) => "message from=\"agent\"",
        (MessageRole::ToolResult, _) => "message from=\"tools\"",
        (MessageRole::Custom, Some(Custom::Summary)) => "message from=\"earlier summary\"",
        (MessageRole::Custom, Some(Custom::AgentMessage)) => "message from=\"another agent\"",
        (MessageRole::Custom, Some(Custom::Other(_)) | None) => "message from=\"runtime\"",
    }
}

fn write_part(text: &mut String, part: &Part) {
    let _ = match part {
        Part::Text { text: said, .. } => writeln!(text, "{said}"),
        Part::Thinking { .. } => Ok(()),
        Part::ToolCall { name, args, .. } => {
            writeln!(text, "calls {name} with {}", shortened(args.get(), QUOTED))
        }
        Part::ToolResult {
            text: result,
            error,
            ..
        } => {
            writeln!(
                text,
                "{}: {}",
                if *error { "error" } else { "result" },
                shortened(result, QUOTED)
            )
        }
        Part::Image { mime, .. } => writeln!(text, "[image, {mime}]"),
        Part::File { mime, name, .. } => writeln!(
            text,
            "[file {}, {mime}]",
            name.as_deref().unwrap_or("without name")
        ),
    };
}

/// Returns the content of a summary message: the text, followed by the latest input word for word
/// if no kept message is an input. If `older` has no input either, repeats the quote of the earlier
/// summary.
fn quote(summary: &str, older: &[Line], kept: &[Line]) -> Vec<Part> {
    let mut content = vec![Part::text(summary)];
    if kept.iter().any(is_input) {
        return content;
    }
    match older.iter().rev().find(|line| is_input(line)) {
        Some(line) => {
            content.push(Part::text("\n\nThe latest input, word for word:\n\n"));
            content.extend(line.body.content.iter().cloned());
        }
        None => content.extend(earlier_quote(older)),
    }
    content
}

/// Returns the parts that an earlier summary quotes, which follow its own text.
fn earlier_quote(older: &[Line]) -> impl Iterator<Item = Part> {
    older
        .iter()
        .filter(|line| line.is_summary())
        .flat_map(|line| line.body.content.iter().skip(1).cloned())
}

fn is_input(line: &Line) -> bool {
    line.body.role == MessageRole::User || line.body.custom == Some(Custom::AgentMessage)
}

// Checks a compactor's answer, and makes the replacement for the older part of the context.

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

#[cfg(test)]
mod tests;
