//! Handles complete items. Content that did not arrive in deltas is taken from the complete item.

use planck_agent::model::{Chunk, Failure};

use super::{super::sealed, ItemParts, OpenItem, ResponsesReply};
use crate::{
    answer_bounds::MOST_PARTS,
    decode::PartKind,
    lenient::{CallArguments, arguments},
    responses::{
        MessagePhase, SealedReasoning,
        decode::{EventContent, ResponseItem},
    },
};

impl ResponsesReply {
    /// Handles a complete item, and adds the content that did not arrive in deltas.
    pub(super) fn done(
        &mut self,
        index: Option<usize>,
        item: ResponseItem,
        chunks: &mut Vec<Chunk>,
    ) -> Result<(), Failure> {
        let Some(kind) = item.kind() else {
            return Ok(());
        };
        let at = match self.find(index, kind) {
            Some(at) => at,
            None => self.begin(index, kind, &item, chunks)?,
        };
        match kind {
            PartKind::Text => self.end_message(at, item, chunks),
            PartKind::Thinking => self.end_reasoning(at, item, chunks),
            PartKind::Call => self.end_call(at, &item, chunks),
        }
        if let Some(item) = self.items.get_mut(at) {
            item.settled = true;
        }
        Ok(())
    }

    pub(super) fn end_message(&mut self, at: usize, item: ResponseItem, chunks: &mut Vec<Chunk>) {
        // An answer with more parts is refused.
        let contents = item.content.into_iter().flatten().take(MOST_PARTS + 1);
        for (piece, content) in contents.enumerate() {
            self.refused |= content.refusal.0.is_some();
            let has_come = match self.items.get(at).map(|item| &item.place) {
                Some(ItemParts::Message { pieces }) => {
                    pieces.iter().any(|(known, _)| *known == piece)
                }
                Some(ItemParts::Reasoning { .. } | ItemParts::Call { .. }) | None => true,
            };
            if let Some(text) = content.text.0.or(content.refusal.0).filter(|_| !has_come) {
                self.say(at, piece, text, chunks);
            }
        }
        let token = item
            .phase
            .0
            .and_then(|phase| sealed(&self.label, &MessagePhase { phase }));
        if let (
            Some(signature),
            Some(OpenItem {
                place: ItemParts::Message { pieces },
                ..
            }),
        ) = (token, self.items.get(at))
        {
            chunks.extend(pieces.iter().map(|(_, part)| Chunk::Signature {
                part: *part,
                signature: signature.clone(),
            }));
        }
    }

    pub(super) fn end_reasoning(&mut self, at: usize, item: ResponseItem, chunks: &mut Vec<Chunk>) {
        let Some(OpenItem {
            place:
                ItemParts::Reasoning {
                    part,
                    used,
                    is_shown,
                },
            ..
        }) = self.items.get_mut(at)
        else {
            return;
        };
        let part = *part;
        if !*used {
            let (summary, content) = (paragraphs(item.summary), paragraphs(item.content));
            let text = if summary.is_empty() {
                &content
            } else {
                &summary
            };
            *is_shown = summary.is_empty() && !content.is_empty();
            if !text.is_empty() {
                chunks.push(Chunk::Thinking {
                    part,
                    text: text.clone(),
                });
            }
        }
        let encrypted_content = item.encrypted_content.0;
        let goes_back = encrypted_content.is_some() || *is_shown;
        let thought = item.id.0.filter(|_| goes_back).map(|id| SealedReasoning {
            id,
            encrypted_content,
        });
        if let Some(signature) = thought.and_then(|thought| sealed(&self.label, &thought)) {
            chunks.push(Chunk::Signature { part, signature });
        }
    }

    pub(super) fn end_call(&mut self, at: usize, item: &ResponseItem, chunks: &mut Vec<Chunk>) {
        let Some(OpenItem {
            place: ItemParts::Call { part, has_args },
            ..
        }) = self.items.get_mut(at)
        else {
            return;
        };
        if !std::mem::replace(has_args, true) {
            let json = match item.arguments.as_deref().map(arguments) {
                Some(CallArguments::Text(text)) => text,
                Some(CallArguments::Json(json)) => {
                    self.deviations
                        .push("it sent arguments as JSON where text that holds JSON was due");
                    json
                }
                None => String::new(),
            };
            let json = if json.is_empty() {
                "{}".to_owned()
            } else {
                json
            };
            chunks.push(Chunk::Args { part: *part, json });
        }
    }
}

fn paragraphs(texts: Option<Vec<EventContent>>) -> String {
    texts
        .into_iter()
        .flatten()
        .filter_map(|one| one.text.0)
        .collect::<Vec<_>>()
        .join("\n\n")
}
