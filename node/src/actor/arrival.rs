//! Rows of inboxes as agents see them, and inputs of agents as rows.

use planck_common::{Timestamp, event::json, message::Part};

use crate::{
    agent::{Arrival, OpenInput, Put},
    store::{InputRecord, NewInput},
};

impl From<NewInput> for Arrival {
    fn from(input: NewInput) -> Self {
        let NewInput {
            id,
            kind,
            mode,
            sender,
            reply_to,
            content,
            fresh,
            ..
        } = input;
        Self {
            id,
            kind,
            mode,
            sender,
            reply_to,
            content: parts(&content),
            fresh,
        }
    }
}

impl From<InputRecord> for Arrival {
    fn from(input: InputRecord) -> Self {
        let InputRecord {
            id,
            kind,
            mode,
            sender,
            reply_to,
            content,
            fresh,
            ..
        } = input;
        Self {
            id,
            kind,
            mode,
            sender,
            reply_to,
            content: parts(&content),
            fresh,
        }
    }
}

impl From<InputRecord> for OpenInput {
    fn from(input: InputRecord) -> Self {
        let turn = input.turn;
        Self {
            arrival: input.into(),
            turn,
        }
    }
}

impl From<Put> for NewInput {
    fn from(put: Put) -> Self {
        let Put {
            id,
            to,
            kind,
            mode,
            sender,
            reply_to,
            text,
        } = put;
        let (content, at) = (json(&[Part::text(text)]), Timestamp::now());
        Self {
            id,
            agent: to,
            kind,
            mode,
            sender: Some(sender),
            reply_to,
            content,
            fresh: false,
            at,
        }
    }
}

/// Content that this version cannot read is shown as it is rather than lost.
fn parts(content: &str) -> Vec<Part> {
    serde_json::from_str(content).unwrap_or_else(|_| vec![Part::text(content)])
}
