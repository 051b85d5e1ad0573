//! Writes a segment as a response, and as the events of its stream. The number of an event depends
//! only on the log, so every front gives it the same one, and a client can continue a stream at any
//! front. The number of a piece of text is made of the number of the try, that of the part, and the
//! count of characters up to the end of the piece. So numbers rise, but not by one.

use serde_json::{Map, Value, json};

use super::object::{Item, ItemKind};
use crate::openai::{
    ids::ToolCallId,
    opening::OpenedResponse,
    segment::{EndKind, SegmentEnd, SegmentEvent, SegmentPieceKind},
};

pub use super::object::Response;
use super::object::{ConversationRef, MoreFields, error, incomplete, unused, usage};

/// The number of bits for the characters of a part, and for the parts of a try. 21 bits are left
/// for the tries, because the numbers of JavaScript are exact up to 53 bits.
const CHARACTERS: u32 = 22;
const PARTS: u32 = 10;
/// The place of the first call among the parts of a try, and that of the end.
const CALLS: usize = 512;
const END: usize = 1_023;

/// Returns the number of the first event of a part.
fn number(stage: u64, part: usize) -> u64 {
    let part = u64::try_from(part.min(END)).unwrap_or_default();
    stage << (CHARACTERS + PARTS) | part << CHARACTERS
}

fn length(text: &str) -> u64 {
    u64::try_from(text.chars().count()).unwrap_or(u64::MAX)
}

/// An event with its number.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberedEvent {
    pub number: u64,
    pub event: Value,
}

/// The fields of a request that its response repeats.
#[derive(Debug, Default)]
pub struct Echo {
    pub fields: Map<String, Value>,
    pub metadata: Map<String, Value>,
}

/// Builds a response from the events of its segment.
pub struct ResponseWriter {
    id: String,
    model: String,
    place: ToolCallId,
    created_at: i64,
    echo: Echo,
    items: Vec<Item>,
    /// The number of items that are saved. The items after them may become void.
    saved: usize,
    /// The number of items that became void. Clients that read along have them, so their indices are
    /// not used again.
    voided: usize,
    /// Whether the last item is not complete.
    is_open: bool,
    calls: usize,
    status: &'static str,
    end: Option<SegmentEnd>,
}

impl ResponseWriter {
    pub fn new(opened: &OpenedResponse, created_at: i64, echo: Echo) -> Self {
        Self {
            id: opened.id.to_string(),
            model: opened.model.clone(),
            place: ToolCallId {
                session: opened.id.session.clone(),
                place: opened.id.place,
                call: planck_common::CallId::mint(),
            },
            created_at,
            echo,
            items: Vec::new(),
            saved: 0,
            voided: 0,
            is_open: false,
            calls: 0,
            status: "queued",
            end: None,
        }
    }

    /// Returns whether the response is complete.
    pub fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the first two events.
    pub fn first(&mut self) -> Vec<NumberedEvent> {
        self.status = "in_progress";
        let kinds = ["response.created", "response.in_progress"];
        let events = kinds.iter().zip(0..).map(|(kind, number)| NumberedEvent {
            number,
            event: json!({"type": kind, "sequence_number": number, "response": self.response()}),
        });
        events.collect()
    }

