//! A session's events from any place in its log on, and then live: the way to join late, around the
//! [`Reader`].

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
    envelope::{Envelope, Head},
    reply::Code,
    subject::Topic,
};
use tokio::time::Instant;

use super::{
    Client, ClientError,
    reader::{Reader, Retracted},
};

/// Events of one page.
const PAGE: u32 = 500;
/// How long to wait before the log is asked for again.
const PAUSE: Duration = Duration::from_secs(2);

/// What a follower gives.
#[derive(Debug, Clone)]
pub enum FollowEvent {
    /// An event of the session's log. These come in the order of their `seq`, and each once.
    Durable(Envelope),
    /// An event that is not in the log, such as a piece of a reply that is still streaming. Pieces
    /// come in order and without gaps, but a whole message comes as a durable event as well.
    Live(Envelope),
    /// An event that was given as [`FollowEvent::Durable`] is not in the log: somebody else
    /// published it. Forget it. The event that the log has in its place, if any, comes next.
    Retracted(Retracted),
    /// Everything that was in the log at the start has been given; what follows happens now.
    CaughtUp,
    /// The log cannot be read for now. The follower reads it again every two seconds, and says so
    /// once.
    Retrying(ClientError),
}

/// A session's events from a place in its log on, and then live; made by [`Client::follow`].
///
/// The follower subscribes to the session and reads its log, and compares the two:
///
/// - Durable events come in the order of the log and each once, whatever NATS lost, doubled or
///   delayed. A gap is read from the log after 200 ms, and at once when a node publishes that the
///   log goes further.
/// - An event is given when it is published, and compared with the log when a turn ends. One that
///   the log does not have is retracted. The end of a turn, of an agent or of a session is given
///   from the log alone, so it is never retracted.
/// - Live events are given only where they join on to what was given before. A follower that joins
///   in the middle of a reply gets what was said so far first.
///
/// On a bus that only this process can publish to there is nothing to compare, and every event is
/// given as it is published.
///
/// Dropping the follower ends its subscription.
pub struct Follow {
    client: Client,
    session: SessionId,
    reader: Reader,
    published: BoxStream<'static, Delivery>,
    work: Option<BoxFuture<'static, Work>>,
    queue: VecDeque<FollowEvent>,
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

enum Work {
    Page(Result<Events, ClientError>),
    Snapshots(Vec<Snapshot>),
}

enum News {
    Published(Option<Delivery>),
    Done(Work),
    Waited,
}

impl Client {
    /// Follows a session from a place in its log on: 1 gives all of it. Whatever is published after
    /// this returns is not missed.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] when the subscription is not in force within four seconds, or
    /// this user may not subscribe.
    pub async fn follow(&self, session: &SessionId, from: Seq) -> Result<Follow, ClientError> {
        Follow::start(self.clone(), session.clone(), from).await
    }
}

impl Follow {
    async fn start(client: Client, session: SessionId, from: Seq) -> Result<Self, ClientError> {
        let subject = Topic::Session(&session).to_string();
        let reader = if client.bus().is_private() {
            Reader::from(from).trusting()
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
            joined: false,
            is_retrying: false,
            lost: None,
            since: Instant::now(),
        })
    }

    /// Waits for the next event, as long as it takes. Cancel safe: dropping the future loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// The session was deleted, this user may not read it, or the connection was closed for good.
    /// Every later call gives the same error.
    pub async fn next(&mut self) -> Result<FollowEvent, ClientError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if let Some(error) = &self.lost {
                return Err(error.clone());
            }
            self.begin_work();
            match self.news().await {
                News::Published(Some(delivery)) => self.published(&delivery),
                News::Published(None) => {
                    let error = BusError::Away("the subscription ended; connect again".into());
                    self.lost = Some(ClientError::Unreachable(error));
                }
                News::Done(work) => self.done(work),
                News::Waited => {}
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn news(&mut self) -> News {
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
                News::Done(work)
            }
            delivery = self.published.next() => News::Published(delivery),
            Some(()) = wait => News::Waited,
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
            let told = self.reader.published(event, now);
            self.give(told);
        } else if let Ok(head) = serde_json::from_slice::<Head>(&delivery.payload) {
            self.reader.head(head.seq, now);
        }
    }

    fn done(&mut self, work: Work) {
        let now = self.now();
        match work {
            Work::Page(Ok(page)) => {
                self.is_retrying = false;
                let events = page
                    .events
                    .iter()
                    .filter_map(|event| serde_json::from_str(event.get()).ok())
                    .collect();
                let told = self.reader.page(events, page.next, page.head, now);
                self.queue.extend(
                    self.reader
                        .take_retracted()
                        .into_iter()
                        .map(FollowEvent::Retracted),
                );
                self.give(told);
            }
            Work::Page(Err(ClientError::Refused(refusal)))
                if matches!(refusal.code, Code::NotFound | Code::Denied) =>
            {
                self.lost = Some(ClientError::Refused(refusal));
            }
            Work::Page(Err(error)) => {
                self.reader.page_failed();
                if !std::mem::replace(&mut self.is_retrying, true) {
                    self.queue.push_back(FollowEvent::Retrying(error));
                }
            }
            Work::Snapshots(snapshots) => {
                let told: Vec<_> = snapshots
                    .iter()
                    .flat_map(|snapshot| self.reader.snapshot(snapshot))
                    .collect();
                self.give(told);
                self.queue.push_back(FollowEvent::CaughtUp);
            }
        }
    }

    fn give(&mut self, events: Vec<Envelope>) {
        let told = events.into_iter().map(|event| match event.seq {
            Some(_) => FollowEvent::Durable(event),
            None => FollowEvent::Live(event),
        });
        self.queue.extend(told);
    }
}

async fn page(client: Client, session: SessionId, from: Seq, pause: Duration) -> Work {
    tokio::time::sleep(pause).await;
    let read = ReadEvents {
        from: Some(from),
        limit: Some(PAGE),
        agent: None,
    };
    Work::Page(client.events(&session, &read).await)
}

/// What the running agents are in the middle of. An agent that cannot say is told by what it saves.
async fn snapshots(client: Client, session: SessionId) -> Work {
    let agents = client
        .session(&session)
        .await
        .map(|info| info.agents)
        .unwrap_or_default();
    let running = |state| match state {
        AgentState::Streaming | AgentState::ExecutingTools | AgentState::Compacting => true,
        AgentState::Idle | AgentState::Stopped => false,
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
    Work::Snapshots(
        asked
            .buffer_unordered(8)
            .filter_map(std::future::ready)
            .collect()
            .await,
    )
}
