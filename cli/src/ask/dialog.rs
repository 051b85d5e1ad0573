//! Decides what the keys mean that a person presses about a wait. Only the key that the prompt names
//! allows a call. Everything else is a denial, or says again which keys there are.

use planck_common::{
    command::{Answer, WaitRow},
    wait::{WaitDecision, WaitKind, WaitScope},
};
use serde_json::value::RawValue;

use super::line::{KeyPress, LineInput, LineStep};
use crate::{
    permissions,
    render::{
        Style,
        style::{Paint, cut},
    },
    waits::value_of,
};
use planck_host::terminal::Drawing;

/// The questions about one wait, until there is an answer.
#[derive(Debug)]
pub struct Dialog {
    pub wait: WaitRow,
    /// The name that the answer carries.
    by: Option<String>,
    /// The arguments that a person has put in place of the model's.
    pub args: Option<Box<RawValue>>,
    /// The text of the last edit, if it is no JSON object.
    draft: Option<String>,
    entry: EntryMode,
}

/// The meaning of the next keys.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EntryMode {
    /// A single key.
    OneKey,
    /// The reason for a denial.
    Reason(LineInput),
    /// The answer to a question, or a new limit.
    Text(LineInput),
}

/// The next step of the dialog, after some keys.
#[derive(Debug)]
pub enum DialogStep {
    /// The prompt is drawn again.
    Prompt,
    /// This line is shown, and then the prompt.
    Say(String),
    /// The whole request and the keys are shown.
    Help,
    /// The request is shown again, with other arguments.
    Request,
    /// The editor opens with this text.
    Edit(String),
    Send(Box<Answer>),
    /// The person leaves, and the wait stays open.
    Leave,
}

impl Dialog {
    /// Returns the questions about a wait, or `None` if a person cannot answer it.
    pub fn of(wait: WaitRow, by: Option<String>) -> Option<Self> {
        let entry = match wait.kind {
            WaitKind::Approval | WaitKind::Change => EntryMode::OneKey,
            WaitKind::Question | WaitKind::Budget => EntryMode::Text(LineInput::default()),
            WaitKind::ClientTool => return None,
        };
        Some(Self {
            wait,
            by,
            args: None,
            draft: None,
            entry,
        })
    }

    /// Handles keys that arrived together. Where one key decides, several at once are unclear, for
    /// example a pasted text. Only an Enter may follow the key.
    pub fn press(&mut self, keys: &[KeyPress]) -> DialogStep {
        if self.entry == EntryMode::OneKey {
            return match keys {
                [] => DialogStep::Prompt,
                [KeyPress::EndOfInput] => DialogStep::Leave,
                [KeyPress::Char(key)] | [KeyPress::Char(key), KeyPress::Enter] => self.decide(*key),
                _ => self.unclear(),
            };
        }
        for key in keys {
            let step = self.typed(key);
            if !matches!(step, DialogStep::Prompt) {
                return step;
            }
        }
        DialogStep::Prompt
    }

    fn decide(&mut self, key: char) -> DialogStep {
        match key {
            'y' => self.send(WaitDecision::Allow, Parts::default()),
            'a' if self.covers_session() => {
                let scope = Some(WaitScope::Session);
                self.send(
                    WaitDecision::Allow,
                    Parts {
                        scope,
                        ..Parts::default()
                    },
                )
            }
            'n' => {
                self.entry = EntryMode::Reason(LineInput::default());
                DialogStep::Prompt
            }
            'e' if self.is_approval() => {
                DialogStep::Edit(self.draft.clone().unwrap_or_else(|| self.arguments()))
            }
            '?' => DialogStep::Help,
            _ => self.unclear(),
        }
    }

    fn arguments(&self) -> String {
        #[derive(serde::Deserialize)]
        struct CallRequest {
            args: Box<RawValue>,
        }
        let args = self.args.clone().or_else(|| {
            let request: CallRequest = serde_json::from_str(self.wait.request.get()).ok()?;
            Some(request.args)
        });
        args.map_or(String::new(), |args| args.get().to_owned())
    }

