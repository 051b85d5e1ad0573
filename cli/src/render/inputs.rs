//! Renders the messages that an agent received from the user, another agent or the runtime.

use std::collections::HashMap;

use planck_common::{
    InputId,
    event::{Event, InputKind},
    message::{Custom, Message, MessageRole, Part, text_of},
};

use super::style::{Paint, Style, one_line};
use planck_host::terminal::Drawing;

#[derive(Debug, Default)]
pub struct InputLines {
    /// The kinds of the inputs that opened turns. Rendering the message of an agent removes its
    /// entry.
    kinds: HashMap<InputId, InputKind>,
    /// The prompt that the user has just typed, which is not shown again.
    pub own: Option<InputId>,
    /// The name of the user. Prompts of others are shown with the names of their authors.
    pub reader: Option<String>,
}

impl InputLines {
    pub fn line(&mut self, event: &Event, style: Style) -> Option<Drawing> {
        if let Event::TurnStart(start) = event {
            self.kinds.extend(
                start
                    .inputs
                    .iter()
                    .map(|input| (input.id.clone(), input.kind)),
            );
        }
        let Event::Message(saved) = event else {
            return None;
        };
        let (paint, text) = self.message(&saved.message)?;
        Some(style.paint(
            paint,
            &format!("  {}", one_line(&text, style.width.saturating_sub(2))),
        ))
    }

    fn message(&mut self, message: &Message) -> Option<(Paint, String)> {
        let inputs = &message.metadata.inputs;
        if self
            .own
            .as_ref()
            .is_some_and(|own| inputs.as_slice() == std::slice::from_ref(own))
        {
            return None;
        }
        match (message.role, &message.custom) {
            (MessageRole::User, _) => {
                let by = message.metadata.by.as_ref();
                let other = by.filter(|by| self.reader.as_ref() != Some(by));
                let author = other.map_or(String::new(), |by| format!("{by} "));
                let text = text_of(&message.content);
                Some((Paint::Strong, format!("{author}› {text}")))
            }
            (MessageRole::Custom, Some(Custom::AgentMessage)) => {
                let kind = message
                    .metadata
                    .inputs
                    .iter()
                    .find_map(|input| self.kinds.remove(input));
                let who = message
                    .metadata
                    .from
                    .as_ref()
                    .map_or("the runtime", |from| from.name.as_str());
                let text = text_of(without_sender(&message.content));
                Some((Paint::Dim, format!("← {}: {text}", introduced(kind, who))))
            }
            (MessageRole::Custom | MessageRole::Assistant | MessageRole::ToolResult, _) => None,
        }
    }
}

fn introduced(kind: Option<InputKind>, who: &str) -> String {
    match kind {
        Some(InputKind::Task) => format!("task from {who}"),
        Some(InputKind::Question) => format!("{who} asks"),
        Some(InputKind::Response) => format!("{who} answers"),
        Some(InputKind::Note | InputKind::Prompt) | None => who.into(),
    }
}

/// Returns the content without its first part if that part only tells the model who the sender is.
fn without_sender(content: &[Part]) -> &[Part] {
    match content {
        [Part::Text { text, .. }, rest @ ..]
            if !rest.is_empty() && text.starts_with('[') && text.ends_with("]\n\n") =>
        {
            rest
        }
        all => all,
    }
}