    /// Returns the events of the stream for an event of the segment.
    pub fn write(&mut self, event: SegmentEvent) -> Vec<NumberedEvent> {
        let mut out = Vec::new();
        match event {
            SegmentEvent::Began { at } => {
                self.status = "in_progress";
                // A later turn of the answer has items before it.
                if self.next_index() == 0 {
                    self.created_at = at.millis() / 1_000;
                }
            }
            SegmentEvent::Piece { kind, place, text } => {
                let kind = match kind {
                    SegmentPieceKind::Text => ItemKind::Message,
                    SegmentPieceKind::Reasoning => ItemKind::Reasoning,
                };
                let first = number(place.stage, place.part);
                self.piece(kind, first, &text, &mut out);
            }
            SegmentEvent::Void => {
                self.close("incomplete", &mut out);
                self.voided += self.items.len().saturating_sub(self.saved);
                self.items.truncate(self.saved);
            }
            SegmentEvent::Saved => {
                self.close("completed", &mut out);
                self.saved = self.items.len();
            }
            SegmentEvent::Called {
                stage,
                call_id,
                name,
                args,
            } => {
                let id = ToolCallId {
                    call: call_id,
                    ..self.place.clone()
                };
                self.called(stage, &id, name, args, &mut out);
            }
            SegmentEvent::Waits { id, title } => {
                let waits = format!("{title} (`planck answer {id}`)");
                self.echo
                    .metadata
                    .insert("planck_waits".to_owned(), json!(waits));
            }
            SegmentEvent::End(end) => self.finish(end, &mut out),
        }
        out
    }

    fn push(&self, out: &mut Vec<NumberedEvent>, number: u64, kind: &str, fields: &Value) {
        let mut event = json!({"type": kind, "sequence_number": number});
        if let (Some(event), Some(fields)) = (event.as_object_mut(), fields.as_object()) {
            event.extend(fields.clone());
        }
        out.push(NumberedEvent { number, event });
    }

    /// Returns the index of the next item.
    fn next_index(&self) -> usize {
        self.voided + self.items.len()
    }

    fn piece(&mut self, kind: ItemKind, first: u64, text: &str, out: &mut Vec<NumberedEvent>) {
        let is_same = self.items.last().is_some_and(|item| item.first == first);
        if !is_same || !self.is_open {
            self.close("completed", out);
            self.open(kind, first, out);
        }
        let index = self.next_index().saturating_sub(1);
        let Some(item) = self.items.last_mut() else {
            return;
        };
        item.text.push_str(text);
        let number = first + 1 + length(&item.text);
        let mut fields =
            json!({"item_id": item.id, "output_index": index, "content_index": 0, "delta": text});
        if kind == ItemKind::Message
            && let Some(fields) = fields.as_object_mut()
        {
            fields.insert("logprobs".to_owned(), json!([]));
        }
        self.push(out, number, kind.delta(), &fields);
    }

    fn open(&mut self, kind: ItemKind, first: u64, out: &mut Vec<NumberedEvent>) {
        let name = self.id.trim_start_matches("resp_");
        let item = Item::new(kind, first, name);
        let index = self.next_index();
        let added = json!({"output_index": index, "item": item.written("in_progress")});
        self.push(out, first, "response.output_item.added", &added);
        if kind != ItemKind::Call {
            let part = json!({"item_id": item.id, "output_index": index, "content_index": 0, "part": item.part()});
            self.push(out, first + 1, "response.content_part.added", &part);
        }
        self.items.push(item);
        self.is_open = true;
    }

    /// Ends the open item.
    fn close(&mut self, status: &'static str, out: &mut Vec<NumberedEvent>) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let index = self.next_index().saturating_sub(1);
        let Some(item) = self.items.last_mut() else {
            return;
        };
        item.status = status;
        let item = item.clone();
        let mut number = item.first + 2 + length(&item.text);
        let at = json!({"item_id": item.id, "output_index": index});
        let with = |key: &str, value: Value| {
            let mut fields = at.clone();
            if let Some(fields) = fields.as_object_mut() {
                fields.insert(key.to_owned(), value);
                fields.insert("content_index".to_owned(), json!(0));
            }
            fields
        };
        if item.kind != ItemKind::Call {
            let mut done = with("text", json!(item.text));
            if let Some(done) = done.as_object_mut()
                && item.kind == ItemKind::Message
            {
                done.insert("logprobs".to_owned(), json!([]));
            }
            self.push(out, number, item.kind.done(), &done);
            number += 1;
            let part = with("part", json!(item.part()));
            self.push(out, number, "response.content_part.done", &part);
            number += 1;
        }
        let done = json!({"output_index": index, "item": item.written(status)});
        self.push(out, number, "response.output_item.done", &done);
    }