    /// Takes the arguments from an edited text.
    pub fn edited(&mut self, text: &str) -> DialogStep {
        let parsed = serde_json::from_str::<Box<RawValue>>(text.trim());
        let wrong = match parsed {
            Ok(args) if args.get().starts_with('{') => {
                (self.args, self.draft) = (Some(args), None);
                return DialogStep::Request;
            }
            Ok(_) => "the arguments must be a JSON object".to_owned(),
            Err(error) => format!("the arguments are no JSON: {error}"),
        };
        self.draft = Some(text.to_owned());
        DialogStep::Say(format!(
            "{wrong}; e opens them again, and nothing is changed"
        ))
    }

    fn typed(&mut self, key: &KeyPress) -> DialogStep {
        let (EntryMode::Reason(line) | EntryMode::Text(line)) = &mut self.entry else {
            return DialogStep::Prompt;
        };
        match line.apply(key) {
            LineStep::Changed => return DialogStep::Prompt,
            LineStep::Done => {}
            LineStep::EndOfInput => return self.end_of_input(),
        }
        let is_text = matches!(self.entry, EntryMode::Text(_));
        let next = if is_text {
            EntryMode::Text(LineInput::default())
        } else {
            EntryMode::OneKey
        };
        match std::mem::replace(&mut self.entry, next) {
            EntryMode::OneKey => DialogStep::Prompt,
            EntryMode::Reason(line) => self.deny(&line.text()),
            EntryMode::Text(line) => self.answer(line.text().trim()),
        }
    }

    /// Handles Ctrl-D: it goes back to the question, or leaves if there is no text yet.
    fn end_of_input(&mut self) -> DialogStep {
        match &self.entry {
            EntryMode::Text(line) if line.is_empty() => DialogStep::Leave,
            EntryMode::OneKey | EntryMode::Text(_) => DialogStep::Prompt,
            EntryMode::Reason(_) => {
                self.entry = EntryMode::OneKey;
                DialogStep::Prompt
            }
        }
    }

    fn answer(&self, text: &str) -> DialogStep {
        match (self.wait.kind, text) {
            (_, "") => self.unclear(),
            (_, "?") => DialogStep::Help,
            (_, "deny") | (WaitKind::Budget, "n") => self.deny(""),
            (WaitKind::Budget, limit) => self.raise(limit),
            (
                WaitKind::Approval | WaitKind::Question | WaitKind::ClientTool | WaitKind::Change,
                text,
            ) => {
                let options = self.wait.options.as_deref().unwrap_or_default();
                let number = text.parse::<usize>().ok();
                let option = number.and_then(|number| options.get(number.checked_sub(1)?));
                let text = option.map_or(text, String::as_str);
                match value_of(text, self.wait.schema.is_some()) {
                    Ok(value) => self.send(
                        WaitDecision::Answer,
                        Parts {
                            value: Some(value),
                            ..Parts::default()
                        },
                    ),
                    Err(error) => DialogStep::Say(error.to_string()),
                }
            }
        }
    }

