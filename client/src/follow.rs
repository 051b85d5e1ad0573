//! Follows a session from any place in its log, first through the log and then live. This module
//! connects the [`Reader`] to the bus.

use std::{collections::VecDeque, fmt, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
    stream::BoxStream,
};
use planck_bus::{BusError, Delivery};
use planck_common::{
    AgentId, Seq, SessionId,
    command::{AgentState, Events, ReadEvents, Snapshot},
    envelope::{Envelope, SessionHead},
    event::Event,
    reply::Code,
    subject::Topic,
};
use tokio::time::Instant;

use super::{
    Client, ClientError,
    reader::{Reader, Retracted},
};

/// The number of events in one page.
const PAGE: u32 = 500;
/// The pause before the log is read again after a failure.
const PAUSE: Duration = Duration::from_secs(2);
/// The maximum number of published events that are held until the log was read to its end. If there
/// are more, the oldest are dropped: the snapshots have the text of live ones, and the log has the
/// durable ones.
const MOST_HELD: usize = 1_024;

/// An item from a follower.
#[derive(Debug, Clone)]
pub enum FollowEvent {
    /// An event of the session's log. Durable events come in the order of their `seq`, each exactly
    /// once.
    Durable(Envelope),
    /// An event that is not in the log, such as a piece of a reply that is still streaming. Pieces
    /// come in order and without gaps. The whole message follows as a durable event.
    Live(Envelope),
    /// An event returned as [`FollowEvent::Durable`] is not in the log, because another program
    /// published it. Discard it. The log's event with that number, if any, comes next.
    Retracted(Retracted),
    /// All events that were in the log at the start have been returned. The following events are
    /// newer.
    CaughtUp,
    /// The log cannot be read at the moment. The follower tries again every two seconds, and
    /// reports the failure once.
    Retrying(ClientError),
}

impl FollowEvent {
    /// Returns the event, durable or live. Returns `None` for an item that is not an event, and for
    /// an event that this version cannot read.
    pub fn event(&self) -> Option<Event> {
        match self {
            Self::Durable(envelope) | Self::Live(envelope) => envelope.event()?.ok(),
            Self::Retracted(_) | Self::CaughtUp | Self::Retrying(_) => None,
        }
    }
}

/// A follower of a session, which returns the session's events from a place in the log on, and then
/// live. [`Client::follow`] creates it.
///
/// The follower subscribes to the session, reads its log, and compares the two:
///
/// - Durable events come in the order of the log, each exactly once, even if NATS loses, duplicates
///   or delays them. The follower reads a gap from the log after 200 ms, or at once when a
///   published `head` shows that the log has reached it.
/// - An event is returned when it is published, and compared with the log when a turn ends or a
///   `head` is published. An event that is not in the log is retracted. The end of a turn, of an
///   agent or of a session is returned from the log only, so it is never retracted.
/// - Events that are published before the log was read to its end come after it, in the order in
///   which they were published.
/// - Deltas of a reply are returned only if they continue the text that was returned before. A
///   follower that joins in the middle of a reply first gets the reply so far.
///
/// On a bus on which only this process can publish, the follower compares nothing, and also returns
/// the end of a turn, of an agent or of a session when it is published.
///
/// Dropping the follower ends its subscription.
pub struct Follow {
    client: Client,
    session: SessionId,
    reader: Reader,
    published: BoxStream<'static, Delivery>,
    work: Option<BoxFuture<'static, FetchResult>>,
    queue: VecDeque<FollowEvent>,
    /// Events that were published before the log was read to its end, or `None` once it was.
    held: Option<VecDeque<Envelope>>,
    joined: bool,
    is_retrying: bool,
    lost: Option<ClientError>,
    since: Instant,
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow")
            .field("session", &self.session)
            .field("next_seq", &self.reader.next())
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

enum FetchResult {
    Page(Result<Events, ClientError>),
    Snapshots(Vec<Snapshot>),
}

enum FollowInput {
    Published(Option<Delivery>),
    Done(FetchResult),
    Waited,
}

impl Client {
    /// Follows a session from row `from` of its log; `1` is the beginning. The follower misses no
    /// event that is published after the call returns.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] when the subscription is not active within four seconds, or
    /// this user may not subscribe.
    pub async fn follow(&self, session: &SessionId, from: Seq) -> Result<Follow, ClientError> {
        Follow::start(self.clone(), session.clone(), from).await
    }
}

impl Follow {
    async fn start(client: Client, session: SessionId, from: Seq) -> Result<Self, ClientError> {
        let subject = Topic::Session(&session).to_string();
        let reader = if client.bus().is_private() {
            Reader::from(from).trusted()
        } else {
            Reader::from(from)
        };
        let published = client
            .bus()
            .subscribe(&subject)
            .await
            .map_err(ClientError::Unreachable)?;
        Ok(Self {
            client,
            session,
            reader,
            published,
            work: None,
            queue: VecDeque::new(),
            held: Some(VecDeque::new()),
            joined: false,
            is_retrying: false,
            lost: None,
            since: Instant::now(),
        })
    }

