//! The events of one session at this front, which all streams of the session share. A feed follows
//! the session once and keeps the latest events, so a client that connects again usually costs no
//! request to a node.

mod cursor;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use planck_client::{
    Client, ClientError, FollowEvent, Retracted,
    turn::{TurnEvent, TurnReader},
};
use planck_common::{
    AgentId, Seq, SessionId,
    command::SessionState,
    envelope::Envelope,
    event::{Delta, Event, EventKind, json},
    reply::Code,
};
use serde_json::value::RawValue;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::problem::Problem;

pub use cursor::Cursor;

/// The maximum size of the kept events in bytes. The newest one is always kept.
const KEPT: usize = 4 << 20;
/// How long a feed without clients goes on, for those that were cut off and connect again.
const LINGER: Duration = Duration::from_secs(30);
/// How long a new feed waits for its first client.
const FIRST: Duration = Duration::from_secs(5);
/// The time between two looks whether a feed is still used, and whether a closed session is still
/// there.
const LOOK: Duration = Duration::from_secs(2);

/// The feeds of a front, by session.
#[derive(Default)]
pub struct Feeds {
    feeds: Mutex<HashMap<SessionId, Arc<Feed>>>,
}

/// The events of one session.
pub struct Feed {
    session: SessionId,
    state: Mutex<FeedState>,
    /// Counts the changes of the state.
    changes: watch::Sender<u64>,
}

struct FeedState {
    standing: FeedStanding,
    /// Until this time the feed goes on without clients.
    kept_until: Instant,
    /// The latest items. The first one has the index `base`.
    items: VecDeque<FeedItem>,
    base: u64,
    bytes: usize,
    /// The number of the last durable event, and of the first one from which on all are in `items`.
    head: Seq,
    whole_from: Seq,
    is_caught_up: bool,
    /// Whether the session was closed, and so may be gone by now.
    is_closed: bool,
    running: RunningReplies,
}

impl Default for FeedState {
    fn default() -> Self {
        Self {
            standing: FeedStanding::Starting,
            kept_until: Instant::now() + FIRST,
            items: VecDeque::new(),
            base: 0,
            bytes: 0,
            head: 0,
            whole_from: 0,
            is_caught_up: false,
            is_closed: false,
            running: RunningReplies::default(),
        }
    }
}

enum FeedStanding {
    Starting,
    Following,
    Ended(Problem),
}

/// The items at a cursor's place, or why there are none.
enum Found {
    /// Items, and the place after them.
    Items(Vec<FeedItem>, u64),
    Nothing,
    /// The cursor's next event is no longer kept. Events up to this number must be read from the log.
    Behind,
    Ended(Problem),
}

impl Feeds {
    /// Returns the feed of a session. If there is none, starts it with a task of `tasks`, which ends
    /// with the feed or when `stop` is cancelled.
    pub fn of(
        self: &Arc<Self>,
        client: &Client,
        session: &SessionId,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Feed> {
        let mut feeds = self.feeds();
        if let Some(feed) = feeds.get(session) {
            return Arc::clone(feed);
        }
        let feed = Arc::new(Feed {
            session: session.clone(),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
        });
        feeds.insert(session.clone(), Arc::clone(&feed));
        let (all, client, stop) = (Arc::clone(self), client.clone(), stop.clone());
        let task_feed = Arc::clone(&feed);
        tasks.spawn(async move {
            let ran = stop.run_until_cancelled(task_feed.run(&client, &all)).await;
            if let Some(Err(error)) = ran {
                task_feed.end(error.into());
            }
            all.remove(&task_feed);
        });
        feed
    }

    /// Returns the session with this id if it has a feed and surely exists.
    pub fn known(&self, id: &str) -> Option<SessionId> {
        let feeds = self.feeds();
        let (id, feed) = feeds.get_key_value(id)?;
        let is_open = !feed.state().is_closed;
        is_open.then(|| id.clone())
    }

    fn feeds(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Feed>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, feed: &Arc<Feed>) {
        let mut feeds = self.feeds();
        if feeds
            .get(&feed.session)
            .is_some_and(|known| Arc::ptr_eq(known, feed))
        {
            feeds.remove(&feed.session);
        }
    }

    /// Removes a feed that only its task and this map hold. Returns whether it did.
    fn remove_unused(&self, feed: &Arc<Feed>) -> bool {
        let mut feeds = self.feeds();
        let is_unused = Arc::strong_count(feed) <= 2;
        if is_unused {
            feeds.remove(&feed.session);
        }
        is_unused
    }
}

impl Feed {
    /// Follows the session until no client has used the feed for a while.
    async fn run(self: &Arc<Self>, client: &Client, all: &Feeds) -> Result<(), ClientError> {
        let info = client.session(&self.session).await?;
        let head = info.head;
        let mut follow = client.follow(&self.session, head + 1).await?;
        self.change(|state| {
            (state.head, state.whole_from) = (head, head + 1);
            state.is_closed = info.state == SessionState::Closed;
            state.standing = FeedStanding::Following;
        });
        loop {
            // A follower loses nothing when its future is dropped.
            match tokio::time::timeout(LOOK, follow.next()).await {
                Ok(item) => self.take(item?),
                Err(_) => self.check_deleted(client).await?,
            }
            let is_kept = self.state().kept_until > Instant::now();
            if !is_kept && all.remove_unused(self) {
                return Ok(());
            }
        }
    }