    fn raise(&self, limit: &str) -> DialogStep {
        let number = limit
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite() && *number > 0.0);
        // JSON has fewer ways to write a number than Rust, such as `.5`.
        let value = number.and_then(|_| serde_json::from_str(limit).ok());
        match value {
            Some(value) => self.send(
                WaitDecision::Allow,
                Parts {
                    value: Some(value),
                    ..Parts::default()
                },
            ),
            None => DialogStep::Say(format!(
                "`{}` is no limit; type a number, such as 10, or n",
                cut(limit, 40)
            )),
        }
    }

    fn deny(&self, reason: &str) -> DialogStep {
        let reason = Some(reason.trim()).filter(|reason| !reason.is_empty());
        let reason = reason.map(Into::into);
        self.send(
            WaitDecision::Deny,
            Parts {
                reason,
                ..Parts::default()
            },
        )
    }

    fn send(&self, decision: WaitDecision, parts: Parts) -> DialogStep {
        let args = (decision == WaitDecision::Allow).then(|| self.args.clone());
        DialogStep::Send(Box::new(Answer {
            wait: self.wait.id.clone(),
            decision,
            args: args.flatten(),
            value: parts.value,
            reason: parts.reason,
            scope: parts.scope,
            digest: Some(self.wait.digest.clone()),
            by: self.by.clone(),
        }))
    }

    /// Returns whether the session can allow later calls like this one. The rule describes the
    /// model's arguments and not those that a person has put in their place.
    fn covers_session(&self) -> bool {
        self.wait.rule.is_some() && self.args.is_none()
    }

    fn is_approval(&self) -> bool {
        self.wait.kind == WaitKind::Approval
    }

    fn unclear(&self) -> DialogStep {
        DialogStep::Say(match self.wait.kind {
            WaitKind::Approval | WaitKind::Change => {
                format!("press one of {}", self.keys().join(", "))
            }
            WaitKind::Question | WaitKind::ClientTool => {
                "type an answer, or deny to give none".into()
            }
            WaitKind::Budget => "type the new limit, or n to end the turn".into(),
        })
    }

    fn keys(&self) -> Vec<&'static str> {
        let session = self.covers_session().then_some("a");
        let edits = self.is_approval().then_some("e");
        ["y"]
            .into_iter()
            .chain(session)
            .chain(["n"])
            .chain(edits)
            .chain(["?"])
            .collect()
    }

    /// Returns the lines that say what each key does.
    pub fn help(&self) -> Vec<String> {
        let leave = "Ctrl-C aborts the work. Ctrl-D leaves, and the question stays open.";
        let mut lines: Vec<String> = match self.wait.kind {
            WaitKind::Approval => {
                let rule = self.wait.rule.as_ref().filter(|_| self.covers_session());
                let session = rule.map(|rule| {
                    format!(
                        "a  allow it, and every later call of {}",
                        permissions::calls_of(rule)
                    )
                });
                ["y  allow this call".to_owned()]
                    .into_iter()
                    .chain(session)
                    .chain([
                        "n  deny it; the model reads your reason".into(),
                        "e  edit the arguments first".into(),
                    ])
                    .collect()
            }
            WaitKind::Question | WaitKind::ClientTool => {
                vec!["Type a number, or an answer of your own. deny gives no answer.".into()]
            }
            WaitKind::Budget => vec!["Type the new limit. n ends the turn.".into()],
            WaitKind::Change => vec![
                "y  keep the changes and go on".into(),
                "n  end the session's work; nothing is put back".into(),
            ],
        };
        lines.push(leave.into());
        lines
    }

    /// Draws the line at which the person types.
    pub fn prompt(&self, style: Style) -> Drawing {
        let label = match (&self.entry, self.wait.kind) {
            (EntryMode::OneKey, _) => self.one_key_label(),
            (EntryMode::Reason(_), _) => "why not? (Enter: no reason)".into(),
            (EntryMode::Text(_), WaitKind::Budget) => "new limit, or n".into(),
            (EntryMode::Text(_), _) => match self.wait.options.as_deref().unwrap_or_default().len()
            {
                0 => "your answer".into(),
                1 => "1, or your answer".into(),
                count => format!("1–{count}, or your answer"),
            },
        };
        let label = format!("  {label} › ");
        let room = style.width.saturating_sub(label.chars().count() + 1);
        let drawing = style.paint(Paint::Strong, &label);
        match &self.entry {
            EntryMode::OneKey => drawing,
            EntryMode::Reason(line) | EntryMode::Text(line) => {
                drawing + line.draw(room, style.in_place)
            }
        }
    }

    fn one_key_label(&self) -> String {
        let words = self.keys().into_iter().map(|key| match key {
            "y" => "y yes",
            "a" => "a for the session",
            "n" => "n no",
            "e" => "e edit",
            _ => "? help",
        });
        let words = words.collect::<Vec<_>>().join(" · ");
        match self.args {
            Some(_) => format!("allow with these arguments? {words}"),
            None if self.is_approval() => format!("allow? {words}"),
            None => format!("keep? {words}"),
        }
    }
}

/// The parts of an answer beside its decision.
#[derive(Default)]
struct Parts {
    value: Option<Box<RawValue>>,
    reason: Option<String>,
    scope: Option<WaitScope>,
}

#[cfg(test)]
mod tests;