    /// Waits for the next item without a time limit. The method is cancel safe: dropping the future
    /// loses no item.
    ///
    /// # Errors
    ///
    /// Fails if the session does not exist, this user may not read it, or the connection was closed
    /// permanently. Every later call returns the same error.
    pub async fn next(&mut self) -> Result<FollowEvent, ClientError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if let Some(error) = &self.lost {
                return Err(error.clone());
            }
            self.begin_work();
            match self.next_input().await {
                FollowInput::Published(Some(delivery)) => self.published(&delivery),
                FollowInput::Published(None) => {
                    let error = match self.client.bus().is_private() {
                        true => BusError::Ended,
                        false => BusError::Away("the subscription ended; connect again".into()),
                    };
                    self.lost = Some(ClientError::Unreachable(error));
                }
                FollowInput::Done(work) => self.done(work),
                FollowInput::Waited => {}
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn next_input(&mut self) -> FollowInput {
        let until = self
            .reader
            .patience()
            .filter(|_| self.work.is_none())
            .map(|at| self.since + Duration::from_millis(at));
        let wait: OptionFuture<_> = until.map(tokio::time::sleep_until).into();
        let work: OptionFuture<_> = self.work.as_mut().into();
        tokio::select! {
            biased;
            Some(work) = work => {
                self.work = None;
                FollowInput::Done(work)
            }
            delivery = self.published.next() => FollowInput::Published(delivery),
            Some(()) = wait => FollowInput::Waited,
        }
    }

    fn begin_work(&mut self) {
        if self.work.is_some() {
            return;
        }
        let now = self.now();
        if let Some(from) = self.reader.wanted(now) {
            let pause = if self.is_retrying {
                PAUSE
            } else {
                Duration::ZERO
            };
            self.work = Some(page(self.client.clone(), self.session.clone(), from, pause).boxed());
        } else if !self.joined {
            self.joined = true;
            self.work = Some(snapshots(self.client.clone(), self.session.clone()).boxed());
        }
    }

    fn published(&mut self, delivery: &Delivery) {
        let now = self.now();
        if let Ok(event) = serde_json::from_slice::<Envelope>(&delivery.payload) {
            if let Some(held) = self.held.as_mut() {
                if held.len() == MOST_HELD {
                    held.pop_front();
                }
                held.push_back(event);
                return;
            }
            let returned = self.reader.published(event, now);
            self.give(returned);
        } else if let Ok(head) = serde_json::from_slice::<SessionHead>(&delivery.payload) {
            self.reader.head(head.seq, now);
        }
    }

    fn done(&mut self, work: FetchResult) {
        let now = self.now();
        match work {
            FetchResult::Page(Ok(page)) => {
                self.is_retrying = false;
                let events = page
                    .events
                    .iter()
                    .filter_map(|event| serde_json::from_str(event.get()).ok())
                    .collect();
                let returned = self.reader.page(events, page.next, page.head, now);
                self.queue.extend(
                    self.reader
                        .take_retracted()
                        .into_iter()
                        .map(FollowEvent::Retracted),
                );
                self.give(returned);
            }
            FetchResult::Page(Err(ClientError::Refused(refusal)))
                if matches!(refusal.code, Code::NotFound | Code::Denied) =>
            {
                self.lost = Some(ClientError::Refused(refusal));
            }
            FetchResult::Page(Err(error)) => {
                self.reader.page_failed();
                if !std::mem::replace(&mut self.is_retrying, true) {
                    self.queue.push_back(FollowEvent::Retrying(error));
                }
            }
            FetchResult::Snapshots(snapshots) => {
                let returned: Vec<_> = snapshots
                    .iter()
                    .flat_map(|snapshot| self.reader.snapshot(snapshot))
                    .collect();
                self.give(returned);
                for event in self.held.take().into_iter().flatten() {
                    let returned = self.reader.published(event, now);
                    self.give(returned);
                }
                self.queue.push_back(FollowEvent::CaughtUp);
            }
        }
    }

    fn give(&mut self, events: Vec<Envelope>) {
        let returned = events.into_iter().map(|event| match event.seq {
            Some(_) => FollowEvent::Durable(event),
            None => FollowEvent::Live(event),
        });
        self.queue.extend(returned);
    }
}

async fn page(client: Client, session: SessionId, from: Seq, pause: Duration) -> FetchResult {
    tokio::time::sleep(pause).await;
    let read = ReadEvents {
        from: Some(from),
        limit: Some(PAGE),
        agent: None,
    };
    FetchResult::Page(client.events(&session, &read).await)
}

/// Reads the work in progress of the running agents. An agent that does not reply is left out, and
/// its messages follow when they are saved.
async fn snapshots(client: Client, session: SessionId) -> FetchResult {
    let agents = client
        .session(&session)
        .await
        .map(|info| info.agents)
        .unwrap_or_default();
    let running = |state| match state {
        AgentState::Streaming | AgentState::ExecutingTools | AgentState::Compacting => true,
        AgentState::Idle | AgentState::Waiting | AgentState::Stopped => false,
    };
    let ids: Vec<AgentId> = agents
        .into_iter()
        .filter(|agent| running(agent.state))
        .map(|agent| agent.id)
        .collect();
    let asked = futures_util::stream::iter(ids).map(|id| {
        let client = client.clone();
        async move { client.snapshot(&id).await.ok() }
    });
    FetchResult::Snapshots(
        asked
            .buffer_unordered(8)
            .filter_map(std::future::ready)
            .collect()
            .await,
    )
}
