//! The client of the socket.

use std::{
    collections::HashMap,
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use planck_common::{
    AgentId, NodeId, SessionId,
    subject::{Address, Prefix},
};
use tokio::{
    io::BufReader,
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{SocketFrame, ToClient, ToServer, WAITING, other_user, path_in, write_frames};
use crate::{
    Bus, BusError, CommandHandler, Delivery, OutboxLimits, Published, ServiceGuard,
    memory::{BEHIND, check_size},
    publisher::{LinkStatus, Outlet, Publisher},
};

/// How long a subscription or a flush may take. The server does both at once.
const SOON: Duration = Duration::from_secs(4);

/// The bus of another process, to which this one is connected by a socket. If that process ends, all
/// calls fail, and the subscriptions end. The other process alone serves requests.
pub struct SocketBus {
    link: Arc<SocketLink>,
    publisher: Publisher,
    _stop: DropGuard,
}

#[derive(Debug)]
struct SocketLink {
    frames: mpsc::Sender<SocketFrame<ToServer>>,
    next: AtomicU64,
    state: Mutex<LinkState>,
}

/// The callers and the subscriptions to which the server's frames go.
#[derive(Debug, Default)]
struct LinkState {
    has_ended: bool,
    replies: HashMap<u64, oneshot::Sender<Result<Bytes, BusError>>>,
    subscriptions: HashMap<u64, mpsc::Sender<Delivery>>,
}

impl SocketBus {
    /// Connects to the process that listens in a folder. Returns `None` if there is none. Fails if
    /// the process is one of another user.
    pub async fn connect(folder: &Path) -> io::Result<Option<Self>> {
        let connected = async {
            let folder = File::open(folder)?;
            UnixStream::connect(path_in(&folder)).await
        };
        let is_none = |why: &io::Error| {
            matches!(
                why.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            )
        };
        let stream = match connected.await {
            Ok(stream) => stream,
            Err(why) if is_none(&why) => return Ok(None),
            Err(why) => return Err(why),
        };
        match other_user(&stream)? {
            None => Ok(Some(Self::over(stream))),
            Some(user) => Err(io::Error::other(format!(
                "the process that listens there is one of the user {user}"
            ))),
        }
    }

    fn over(stream: UnixStream) -> Self {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (frames, to_write) = mpsc::channel(WAITING);
        let link = Arc::new(SocketLink {
            frames,
            next: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let (reading, writing) = stream.into_split();
        let transfer = transfer(Arc::clone(&link), reading, writing, to_write);
        tasks.spawn(stop.clone().run_until_cancelled_owned(transfer));
        let publisher = Publisher::start(
            Arc::clone(&link),
            Prefix::default(),
            OutboxLimits::default(),
            &tasks,
            stop.clone(),
        );
        Self {
            link,
            publisher,
            _stop: stop.drop_guard(),
        }
    }
}

/// Transfers frames until the other process closes the connection.
async fn transfer(
    link: Arc<SocketLink>,
    reading: OwnedReadHalf,
    writing: OwnedWriteHalf,
    to_write: mpsc::Receiver<SocketFrame<ToServer>>,
) {
    let reader = async {
        let mut reading = BufReader::new(reading);
        while let Some(frame) = SocketFrame::read(&mut reading).await? {
            link.take(frame);
        }
        Ok(())
    };
    let done: io::Result<()> = tokio::select! {
        done = reader => done,
        done = write_frames(writing, to_write) => done,
    };
    if let Err(error) = done {
        tracing::debug!(%error, "the connection to the process with the agents failed");
    }
    link.end();
}

impl SocketLink {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends everything that waits for the other process.
    fn end(&self) {
        *self.state() = LinkState {
            has_ended: true,
            ..LinkState::default()
        };
    }

    fn has_ended(&self) -> bool {
        self.state().has_ended
    }

    fn take(&self, frame: SocketFrame<ToClient>) {
        let mut state = self.state();
        match frame.header {
            ToClient::Done { id } => reply(&mut state, id, Ok(frame.payload)),
            ToClient::Failed { id, error } => reply(&mut state, id, Err(error)),
            ToClient::Message { id, subject } => {
                let Some(messages) = state.subscriptions.get(&id) else {
                    return;
                };
                let delivery = Delivery {
                    subject,
                    payload: frame.payload,
                };
                if messages.try_send(delivery).is_err() && !messages.is_closed() {
                    tracing::warn!("dropped a message: its subscription is read too slowly");
                }
            }
        }
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    async fn send(&self, frame: SocketFrame<ToServer>) -> Result<(), BusError> {
        self.frames.send(frame).await.map_err(|_| BusError::Ended)
    }

    /// Sends a frame, and waits for the reply to its id.
    async fn ask(&self, id: u64, frame: SocketFrame<ToServer>) -> Result<Bytes, BusError> {
        let (reply, answered) = oneshot::channel();
        {
            let mut state = self.state();
            if state.has_ended {
                return Err(BusError::Ended);
            }
            state.replies.insert(id, reply);
        }
        self.send(frame).await?;
        answered.await.unwrap_or(Err(BusError::Ended))
    }
}

fn reply(state: &mut LinkState, id: u64, done: Result<Bytes, BusError>) {
    // The caller may have stopped to wait.
    let _gone = state.replies.remove(&id).map(|waits| waits.send(done));
}

/// A subscription of this process, which ends on the other side when it is dropped.
struct Subscription {
    link: Arc<SocketLink>,
    id: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Self { link, id } = self;
        link.state().subscriptions.remove(id);
        // If the queue is full, the messages that still come are dropped.
        let _left = link
            .frames
            .try_send(SocketFrame::bare(ToServer::Unsubscribe { id: *id }));
    }
}

#[async_trait]
impl Bus for SocketBus {
    fn publish(&self, subject: String, payload: Bytes) {
        self.publisher.publish(subject, payload);
    }

    fn publish_event(&self, event: Published) {
        self.publisher.publish_event(event);
    }

    fn turn_open(&self, session: &SessionId, agent: &AgentId, open: bool) {
        self.publisher.turn_open(session, agent, open);
    }

    async fn request(
        &self,
        to: &Address,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, BusError> {
        check_size(&body)?;
        let (id, to) = (self.link.id(), to.to_string());
        let frame = SocketFrame {
            header: ToServer::Request {
                id,
                to: to.clone(),
                timeout,
            },
            payload: body,
        };
        // The other process keeps the time. This limit holds if it hangs.
        let within = timeout.saturating_add(SOON);
        let asked = tokio::time::timeout(within, self.link.ask(id, frame)).await;
        asked.unwrap_or(Err(BusError::TimedOut {
            subject: to,
            after: within,
        }))
    }

    async fn subscribe(&self, subject: &str) -> Result<BoxStream<'static, Delivery>, BusError> {
        let id = self.link.id();
        let (sender, receiver) = mpsc::channel(BEHIND);
        self.link.state().subscriptions.insert(id, sender);
        let subscription = Subscription {
            link: Arc::clone(&self.link),
            id,
        };
        let frame = SocketFrame::bare(ToServer::Subscribe {
            id,
            subject: subject.to_owned(),
        });
        let asked = tokio::time::timeout(SOON, self.link.ask(id, frame)).await;
        asked.unwrap_or(Err(BusError::TimedOut {
            subject: subject.to_owned(),
            after: SOON,
        }))?;
        let messages = ReceiverStream::new(receiver);
        Ok(messages
            .inspect(move |_| {
                let _kept = &subscription;
            })
            .boxed())
    }

    async fn serve(
        &self,
        _: &NodeId,
        _: CommandHandler,
    ) -> Result<Box<dyn ServiceGuard>, BusError> {
        Err(BusError::Unfit(
            "a node needs a bus of its own, or NATS; set NATS_URL".into(),
        ))
    }

    fn is_private(&self) -> bool {
        true
    }

    fn is_connected(&self) -> bool {
        !self.link.has_ended()
    }

    async fn flush(&self, timeout: Duration) -> Result<(), BusError> {
        self.publisher.flush(timeout).await
    }
}

impl Outlet for SocketLink {
    fn link(&self) -> LinkStatus {
        LinkStatus {
            up: !self.has_ended(),
            connects: 1,
        }
    }

    async fn link_changed(&self) {
        // It only ends.
        std::future::pending().await
    }

    async fn send(&self, subject: String, payload: Bytes) -> Result<(), BusError> {
        let header = ToServer::Publish { subject };
        Self::send(self, SocketFrame { header, payload }).await
    }

    async fn flush(&self) -> Result<(), BusError> {
        let id = self.id();
        let frame = SocketFrame::bare(ToServer::Flush { id, timeout: SOON });
        self.ask(id, frame).await.map(drop)
    }
}
