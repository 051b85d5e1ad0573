//! The texts by which a person recognises a session in a list.

use planck_common::{
    command::{MOST_TITLE, SessionActivity, SessionRow},
    event::{TurnEnd, TurnError, TurnOutcome},
    message::{MessageBody, MessageRole, text_of},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::SessionRecord;

/// The number of rows at each end of the orchestrator's log in which its first prompt and its last
/// answer are searched. Usually they are the third and the third to last one.
pub const ROWS: u32 = 64;
/// The number of characters of the body with the first prompt that are read. An image may follow.
pub const PROMPT: u32 = 4_096;
/// The number of characters of other bodies that are read. What a longer body says is left out.
pub const BODY: u32 = 65_536;
/// The maximum number of characters of a text in a row of the list.
const TEXT: usize = MOST_TITLE;

/// The bodies of rows of the orchestrator, as far as they were read.
#[derive(Debug, Clone, Copy, Default)]
pub struct PreviewBodies<'a> {
    /// The first visible message of a user.
    pub prompt: Option<&'a str>,
    /// The last visible message of the model with a text.
    pub answer: Option<&'a str>,
    /// The end of the last turn, if it failed.
    pub end: Option<&'a str>,
}

/// The members of a session's row in a list that its record does not have.
#[derive(Debug)]
pub struct SessionPreview {
    pub activity: SessionActivity,
    pub first_prompt: Option<String>,
    pub last_line: Option<String>,
    pub failure: Option<String>,
}

impl SessionPreview {
    pub fn of(activity: SessionActivity, bodies: PreviewBodies<'_>) -> Self {
        let is_failed = activity == SessionActivity::Failed;
        Self {
            activity,
            first_prompt: bodies.prompt.and_then(first_text),
            last_line: bodies.answer.and_then(last_line),
            failure: bodies.end.filter(|_| is_failed).and_then(failure),
        }
    }
}

/// Returns the first text of a message, of whose body only the beginning may be known. If the body is
/// cut, the cut is within a string: the text itself, or the bytes of an image after it.
fn first_text(body: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Said {
        content: Vec<SaidPart>,
    }
    #[derive(Deserialize)]
    struct SaidPart {
        #[serde(default)]
        r#type: String,
        #[serde(default)]
        text: String,
    }
    // The cut may split an escape, which has at most 12 characters: two surrogates.
    let ends = body.char_indices().rev().take(12).map(|(end, _)| end);
    let said = serde_json::from_str::<Said>(body).ok().or_else(|| {
        let mut ends = std::iter::once(body.len()).chain(ends);
        ends.find_map(|end| serde_json::from_str(&format!("{}\"}}]}}", body.get(..end)?)).ok())
    })?;
    let mut texts = said.content.iter().filter(|part| part.r#type == "text");
    texts.find_map(|part| one_line(&part.text))
}

/// Returns the last line of a message of a model, if possible one with a word instead of the end of a
/// block of code.
fn last_line(body: &str) -> Option<String> {
    let message: MessageBody = serde_json::from_str(body).ok()?;
    let is_answer = message.role == MessageRole::Assistant;
    let text = is_answer.then(|| text_of(&message.content))?;
    let lines = || text.lines().rev();
    let with_word = lines().find(|line| line.contains(char::is_alphanumeric));
    with_word.map_or_else(|| lines().find_map(one_line), one_line)
}

/// Returns why a turn failed, from the body of the event that ended it.
fn failure(body: &str) -> Option<String> {
    if let Ok(error) = serde_json::from_str::<TurnError>(body) {
        return one_line(&error.reason);
    }
    let end: TurnEnd = serde_json::from_str(body).ok()?;
    match end.outcome {
        TurnOutcome::Limit => Some(match end.limit {
            Some(limit) => format!("the turn ended at the limit `{limit}`"),
            None => "the turn ended at a limit".into(),
        }),
        TurnOutcome::Truncated => Some("the model's limit cut the answer off".into()),
        TurnOutcome::Completed | TurnOutcome::Aborted => None,
    }
}

/// Joins the lines of a text and cuts it. Returns `None` if it has no word.
pub fn one_line(text: &str) -> Option<String> {
    let mut line = String::new();
    // A character takes at most four bytes.
    for word in text.split_whitespace() {
        if line.len() > TEXT * 4 {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if let Some((end, _)) = line.char_indices().nth(TEXT) {
        line.truncate(end);
        line.push('…');
    }
    Some(line).filter(|line| !line.is_empty())
}

/// The key of a session's metadata with its title.
const TITLE: &str = "title";

impl SessionRecord {
    /// Returns the title that a person gave the session, or the program that started it.
    pub fn title(&self) -> Option<String> {
        let title = self.metadata.get(TITLE).and_then(Value::as_str);
        title.and_then(one_line)
    }

    /// Returns the metadata of the session with another title, or with none.
    pub fn with_title(&self, title: Option<&str>) -> Map<String, Value> {
        let mut metadata = self.metadata.clone();
        match title {
            Some(title) => drop(metadata.insert(TITLE.into(), title.into())),
            None => drop(metadata.remove(TITLE)),
        }
        metadata
    }

    /// Converts the record to its form in lists.
    pub(crate) fn row(self, preview: SessionPreview) -> SessionRow {
        SessionRow {
            title: self.title(),
            id: self.id,
            name: self.name,
            state: self.state,
            activity: preview.activity,
            owner: self.owner,
            agents: self.agents,
            workspace: self.spec.workspace,
            dir: Some(self.spec.dir),
            created_at: self.created_at,
            updated_at: self.updated_at,
            team: self.spec.team,
            cost_usd: self.totals.cost_usd,
            first_prompt: preview.first_prompt,
            last_line: preview.last_line,
            failure: preview.failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_text_of_a_body_that_is_cut_is_read() {
        let body = r#"{"role":"user","content":[{"type":"text","text":"say\n \"\ud83d\ude00\" twice"},{"type":"image","mime":"image/png","data":"AAAA"}]}"#;
        let text = "say \"😀\" twice";
        assert_eq!(first_text(body).as_deref(), Some(text));
        let image = body.find("AAAA").unwrap();
        for end in image..image + 4 {
            assert_eq!(first_text(&body[..end]).as_deref(), Some(text), "{end}");
        }
        let (first, last) = (body.find("ay").unwrap(), body.find(" twice").unwrap());
        for end in first..last {
            let cut = first_text(&body[..end]).unwrap_or_else(|| panic!("{}", &body[..end]));
            assert!(text.starts_with(&cut), "{cut}");
        }
        for nothing in [
            "",
            "nonsense",
            r#"{"role":"user","content":[]}"#,
            r#"{"role":"user","content":[{"type":"text","text":" "}]}"#,
        ] {
            assert_eq!(first_text(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn the_end_of_a_block_of_code_is_no_last_line() {
        let line = |text: &str| {
            let content = serde_json::json!([{"type": "text", "text": text}]);
            let body = serde_json::json!({"role": "assistant", "content": content});
            last_line(&body.to_string())
        };
        let lines = ["so\n```\nlet it = 1;\n```\n", "✓\n\n", "\n"].map(line);
        let expected = [Some("let it = 1;"), Some("✓"), None];
        assert_eq!(lines.each_ref().map(Option::as_deref), expected);
    }

    #[test]
    fn texts_are_one_line_and_bounded() {
        assert_eq!(one_line(" a\n\tb ").as_deref(), Some("a b"));
        let long = one_line(&"ä".repeat(10_000)).unwrap();
        assert_eq!(long.chars().count(), TEXT + 1);
        assert!(long.ends_with("ä…"));
    }
}
