//! Shows the open text of an agent on a terminal whose lines can be overwritten.

use super::{
    markdown::Markdown,
    prose::Prose,
    style::{Paint, Style},
};
use planck_host::terminal::Drawing;

/// The text that is shown at the moment: an answer or what the model thinks.
#[derive(Debug)]
pub struct LiveText {
    answer: Answer,
    thoughts: Prose,
    /// Whether the open text is what the model thinks.
    is_thinking: bool,
}

/// The way in which answers are shown.
#[derive(Debug)]
enum Answer {
    Rendered(Markdown),
    /// Without colours, as it was written.
    Written(Prose),
}

impl LiveText {
    pub fn new(style: Style) -> Self {
        Self {
            answer: match style.colour {
                true => Answer::Rendered(Markdown::new(style)),
                false => Answer::Written(Prose::new(style, None)),
            },
            thoughts: Prose::new(style, Some(Paint::Dim)),
            is_thinking: false,
        }
    }

    /// Adds text. Before the other kind of text is added, [`Self::finish`] is called.
    pub fn push(&mut self, thinking: bool, text: &str) -> Drawing {
        self.is_thinking = thinking;
        match &mut self.answer {
            _ if thinking => self.thoughts.push(text),
            Answer::Rendered(markdown) => markdown.push(text),
            Answer::Written(prose) => prose.push(text),
        }
    }

    /// Draws a line above the part of the open text that is not complete.
    pub fn interject(&mut self, line: &Drawing) -> Drawing {
        match &mut self.answer {
            _ if self.is_thinking => self.thoughts.interject(line),
            Answer::Rendered(markdown) => markdown.interject(line),
            Answer::Written(prose) => prose.interject(line),
        }
    }

    /// Draws the rest of the open text.
    pub fn finish(&mut self) -> Drawing {
        match &mut self.answer {
            _ if self.is_thinking => self.thoughts.finish(),
            Answer::Rendered(markdown) => markdown.finish(),
            Answer::Written(prose) => prose.finish(),
        }
    }
}
