//! The text of the replies that are being streamed, for clients that join in their middle.

use std::collections::{BTreeMap, HashMap};

use planck_common::{
    AgentId,
    envelope::Envelope,
    event::{Delta, Event, EventKind, json},
    message::MessageRole,
};
use serde_json::value::RawValue;

/// The epoch, turn and number of a request.
type RequestPlace = (i64, u32, u32);

#[derive(Debug, Default)]
pub struct RunningReplies {
    agents: HashMap<AgentId, RunningReply>,
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
        let fresh = || RunningReply {
            request: place(event),
            parts: BTreeMap::new(),
        };
        let reply = self
            .agents
            .entry(event.agent_id.clone())
            .or_insert_with(fresh);
        if reply.request != place(event) {
            *reply = fresh();
        }
        let part = reply
            .parts
            .entry(delta.part)
            .or_insert_with(|| RunningPart {
                latest: event.clone(),
                text: String::new(),
            });
        part.text.push_str(&delta.text);
        part.latest = event.clone();
    }

    /// Takes a durable event, which may replace the reply of its agent.
    pub fn durable(&mut self, event: &Envelope) {
        let is_over = match EventKind::find(&event.kind) {
            Some(EventKind::TurnEnd | EventKind::Error | EventKind::AgentStopped) => true,
            Some(EventKind::Message) => is_reply(event),
            Some(_) | None => false,
        };
        let is_older = |reply: &RunningReply| reply.request <= place(event);
        if is_over && self.agents.get(&event.agent_id).is_some_and(is_older) {
            self.agents.remove(&event.agent_id);
        }
    }

    pub fn forget(&mut self, agent: &AgentId) {
        self.agents.remove(agent);
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

fn is_reply(event: &Envelope) -> bool {
    matches!(
        event.event(),
        Some(Ok(Event::Message(saved))) if saved.message.role == MessageRole::Assistant
    )
}