    fn called(
        &mut self,
        stage: u64,
        id: &ToolCallId,
        name: String,
        args: String,
        out: &mut Vec<NumberedEvent>,
    ) {
        self.close("completed", out);
        let first = number(stage, (CALLS + self.calls).min(END - 1));
        self.calls += 1;
        let index = self.next_index();
        let mut item = Item::new(ItemKind::Call, first, self.id.trim_start_matches("resp_"));
        item.call_id = id.to_string();
        item.name = name;
        let added = json!({"output_index": index, "item": item.written("in_progress")});
        self.push(out, first, "response.output_item.added", &added);
        item.text = args;
        item.status = "completed";
        let at = json!({"item_id": item.id, "output_index": index, "delta": item.text});
        self.push(out, first + 1, ItemKind::Call.delta(), &at);
        let done = json!({"item_id": item.id, "output_index": index, "name": item.name, "arguments": item.text});
        self.push(out, first + 2, ItemKind::Call.done(), &done);
        let whole = json!({"output_index": index, "item": item.written("completed")});
        self.push(out, first + 3, "response.output_item.done", &whole);
        self.items.push(item);
        self.saved = self.items.len();
    }

    fn finish(&mut self, end: SegmentEnd, out: &mut Vec<NumberedEvent>) {
        let is_done = matches!(end.how, EndKind::Done | EndKind::Called);
        self.close(if is_done { "completed" } else { "incomplete" }, out);
        let (status, kind) = match &end.how {
            EndKind::Done | EndKind::Called => ("completed", "response.completed"),
            EndKind::Cut | EndKind::Refused => ("incomplete", "response.incomplete"),
            EndKind::Aborted => ("cancelled", "response.incomplete"),
            EndKind::Taken | EndKind::Failed { .. } => ("failed", "response.failed"),
        };
        self.status = status;
        let number = number(end.stage, END);
        self.end = Some(end);
        let response = json!({"response": self.response()});
        self.push(out, number, kind, &response);
    }

    /// Returns the response as far as it is known.
    pub fn response(&self) -> Response {
        let mut further = unused();
        further.extend(self.echo.fields.clone());
        Response {
            id: self.id.clone(),
            object: "response",
            created_at: self.created_at,
            completed_at: self.end.as_ref().map(|_| self.created_at),
            status: self.status,
            error: self.end.as_ref().and_then(error),
            incomplete_details: self.end.as_ref().and_then(incomplete),
            model: self.model.clone(),
            conversation: ConversationRef {
                id: self.place.session.clone(),
            },
            output: self
                .items
                .iter()
                .map(|item| item.written(item.status))
                .collect(),
            usage: self.end.as_ref().map(|end| usage(&end.usage)),
            more: MoreFields {
                metadata: self.echo.metadata.clone(),
                further,
            },
        }
    }
}

/// Returns the part of an event that a client has not received, whose last event had the number
/// `after`, or `None` if the client has it all.
pub fn rest(mut numbered: NumberedEvent, after: Option<u64>) -> Option<NumberedEvent> {
    let Some(after) = after else {
        return Some(numbered);
    };
    let missing = usize::try_from(numbered.number.checked_sub(after)?).unwrap_or(usize::MAX);
    if missing == 0 {
        return None;
    }
    // The characters of a delta of text are numbered one by one.
    let is_text = numbered.event.get("content_index").is_some();
    if let Some(Value::String(delta)) = numbered.event.get_mut("delta").filter(|_| is_text) {
        let known = delta.chars().count().saturating_sub(missing);
        *delta = delta.chars().skip(known).collect();
    }
    Some(numbered)
}

/// Returns the highest number that a client may have read if `last` is the last number that is
/// known.
pub fn unsaved(last: u64) -> u64 {
    let stage = last >> (CHARACTERS + PARTS);
    number(stage + 1, END)
}
