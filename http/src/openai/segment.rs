//! The part of an answer that one response shows: from the beginning of the prompt's turn, or from
//! the answers to the client's tool calls, until the work is over or calls tools of the client again.

mod state;

use std::time::Duration;

use planck_client::turn::TurnChoice;
use planck_common::{CallId, Seq, Timestamp, usage::Usage};

use super::{error::OpenAiError, opening::OpenedResponse};
use crate::{
    feed::FeedItem,
    front::Front,
    problem::Problem,
    turn::{TurnNews, TurnSource},
};
use state::SegmentState;

/// How long the log may take until it has been read to its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// The place of a piece in a turn. It is the same at every reading of the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PiecePlace {
    /// The number of the try of a request, from 1. Each retry that is in the log counts.
    pub stage: u64,
    pub part: usize,
    /// The number of characters of the part up to the end of the piece.
    pub end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentPieceKind {
    Text,
    Reasoning,
}

/// An event of a response. The events come in the order in which the response shows them.
#[derive(Debug, Clone)]
pub enum SegmentEvent {
    /// The turn of the prompt began, or a later one of its work.
    Began { at: Timestamp },
    Piece {
        kind: SegmentPieceKind,
        place: PiecePlace,
        text: String,
    },
    /// The pieces since the last [`Self::Saved`] are void, because the request is made again.
    Void,
    /// The pieces so far are saved.
    Saved,
    /// A call of a client's tool.
    Called {
        stage: u64,
        call_id: CallId,
        name: String,
        args: String,
    },
    /// The turn waits for a person, or a worker does.
    Waits { id: CallId, title: String },
    /// Nothing follows.
    End(SegmentEnd),
}

#[derive(Debug, Clone)]
pub struct SegmentEnd {
    pub how: EndKind,
    pub stage: u64,
    pub usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndKind {
    Done,
    /// The model's output limit, or a limit of the turn, cut the answer off.
    Cut,
    /// The provider withheld the rest.
    Refused,
    /// The client's tools were called.
    Called,
    Aborted,
    /// The turn answers another prompt, which was sent at the same time for the same place.
    Taken,
    Failed {
        code: String,
        reason: String,
    },
}

impl SegmentEvent {
    /// Returns why the request is refused, if it was sent at the same time as another one.
    pub fn refusal(&self) -> Option<OpenAiError> {
        match self {
            Self::End(SegmentEnd {
                how: EndKind::Taken,
                ..
            }) => Some(OpenAiError::conflict(
                "already_continued",
                "another request continued the session at the same time; read it and send yours again",
            )),
            Self::Began { .. }
            | Self::Piece { .. }
            | Self::Void
            | Self::Saved
            | Self::Called { .. }
            | Self::Waits { .. }
            | Self::End(_) => None,
        }
    }
}

/// Where a segment begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    Turn,
    /// After the reply with this number called tools of the client.
    Reply(Seq),
    /// After the reply that made this call.
    Call(CallId),
}

/// Reads one segment.
pub struct Segment {
    source: TurnSource,
    state: SegmentState,
    is_caught_up: bool,
}

impl Segment {
    pub async fn open(front: &Front, opened: &OpenedResponse) -> Result<Self, OpenAiError> {
        let (session, place) = (&opened.id.session, opened.id.place);
        let choice = TurnChoice::Of(opened.input.clone());
        Ok(Self {
            source: TurnSource::open(front, session, place, opened.head.max(place)).await?,
            state: SegmentState::new(opened, choice),
            is_caught_up: false,
        })
    }

    /// Waits for the next event. Returns `None` after [`SegmentEvent::End`]. The method is cancel
    /// safe.
    pub async fn next(&mut self) -> Result<Option<SegmentEvent>, Problem> {
        loop {
            if let Some(event) = self.state.queue.pop_front() {
                return Ok(Some(event));
            }
            if self.state.is_over() {
                return Ok(None);
            }
            self.step().await?;
        }
    }

    async fn step(&mut self) -> Result<(), Problem> {
        match self.source.next(&self.state.reader).await? {
            TurnNews::Item(item) => {
                self.is_caught_up |= matches!(item, FeedItem::CaughtUp);
                self.state.take(&item);
            }
            TurnNews::Over(outcome) => self.state.over(outcome.as_deref()),
        }
        if self.state.reader.is_over() {
            self.source.done();
        }
        Ok(())
    }

    /// Reads what has happened so far, until `is_enough` of the state.
    async fn read(&mut self, is_enough: impl Fn(&SegmentState) -> bool) -> Result<(), OpenAiError> {
        let reading = async {
            while !self.is_caught_up && !is_enough(&self.state) {
                self.step().await?;
            }
            Ok::<_, Problem>(())
        };
        let read = tokio::time::timeout(PATIENCE, reading).await;
        Ok(read.map_err(|_| OpenAiError::late())??)
    }

    /// Reads what has happened so far, and returns it.
    pub async fn load(&mut self) -> Result<Vec<SegmentEvent>, OpenAiError> {
        self.read(SegmentState::is_over).await?;
        // Only the outcome says that no turn follows.
        let rest = async {
            while !self.state.is_over() && self.source.is_over(&self.state.reader).await? {
                self.step().await?;
            }
            Ok::<_, Problem>(())
        };
        let read = tokio::time::timeout(PATIENCE, rest).await;
        read.map_err(|_| OpenAiError::late())??;
        Ok(self.state.queue.drain(..).collect())
    }

    /// Reads all that has happened in the work so far, whatever the segment.
    pub async fn load_turn(&mut self) -> Result<(), OpenAiError> {
        self.read(|state| state.reader.is_over()).await
    }

    /// Puts back events that [`load`](Self::load) returned.
    pub fn put_back(&mut self, events: Vec<SegmentEvent>) {
        for event in events.into_iter().rev() {
            self.state.queue.push_front(event);
        }
    }

    /// Reads on until the place is known where the segment begins.
    pub async fn find(&mut self) -> Result<Option<Seq>, OpenAiError> {
        self.read(SegmentState::is_found).await?;
        match (&self.state.beginning, self.state.is_found()) {
            (Beginning::Turn, _) => Ok(None),
            (Beginning::Reply(seq), true) => Ok(Some(*seq)),
            (Beginning::Reply(_) | Beginning::Call(_), _) => Err(OpenAiError::not_found(
                "the session has no such response, or a rewind hid it",
            )),
        }
    }

    /// Returns the calls of the client's tools that have no result yet.
    pub fn open_calls(&self) -> Vec<CallId> {
        self.state.open_calls()
    }

    /// Returns the reply after which the last segment begins. A segment does not begin before the
    /// client has sent the results that it owes.
    pub fn last_beginning(&self) -> Option<Seq> {
        self.state.last_beginning()
    }
}