    /// Returns an error if the session was deleted. No event says so, but a session is closed before
    /// it is deleted.
    async fn check_deleted(&self, client: &Client) -> Result<(), ClientError> {
        if !self.state().is_closed {
            return Ok(());
        }
        match client.session(&self.session).await {
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => {
                Err(ClientError::Refused(refusal))
            }
            // The next look tries again.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Makes the feed go on for a while, for a client that was cut off.
    fn linger(&self) {
        self.state().kept_until = Instant::now() + LINGER;
    }

    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut FeedState)) {
        change(&mut self.state());
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn end(&self, problem: Problem) {
        self.change(|state| state.standing = FeedStanding::Ended(problem));
    }

    fn take(&self, event: FollowEvent) {
        self.change(|state| state.take(event));
    }
}

impl FeedState {
    fn take(&mut self, event: FollowEvent) {
        match &event {
            FollowEvent::Durable(event) => self.durable(event),
            FollowEvent::Live(event) => self.running.live(event),
            FollowEvent::Retracted(retracted) => {
                // The kept events may be wrong, so those who join read the log.
                self.whole_from = self.head + 1;
                self.running.forget(&retracted.agent_id);
            }
            FollowEvent::CaughtUp => self.is_caught_up = true,
            FollowEvent::Retrying(_) => {}
        }
        self.push(event.into());
    }

    fn durable(&mut self, event: &Envelope) {
        self.running.durable(event);
        let kind = EventKind::find(&event.kind);
        match kind {
            Some(EventKind::SessionClosed) => self.is_closed = true,
            Some(EventKind::SessionResumed) => self.is_closed = false,
            Some(_) | None => {}
        }
        self.head = self.head.max(event.seq.unwrap_or_default());
        if kind == Some(EventKind::Rewound) {
            // The kept events do not say that they are hidden, so those who join read the log.
            self.whole_from = self.head + 1;
        }
    }

    fn push(&mut self, item: FeedItem) {
        self.bytes += item.size();
        self.items.push_back(item);
        while self.bytes > KEPT && self.items.len() > 1 {
            let Some(item) = self.items.pop_front() else {
                break;
            };
            self.base += 1;
            self.bytes -= item.size();
            if let Some(seq) = item.seq() {
                self.whole_from = self.whole_from.max(seq + 1);
            }
        }
    }

    /// Returns what a cursor at a place of the items has to pass on. A cursor without a place, or
    /// whose place is gone, joins: it gets the durable events after `sent` and the running replies.
    /// `least` is the number of an event before which the cursor does not join.
    fn find(&self, place: Option<u64>, sent: Seq, least: Seq) -> Found {
        match &self.standing {
            FeedStanding::Starting => return Found::Nothing,
            FeedStanding::Ended(problem) => return Found::Ended(problem.clone()),
            FeedStanding::Following => {}
        }
        let end = self.base + self.items.len() as u64;
        match place.and_then(|place| place.checked_sub(self.base)) {
            Some(skipped) => {
                let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
                let items: Vec<_> = self.items.iter().skip(skipped).cloned().collect();
                if items.is_empty() {
                    return Found::Nothing;
                }
                Found::Items(items, end)
            }
            None if sent + 1 < self.whole_from => Found::Behind,
            None if self.head < least && sent < least => Found::Behind,
            None => Found::Items(self.joined(sent), end),
        }
    }

    fn joined(&self, sent: Seq) -> Vec<FeedItem> {
        let is_new = |item: &&FeedItem| item.seq().is_some_and(|seq| seq > sent);
        let mut items: Vec<_> = self.items.iter().filter(is_new).cloned().collect();
        items.extend(self.running.deltas().map(|event| FeedItem::from(&event)));
        if self.is_caught_up {
            items.push(FeedItem::CaughtUp);
        }
        items
    }
}

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

    /// Passes the item to the reader of a turn, and returns the turn's events that follow from it.
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
    fn size(&self) -> usize {
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

/// The maximum size of the texts in bytes. Any user who may publish can send deltas, so further
/// text is left to the saved messages.
const ROOM_FOR_TEXT: usize = 8 << 20;
/// The approximate size of a part without its text.
const PART: usize = 512;

/// The epoch, turn and number of a request.
type RunningRequest = (i64, u32, u32);

#[derive(Debug, Default)]
struct RunningReplies {
    agents: HashMap<AgentId, RunningReply>,
    /// The size of all parts in bytes.
    size: usize,
}

#[derive(Debug)]
struct RunningReply {
    request: RunningRequest,
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

fn place(event: &Envelope) -> RunningRequest {
    (event.epoch, event.turn, event.request)
}

impl RunningReplies {
    /// Takes a live event. A follower returns deltas in order and without gaps.
    fn live(&mut self, event: &Envelope) {
        let Some(Ok(Event::TextDelta(delta) | Event::ThinkingDelta(delta))) = event.event() else {
            return;
        };
        let reply = self.agents.get(&event.agent_id);
        if reply.is_some_and(|reply| reply.request != place(event)) {
            self.forget(&event.agent_id);
        }
        if self.size + PART + delta.text.len() > ROOM_FOR_TEXT {
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
    fn durable(&mut self, event: &Envelope) {
        let is_over = match EventKind::find(&event.kind) {
            Some(EventKind::TurnEnd | EventKind::Error | EventKind::AgentStopped) => true,
            Some(_) | None => event.is_reply(),
        };
        let is_older = |reply: &RunningReply| reply.request <= place(event);
        if is_over && self.agents.get(&event.agent_id).is_some_and(is_older) {
            self.forget(&event.agent_id);
        }
    }

    fn forget(&mut self, agent: &AgentId) {
        if let Some(reply) = self.agents.remove(agent) {
            let sizes = reply.parts.values().map(|part| PART + part.text.len());
            self.size -= sizes.sum::<usize>();
        }
    }

    /// Returns the text so far, one delta for each part.
    fn deltas(&self) -> impl Iterator<Item = Envelope> {
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

#[cfg(test)]
mod tests;
