//! The text of the replies that are being streamed, for clients that join in their middle.

use std::collections::{BTreeMap, HashMap};

use planck_common::{
    AgentId,
    envelope::Envelope,
    event::{Delta, Event, EventKind, json},
};
use serde_json::value::RawValue;

/// The maximum size of the texts in bytes. Any user who may publish can send deltas, so further
/// text is left to the saved messages.
pub(super) const ROOM: usize = 8 << 20;
/// The approximate size of a part without its text.
const PART: usize = 512;

/// The epoch, turn and number of a request.
type RequestPlace = (i64, u32, u32);

#[derive(Debug, Default)]
pub struct RunningReplies {
    agents: HashMap<AgentId, RunningReply>,
    /// The size of all parts in bytes.
    size: usize,
}

#[derive(Debug)]
struct RunningReply {
    request: RequestPlace,
    parts: BTreeMap<usize, RunningPart>,
}

#[derive(Debug)]
struct RunningPart {
    /// The latest delta, which lends its fields to a delta with the whole text.
    latest: Envelope,
    text: String,
    /// The number of Unicode scalar values in `text`.
    chars: usize,
}

fn place(event: &Envelope) -> RequestPlace {
    (event.epoch, event.turn, event.request)
}

impl RunningReplies {
    /// Takes a live event. A follower returns deltas in order and without gaps.
    pub fn live(&mut self, event: &Envelope) {
        let Some(Ok(Event::TextDelta(delta) | Event::ThinkingDelta(delta))) = event.event() else {
            return;
        };
        let reply = self.agents.get(&event.agent_id);
        if reply.is_some_and(|reply| reply.request != place(event)) {
            self.forget(&event.agent_id);
        }
        if self.size + PART + delta.text.len() > ROOM {
            return;
        }
        let reply = self.agents.entry(event.agent_id.clone());
        let reply = reply.or_insert_with(|| RunningReply {
            request: place(event),
            parts: BTreeMap::new(),
        });
        self.size += reply.add(event, &delta);
    }

    /// Takes a durable event, which may replace the reply of its agent.
    pub fn durable(&mut self, event: &Envelope) {
        let is_over = match EventKind::find(&event.kind) {
            Some(EventKind::TurnEnd | EventKind::Error | EventKind::AgentStopped) => true,
            Some(_) | None => event.is_reply(),
        };
        let is_older = |reply: &RunningReply| reply.request <= place(event);
        if is_over && self.agents.get(&event.agent_id).is_some_and(is_older) {
            self.forget(&event.agent_id);
        }
    }

    pub fn forget(&mut self, agent: &AgentId) {
        if let Some(reply) = self.agents.remove(agent) {
            let sizes = reply.parts.values().map(|part| PART + part.text.len());
            self.size -= sizes.sum::<usize>();
        }
    }

    /// Returns the text so far, one delta for each part.
    pub fn deltas(&self) -> impl Iterator<Item = Envelope> {
        let parts = self.agents.values().flat_map(|reply| &reply.parts);
        parts.filter_map(|(index, part)| {
            let delta = Delta {
                text: part.text.clone(),
                part: *index,
                offset: 0,
            };
            let data = RawValue::from_string(json(&delta)).ok()?;
            Some(Envelope {
                data,
                ..part.latest.clone()
            })
        })
    }
}

impl RunningReply {
    /// Adds a delta, and returns by how much the reply has grown. A delta after one for which there
    /// was no room is dropped.
    fn add(&mut self, event: &Envelope, delta: &Delta) -> usize {
        let mut grown = delta.text.len();
        let part = self.parts.entry(delta.part).or_insert_with(|| {
            grown += PART;
            RunningPart {
                latest: event.clone(),
                text: String::new(),
                chars: 0,
            }
        });
        if part.chars != delta.offset {
            return grown - delta.text.len();
        }
        part.text.push_str(&delta.text);
        part.chars += delta.text.chars().count();
        part.latest = event.clone();
        grown
    }
}
