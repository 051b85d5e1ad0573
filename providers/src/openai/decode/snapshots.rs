//! Reads streams in which `message` stands in place of `delta`. A server may send one full message,
//! the next piece of the message in each chunk, or the whole message so far in each chunk.

use planck_agent::model::{Chunk, Failure};

use super::{ChatDelta, ChatReply, calls::CallPiece};
use crate::{
    answer_bounds::over,
    decode::garbled,
    lenient::{CallArguments, ContentPiece, LenientWord},
    openai::reasoning::ReasoningMember,
};

/// The maximum length of the text that is withheld while it is not known what a message means, in
/// bytes.
const MOST_HELD: usize = 64 << 10;

/// The maximum length of the arguments that are held until the end of the reply, in bytes.
const MOST_ARGS: usize = 8 << 20;

/// What has come in the messages of a stream.
#[derive(Debug, Default)]
pub struct Messages {
    /// What has come in `delta`. It does not count again.
    pub came: DeltaMembers,
    pub text: Growth,
    pub thinking: Growth,
    pub refusal: Growth,
    calls: Vec<CallPiece>,
}

/// The members of a delta that had content.
#[derive(Debug, Default)]
pub struct DeltaMembers {
    text: bool,
    thinking: bool,
    calls: bool,
}

impl DeltaMembers {
    pub fn note(&mut self, delta: &ChatDelta<'_>) {
        let is_text = |piece: &ContentPiece| matches!(piece, ContentPiece::Text(_));
        self.text |= delta.content.0.iter().any(is_text) || delta.refusal.0.is_some();
        self.thinking |= delta.reasoning_content.0.is_some()
            || delta.reasoning.0.is_some()
            || delta.reasoning_details.is_some()
            || !delta.content.0.iter().all(is_text);
        self.calls |= delta
            .tool_calls
            .as_ref()
            .is_some_and(|calls| !calls.is_empty());
    }

    pub fn any(&self) -> bool {
        self.text || self.thinking || self.calls
    }
}

impl Messages {
    /// Keeps the calls of a message until the reply ends, because a later message may repeat them
    /// with longer arguments.
    pub fn hold(&mut self, calls: Vec<CallPiece>) -> Result<(), Failure> {
        let repeats = self.calls.len() <= calls.len()
            && self.calls.iter().zip(&calls).all(|(old, new)| {
                old.id == new.id && old.index == new.index && json(new).starts_with(json(old))
            });
        if repeats {
            self.calls = calls;
        } else {
            self.calls.extend(calls);
        }
        if self
            .calls
            .iter()
            .map(|call| json(call).len())
            .sum::<usize>()
            > MOST_ARGS
        {
            return Err(over("has arguments of many MiB"));
        }
        Ok(())
    }

    pub fn take_calls(&mut self) -> Vec<CallPiece> {
        std::mem::take(&mut self.calls)
    }
}

impl ChatReply {
    /// Takes what is new in the message of a stream. Some servers send the whole message so far in
    /// each chunk, beside the delta or without one.
    pub(super) fn message(
        &mut self,
        message: ChatDelta<'_>,
        is_last: bool,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        let mut brought = DeltaMembers::default();
        brought.note(&message);
        if brought.any() {
            self.salvage(if self.messages.came.any() {
                "it sent `message` beside `delta`"
            } else {
                "it sent `message` in place of `delta`"
            });
        }
        let (text, thought) = split(message.content.0);
        let (reasoning_content, reasoning) = (message.reasoning_content, message.reasoning);
        let mut new = ChatDelta {
            extra_content: message.extra_content.filter(|_| !self.messages.came.any()),
            ..ChatDelta::default()
        };
        if !self.messages.came.thinking {
            // The details grow too, in a form that cannot be cut, so only the last ones count.
            new.reasoning_details = message.reasoning_details.filter(|_| is_last);
            let is_usual = reasoning_content.0.is_some();
            let named = reasoning_content.0.or(reasoning.0).unwrap_or_default();
            let is_listed = named.is_empty();
            let all = if is_listed { thought } else { named };
            let more = self.messages.thinking.take(all)?;
            match (is_listed, is_usual) {
                _ if more.is_empty() => {}
                (true, _) => new.content.0.push(ContentPiece::Thought(more)),
                (false, true) => new.reasoning_content = LenientWord(Some(more)),
                (false, false) => new.reasoning = LenientWord(Some(more)),
            }
        }
        if !self.messages.came.text {
            let more = self.messages.text.take(text)?;
            if !more.is_empty() {
                new.content.0.push(ContentPiece::Text(more));
            }
            let refusal = message.refusal.0.unwrap_or_default();
            self.facts.refused |= !refusal.is_empty();
            let more = self.messages.refusal.take(refusal)?;
            new.refusal = LenientWord(Some(more).filter(|more| !more.is_empty()));
        }
        self.delta(new, chunks);
        if !self.messages.came.calls {
            let calls = message.tool_calls.into_iter().flatten();
            let pieces = calls.map(|call| self.piece(call)).collect();
            self.messages.hold(pieces)?;
        }
        Ok(())
    }

