//! The envelope of an event. An event's body is serialised once, when it is stored, and the
//! envelope is written around its bytes.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{
    AgentId, NodeId, Seq, SessionId, TeamId, Timestamp,
    event::{Event, EventKind},
    message::MessageRole,
};

/// An event as it is read from the wire. `kind` may be one that only a newer version knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Envelope {
    pub v: u32,
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether long strings in `data` were cut to size. The log has the complete event.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    pub agent_id: AgentId,
    pub session_id: SessionId,
    pub team_id: TeamId,
    pub node_id: NodeId,
    pub epoch: i64,
    /// The number of the event's row. Absent on live events, like `prev`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<Seq>,
    pub turn: u32,
    pub request: u32,
    pub at: Timestamp,
    /// The number of the `rewound` event that hid this one, if it was read from the log after a
    /// rewind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_by: Option<Seq>,
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub data: Box<RawValue>,
}

impl Envelope {
    /// Parses the event's `data` by its kind. Returns `None` for a kind that only a newer version
    /// knows.
    pub fn event(&self) -> Option<Result<Event, serde_json::Error>> {
        Some(Event::parse(EventKind::find(&self.kind)?, self.data.get()))
    }

    /// Returns whether the event saves a reply of the model. Only the role of its message is parsed.
    pub fn is_reply(&self) -> bool {
        #[derive(Deserialize)]
        struct Data {
            message: Saved,
        }
        #[derive(Deserialize)]
        struct Saved {
            role: MessageRole,
        }
        self.kind == EventKind::Message.name()
            && serde_json::from_str::<Data>(self.data.get())
                .is_ok_and(|data| data.message.role == MessageRole::Assistant)
    }
}

/// A `head` message on a session's subject. It has the number of the log's last row, so that
/// readers notice the loss of the last event.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Head"))]
pub struct SessionHead {
    pub v: u32,
    /// Always `head`.
    pub r#type: String,
    pub session_id: SessionId,
    pub seq: Seq,
}

impl SessionHead {
    pub fn new(session_id: SessionId, seq: Seq) -> Self {
        Self {
            v: crate::PROTOCOL_VERSION,
            r#type: "head".into(),
            session_id,
            seq,
        }
    }
}

/// The writer of events: the fields that all events of an agent under one lease share.
#[derive(Debug, Clone)]
pub struct Writer {
    pub agent_id: AgentId,
    pub session_id: SessionId,
    pub team_id: TeamId,
    pub node_id: NodeId,
    pub epoch: i64,
}

/// The turn and request to which an event belongs, and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventPlace {
    pub turn: u32,
    pub request: u32,
    pub at: Timestamp,
}

/// The position of a durable event in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPosition {
    pub seq: Seq,
    pub prev: Seq,
    pub hidden_by: Option<Seq>,
}

impl Writer {
    /// Returns the envelope of a live event around the JSON of its `data`.
    pub fn live(&self, kind: EventKind, place: EventPlace, data: &str) -> String {
        let mut text = self.open(kind.name(), place, None, data.len());
        text.push_str(data);
        text.push('}');
        text
    }

    /// Returns the envelope of a durable event around its stored body.
    pub fn durable(
        &self,
        kind: EventKind,
        place: EventPlace,
        row: RowPosition,
        body: &str,
    ) -> String {
        self.stored(kind.name(), place, row, body)
    }

    /// Returns the envelope of a durable event whose kind is given by name. The kind may be one
    /// that only a newer version knows.
    pub fn stored(&self, kind: &str, place: EventPlace, row: RowPosition, body: &str) -> String {
        let mut text = self.open(kind, place, Some(row), body.len());
        if kind == EventKind::Message.name() {
            let _ = write!(text, r#"{{"message":"#);
            self.message_into(&mut text, row.seq, place.at, body);
            text.push('}');
        } else {
            text.push_str(body);
        }
        text.push('}');
        text
    }

    fn open(&self, kind: &str, place: EventPlace, row: Option<RowPosition>, data: usize) -> String {
        let mut text = String::with_capacity(data + 360);
        let Self {
            agent_id,
            session_id,
            team_id,
            node_id,
            epoch,
        } = self;
        let _ = write!(
            text,
            r#"{{"v":1,"type":"{}","agent_id":"{agent_id}","session_id":"{session_id}","team_id":"{team_id}","node_id":"{node_id}","epoch":{epoch}"#,
            kind
        );
        if let Some(RowPosition {
            seq,
            prev,
            hidden_by,
        }) = row
        {
            let _ = write!(text, r#","seq":{seq},"prev":{prev}"#);
            if let Some(by) = hidden_by {
                let _ = write!(text, r#","hidden_by":{by}"#);
            }
        }
        let _ = write!(
            text,
            r#","turn":{},"request":{},"at":"{}","data":"#,
            place.turn, place.request, place.at
        );
        text
    }

    fn message_into(&self, text: &mut String, id: Seq, at: Timestamp, body: &str) {
        let rest = body.strip_prefix('{').unwrap_or(body);
        let _ = write!(
            text,
            r#"{{"id":{id},"agent_id":"{}","at":"{at}",{rest}"#,
            self.agent_id
        );
    }

    /// Returns the JSON of a message, written around its stored body.
    pub fn message(&self, id: Seq, at: Timestamp, body: &str) -> String {
        let mut text = String::with_capacity(body.len() + 120);
        self.message_into(&mut text, id, at, body);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> Writer {
        Writer {
            agent_id: AgentId::parse("a1").unwrap(),
            session_id: SessionId::parse("s1").unwrap(),
            team_id: TeamId::parse("t1").unwrap(),
            node_id: NodeId::parse("n1").unwrap(),
            epoch: 3,
        }
    }

    const PLACE: EventPlace = EventPlace {
        turn: 4,
        request: 9,
        at: Timestamp::from_millis(1_767_268_800_123),
    };

    #[test]
    fn durable_event_has_its_row() {
        let row = RowPosition {
            seq: 118,
            prev: 115,
            hidden_by: None,
        };
        let text = writer().durable(
            EventKind::AgentStopped,
            PLACE,
            row,
            r#"{"reason":"closed"}"#,
        );
        assert_eq!(
            text,
            r#"{"v":1,"type":"agent_stopped","agent_id":"a1","session_id":"s1","team_id":"t1","node_id":"n1","epoch":3,"seq":118,"prev":115,"turn":4,"request":9,"at":"2026-01-01T12:00:00.123Z","data":{"reason":"closed"}}"#
        );
        let back: Envelope = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (back.seq, back.prev, back.hidden_by),
            (Some(118), Some(115), None)
        );
    }

    #[test]
    fn message_gets_its_id_and_time() {
        let row = RowPosition {
            seq: 7,
            prev: 0,
            hidden_by: Some(9),
        };
        let text = writer().durable(
            EventKind::Message,
            PLACE,
            row,
            r#"{"role":"user","content":[{"type":"text","text":"hi"}]}"#,
        );
        let back: Envelope = serde_json::from_str(&text).unwrap();
        let Some(Ok(Event::Message(data))) = back.event() else {
            panic!("no message in {text}")
        };
        assert_eq!((data.message.id, data.message.at), (7, PLACE.at));
    }

    #[test]
    fn live_event_has_no_row() {
        let text = writer().live(
            EventKind::TextDelta,
            PLACE,
            r#"{"text":"x","part":0,"offset":0}"#,
        );
        let back: Envelope = serde_json::from_str(&text).unwrap();
        assert_eq!((back.seq, back.prev), (None, None));
    }
}
