//! The items of a feed, which all its streams share.

use std::sync::{Arc, OnceLock};

use planck_client::{
    FollowEvent, Retracted,
    turn::{TurnEvent, TurnReader},
};
use planck_common::{Seq, envelope::Envelope, event::json};

/// An item that a stream passes on.
#[derive(Debug, Clone)]
pub enum FeedItem {
    Event(Arc<FeedEvent>),
    /// A durable event that was passed on is not in the log.
    Retracted(Retracted),
    /// Everything that was in the log was passed on.
    CaughtUp,
    /// The log cannot be read at the moment.
    Retrying,
}

/// An event as JSON, which some streams pass on as it is. Other streams need its envelope, which is
/// parsed once for all of them.
#[derive(Debug)]
pub struct FeedEvent {
    /// The number of a durable event.
    pub seq: Option<Seq>,
    pub json: Box<str>,
    envelope: OnceLock<Option<Envelope>>,
}

impl FeedEvent {
    pub fn new(seq: Option<Seq>, json: Box<str>) -> Self {
        Self {
            seq,
            json,
            envelope: OnceLock::new(),
        }
    }

    /// Returns the envelope, or `None` if this version cannot read the event.
    pub fn envelope(&self) -> Option<&Envelope> {
        let parse = || serde_json::from_str(&self.json).ok();
        self.envelope.get_or_init(parse).as_ref()
    }
}

impl FeedItem {
    /// Returns the number of a durable event.
    pub fn seq(&self) -> Option<Seq> {
        match self {
            Self::Event(event) => event.seq,
            Self::Retracted(_) | Self::CaughtUp | Self::Retrying => None,
        }
    }

    /// Tells a reader of a turn about the item. Returns what it means for the turn.
    pub fn tell(&self, reader: &mut TurnReader) -> Vec<TurnEvent> {
        match self {
            Self::Event(event) => match event.envelope() {
                Some(envelope) => reader.event(envelope),
                None => Vec::new(),
            },
            Self::Retracted(retracted) => reader.retracted(retracted),
            Self::CaughtUp => reader.caught_up(),
            Self::Retrying => Vec::new(),
        }
    }

    /// Returns the size of an event as JSON. An envelope that was parsed takes as much again.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Event(event) => event.json.len(),
            Self::Retracted(_) | Self::CaughtUp | Self::Retrying => 0,
        }
    }
}

impl From<&Envelope> for FeedItem {
    fn from(event: &Envelope) -> Self {
        Self::Event(Arc::new(FeedEvent::new(event.seq, json(event).into())))
    }
}

impl From<FollowEvent> for FeedItem {
    fn from(event: FollowEvent) -> Self {
        match event {
            FollowEvent::Durable(event) | FollowEvent::Live(event) => Self::from(&event),
            FollowEvent::Retracted(retracted) => Self::Retracted(retracted),
            FollowEvent::CaughtUp => Self::CaughtUp,
            FollowEvent::Retrying(_) => Self::Retrying,
        }
    }
}
