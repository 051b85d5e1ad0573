//! Tracks the replies that are being streamed. A delta is returned only if it continues the text
//! that was returned before.

use std::collections::{BTreeMap, HashMap};

use planck_common::{
    AgentId, PROTOCOL_VERSION, Timestamp,
    command::{Running, RunningPart, Snapshot},
    envelope::Envelope,
    event::{Delta, EventKind, json},
};
use serde_json::value::RawValue;

use super::Settles;

/// The epoch, turn and number of a request. Later requests compare greater, and supersede earlier
/// ones.
type RequestPlace = (i64, u32, u32);

#[derive(Debug, Default)]
pub(super) struct LiveEvents {
    agents: HashMap<AgentId, AgentProgress>,
}

#[derive(Debug, Default)]
struct AgentProgress {
    /// The highest epoch seen. A live event with a lower epoch comes from a node that has lost the
    /// lease.
    epoch: i64,
    /// Saved messages have replaced the live events of all requests up to this one.
    settled: RequestPlace,
    /// The running request.
    current: RequestPlace,
    /// For each part of the running request, the number of Unicode scalar values that were
    /// returned.
    returned: BTreeMap<usize, usize>,
}

impl LiveEvents {
    /// Takes a live event. Returns the part of a delta's text that was not returned yet, or `None`
    /// if there is none or the delta does not continue the returned text. Other live events are
    /// returned unchanged. An event with an old epoch is dropped.
    pub(super) fn take(&mut self, event: Envelope) -> Option<Envelope> {
        let agent = self.agents.entry(event.agent_id.clone()).or_default();
        if event.epoch < agent.epoch {
            return None;
        }
        agent.epoch = event.epoch;
        match EventKind::find(&event.kind) {
            Some(EventKind::TextDelta | EventKind::ThinkingDelta) => agent.take(event),
            Some(_) | None => Some(event),
        }
    }

    pub(super) fn settle(&mut self, event: &Envelope, settles: Settles) {
        let agent = self.agents.entry(event.agent_id.clone()).or_default();
        agent.epoch = agent.epoch.max(event.epoch);
        let upto = match settles {
            Settles::Nothing => return,
            Settles::Request => (event.epoch, event.turn, event.request),
            Settles::Turn => (event.epoch, event.turn, u32::MAX),
        };
        agent.settled = agent.settled.max(upto);
        if settles == Settles::Turn {
            // Live events that claimed a later lease or turn may have moved the position beyond the
            // one in the log. Because such events may be forged, the log's position replaces it.
            (agent.epoch, agent.current) = (event.epoch, upto);
        }
    }

    /// Drops the state of an agent in whose name another program published.
    pub(super) fn forget(&mut self, agent: &AgentId) {
        self.agents.remove(agent);
    }

    /// Returns the text of a snapshot that was not returned yet, as deltas.
    pub(super) fn join(&mut self, snapshot: &Snapshot) -> Vec<Envelope> {
        let (info, Some(running)) = (&snapshot.info, &snapshot.running) else {
            return Vec::new();
        };
        let deltas = running
            .parts
            .iter()
            .filter_map(|part| delta_of(snapshot, running, part));
        let agent = self.agents.entry(info.id.clone()).or_default();
        deltas.filter_map(|event| agent.take(event)).collect()
    }
}

impl AgentProgress {
    fn take(&mut self, event: Envelope) -> Option<Envelope> {
        let request = (event.epoch, event.turn, event.request);
        if request <= self.settled || request < self.current {
            return None;
        }
        let delta: Delta = serde_json::from_str(event.data.get()).ok()?;
        if request > self.current {
            self.current = request;
            self.returned.clear();
        }
        let returned = self.returned.entry(delta.part).or_default();
        let known = returned.checked_sub(delta.offset)?;
        let fresh: String = delta.text.chars().skip(known).collect();
        if fresh.is_empty() {
            return None;
        }
        let offset = *returned;
        *returned += fresh.chars().count();
        let data = raw(&Delta {
            text: fresh,
            part: delta.part,
            offset,
        })?;
        Some(Envelope { data, ..event })
    }
}

fn raw(delta: &Delta) -> Option<Box<RawValue>> {
    RawValue::from_string(json(delta)).ok()
}

fn delta_of(snapshot: &Snapshot, running: &Running, part: &RunningPart) -> Option<Envelope> {
    let kind = match part.r#type.as_str() {
        "text" => EventKind::TextDelta,
        "thinking" => EventKind::ThinkingDelta,
        _ => return None,
    };
    let info = &snapshot.info;
    Some(Envelope {
        v: PROTOCOL_VERSION,
        kind: kind.name().into(),
        truncated: false,
        agent_id: info.id.clone(),
        session_id: info.session_id.clone(),
        team_id: info.team_id.clone(),
        node_id: info.node_id.clone()?,
        epoch: info.epoch,
        seq: None,
        prev: None,
        turn: running.turn,
        request: running.request,
        at: Timestamp::now(),
        hidden_by: None,
        data: raw(&Delta {
            text: part.text.clone(),
            part: part.part,
            offset: 0,
        })?,
    })
}
