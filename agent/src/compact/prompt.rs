//! The prompt of the local compactor, and the parts that a summary quotes word for word.

use std::fmt::Write as _;

use planck_common::message::{Custom, MessageBody, MessageRole, Part};

use super::{Line, Material, cut::shortened};

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

pub(super) fn written(line: &Line) -> String {
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
pub fn quote(summary: &str, older: &[Line], kept: &[Line]) -> Vec<Part> {
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
