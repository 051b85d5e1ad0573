//! A session's events from any place in its log on, and then live: the way to join late, around the
//! [`Reader`].

use std::{collections::VecDeque, time::Duration};

use futures_util::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, OptionFuture},
    stream::BoxStream,
};
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
use planck_bus::Delivery;

/// Events of one page.
const PAGE: u32 = 500;
/// How long to wait before the log is asked for again.
const PAUSE: Duration = Duration::from_secs(2);

/// What a follower is told.
#[derive(Debug, Clone)]
pub enum Told {
    /// A row of the log, in order and once.
    Event(Envelope),
    /// An earlier [`Told::Event`] that is not in the log. The log's event follows.
    Retracted(Retracted),
    /// Something that only running agents say.
    Live(Envelope),
    /// All that was in the log has been told; what follows happens now.
    CaughtUp,
    /// The log cannot be read for now. It is tried again, and said once.
    Trouble(ClientError),
    /// The session is gone, or may not be read.
    Lost(ClientError),
}

/// A follower of one session. Dropping the future of [`Follow::next`] loses nothing.
pub struct Follow {
    client: Client,
    session: SessionId,
    reader: Reader,
    published: BoxStream<'static, Delivery>,
    work: Option<BoxFuture<'static, Work>>,
    queue: VecDeque<Told>,
    joined: bool,
    in_trouble: bool,
    over: bool,
    born: Instant,
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

impl Follow {
    /// Subscribes; what is published from now on is not missed. `from` is the first seq to tell.
    pub async fn start(client: Client, session: SessionId, from: Seq) -> Result<Self, ClientError> {
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
            in_trouble: false,
            over: false,
            born: Instant::now(),
        })
    }

    /// The next thing to tell; `None` after [`Told::Lost`].
    pub async fn next(&mut self) -> Option<Told> {
        loop {
            if let Some(told) = self.queue.pop_front() {
                return Some(told);
            }
            if self.over {
                return None;
            }
            self.begin_work();
            match self.news().await {
                News::Published(Some(delivery)) => self.published(&delivery),
                News::Published(None) => self.lose(ClientError::Unreachable(
                    planck_bus::BusError::Away("the subscription ended".into()),
                )),
                News::Done(work) => self.done(work),
                News::Waited => {}
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    async fn news(&mut self) -> News {
        let until = self
            .reader
            .patience()
            .filter(|_| self.work.is_none())
            .map(|at| self.born + Duration::from_millis(at));
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
            let pause = if self.in_trouble {
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
            self.tell(told);
        } else if let Ok(head) = serde_json::from_slice::<Head>(&delivery.payload) {
            self.reader.head(head.seq, now);
        }
    }

    fn done(&mut self, work: Work) {
        let now = self.now();
        match work {
            Work::Page(Ok(page)) => {
                self.in_trouble = false;
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
                        .map(Told::Retracted),
                );
                self.tell(told);
            }
            Work::Page(Err(ClientError::Refused(refusal)))
                if matches!(refusal.code, Code::NotFound | Code::Denied) =>
            {
                self.lose(ClientError::Refused(refusal));
            }
            Work::Page(Err(error)) => {
                self.reader.page_failed();
                if !std::mem::replace(&mut self.in_trouble, true) {
                    self.queue.push_back(Told::Trouble(error));
                }
            }
            Work::Snapshots(snapshots) => {
                let told: Vec<_> = snapshots
                    .iter()
                    .flat_map(|snapshot| self.reader.snapshot(snapshot))
                    .collect();
                self.tell(told);
                self.queue.push_back(Told::CaughtUp);
            }
        }
    }

    fn tell(&mut self, events: Vec<Envelope>) {
        let told = events.into_iter().map(|event| match event.seq {
            Some(_) => Told::Event(event),
            None => Told::Live(event),
        });
        self.queue.extend(told);
    }

    fn lose(&mut self, error: ClientError) {
        self.over = true;
        self.queue.push_back(Told::Lost(error));
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