    /// Adds what was withheld of messages until their end.
    pub(super) fn finish_messages(&mut self, chunks: &mut Vec<Chunk>) {
        let thought = self.messages.thinking.finish();
        if !thought.is_empty() {
            // The thought continues a part whose form is known.
            self.think(thought, ReasoningMember::ReasoningContent, chunks);
        }
        for text in [self.messages.text.finish(), self.messages.refusal.finish()] {
            if !text.is_empty() {
                self.say(text, chunks);
            }
        }
        for piece in self.messages.take_calls() {
            self.call(piece, chunks);
        }
    }
}

fn json(call: &CallPiece) -> &str {
    call.args.as_ref().map_or("", CallArguments::json)
}

/// Splits the content of a message into its text and its thoughts.
pub fn split(pieces: Vec<ContentPiece>) -> (String, String) {
    let (mut text, mut thinking) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            ContentPiece::Text(more) => text.push_str(&more),
            ContentPiece::Thought(more) => thinking.push_str(&more),
        }
    }
    (text, thinking)
}

/// One text of successive messages. Each message has the next piece of the text, or all of the text
/// so far. The second and third texts decide: a text that does not begin with the one before is a
/// piece, and a text that grows twice is the whole. One growth does not decide, because the piece
/// after `1` may be `10`. Until then, all texts but the first are withheld.
#[derive(Debug, Default)]
pub enum Growth {
    #[default]
    Nothing,
    Undecided {
        /// The length of the first text, which has been emitted.
        emitted: usize,
        last: String,
        /// The texts after the first one, joined.
        held: String,
        has_grown: bool,
    },
    Pieces,
    Whole {
        last: String,
    },
}

impl Growth {
    /// Takes the text of the next message, and returns the text that is new.
    pub fn take(&mut self, text: String) -> Result<String, Failure> {
        if text.is_empty() {
            return Ok(text);
        }
        let (now, new) = match std::mem::take(self) {
            Self::Nothing => {
                let now = Self::Undecided {
                    emitted: text.len(),
                    last: text.clone(),
                    held: String::new(),
                    has_grown: false,
                };
                (now, text)
            }
            Self::Undecided { last, held, .. } if !text.starts_with(&last) => {
                (Self::Pieces, held + &text)
            }
            Self::Undecided {
                emitted,
                last,
                held,
                has_grown,
            } => {
                let grows = text.len() > last.len();
                if grows && has_grown || held.len() + text.len() > MOST_HELD {
                    let new = text.get(emitted..).unwrap_or_default().to_owned();
                    (Self::Whole { last: text }, new)
                } else {
                    let now = Self::Undecided {
                        emitted,
                        held: held + &text,
                        last: text,
                        has_grown: has_grown || grows,
                    };
                    (now, String::new())
                }
            }
            Self::Pieces => (Self::Pieces, text),
            Self::Whole { last } => match text.strip_prefix(&last) {
                Some(new) => (Self::Whole { last: text.clone() }, new.to_owned()),
                None => {
                    let what = "the server's messages contradict each other";
                    return Err(garbled(what, "a later one does not begin with the earlier"));
                }
            },
        };
        *self = now;
        Ok(new)
    }

    /// Ends the text, and returns what was withheld. A text that only repeated itself or grew was
    /// the whole text.
    pub fn finish(&mut self) -> String {
        match std::mem::take(self) {
            Self::Undecided { emitted, last, .. } => {
                last.get(emitted..).unwrap_or_default().to_owned()
            }
            Self::Nothing | Self::Pieces | Self::Whole { .. } => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Vec<String> {
        let mut growth = Growth::default();
        let mut read: Vec<String> = texts
            .iter()
            .map(|text| growth.take((*text).to_owned()).unwrap())
            .collect();
        read.push(growth.finish());
        read.retain(|text| !text.is_empty());
        read
    }

    #[test]
    fn a_message_is_a_piece_or_the_whole_text_so_far() {
        for (texts, expected) in [
            (&["hello"][..], &["hello"][..]),
            (&["hello", "hello"], &["hello"]),
            (&["hel", "hello"], &["hel", "lo"]),
            (
                &["The", "The cat", "The cat", "The cat sat"],
                &["The", " cat sat"],
            ),
            (&["a", "ab", "abc", "abcd"], &["a", "bc", "d"]),
            (&["hel", "lo"], &["hel", "lo"]),
            (&["ha", "ha", " ha"], &["ha", "ha ha"]),
            (&["1", "10", " sheep"], &["1", "10 sheep"]),
            (&["", "hi", ""], &["hi"]),
        ] {
            assert_eq!(read(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn whole_texts_that_contradict_each_other_are_an_error() {
        let mut growth = Growth::default();
        for text in ["a", "ab", "abc"] {
            growth.take(text.to_owned()).unwrap();
        }
        assert!(growth.take("x".to_owned()).is_err());
    }

    #[test]
    fn little_is_withheld() {
        let mut growth = Growth::default();
        let text = "a".repeat(MOST_HELD / 2);
        let read: usize = (0..1_000)
            .map(|_| growth.take(text.clone()).unwrap().len())
            .sum();
        assert_eq!(read, text.len());
        assert!(matches!(growth, Growth::Whole { .. }));
    }
}
