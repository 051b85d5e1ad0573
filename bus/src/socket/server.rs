//! The server of the socket.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::FileTypeExt as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use planck_common::subject::Address;
use tokio::{
    io::BufReader,
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc},
    task::{AbortHandle, JoinSet},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{SocketFrame, ToClient, ToServer, WAITING, other_user, path_in, write_frames};
use crate::{Bus, BusError};

/// The maximum number of clients at a time.
const MOST_CLIENTS: usize = 64;

/// The maximum number of requests and subscriptions of one client at a time. The requests that the
/// bus runs at once have a limit of their own.
const MOST_TASKS: usize = 1_024;

/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves a bus on a socket, until it is dropped. Then the socket's file is removed.
#[derive(Debug)]
pub struct SocketServer {
    folder: File,
    _stop: DropGuard,
}

impl SocketServer {
    /// Listens on a socket in a folder that only this user can change. Returns `None` if another
    /// process listens there. The socket that a dead process has left is replaced.
    pub fn listen(folder: &Path, bus: Arc<dyn Bus>) -> io::Result<Option<Self>> {
        let open = File::open(folder)?;
        let path = path_in(&open);
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Ok(None);
        }
        if fs::symlink_metadata(&path).is_ok_and(|left| left.file_type().is_socket()) {
            fs::remove_file(&path)?;
        }
        let listener = UnixListener::bind(&path)?;
        let stop = CancellationToken::new();
        tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(accept(listener, bus)),
        );
        Ok(Some(Self {
            folder: open,
            _stop: stop.drop_guard(),
        }))
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        // A file that is left over does no harm.
        let _left = fs::remove_file(path_in(&self.folder));
    }
}

/// Accepts clients. Dropping the future ends their connections.
async fn accept(listener: UnixListener, bus: Arc<dyn Bus>) {
    let places = Arc::new(Semaphore::new(MOST_CLIENTS));
    let mut clients = JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) if matches!(other_user(&stream), Ok(None)) => stream,
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client of the bus");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let bus = Arc::clone(&bus);
        clients.spawn(async move {
            let _place = place;
            if let Err(error) = attend(stream, bus).await {
                tracing::warn!(%error, "the connection of a client of the bus ended");
            }
        });
    }
}

/// Does what a client asks, until it closes the connection.
async fn attend(stream: UnixStream, bus: Arc<dyn Bus>) -> io::Result<()> {
    let (reading, writing) = stream.into_split();
    let (frames, to_write) = mpsc::channel::<SocketFrame<ToClient>>(WAITING);
    let mut tasks = JoinSet::new();
    let reader = async {
        let mut reading = BufReader::new(reading);
        let mut client = Attended {
            bus,
            frames,
            subscriptions: HashMap::new(),
        };
        while let Some(frame) = SocketFrame::read(&mut reading).await? {
            while tasks.try_join_next().is_some() {}
            match tasks.len() < MOST_TASKS {
                true => client.take(frame, &mut tasks),
                false => client.refuse(frame.header).await,
            }
        }
        Ok(())
    };
    tokio::select! {
        done = reader => done,
        done = write_frames(writing, to_write) => done,
    }
}

/// A client that is connected.
struct Attended {
    bus: Arc<dyn Bus>,
    frames: mpsc::Sender<SocketFrame<ToClient>>,
    subscriptions: HashMap<u64, AbortHandle>,
}

impl Attended {
    async fn refuse(&mut self, header: ToServer) {
        let why = format!("this connection has {MOST_TASKS} requests and subscriptions");
        match header {
            ToServer::Request { id, .. }
            | ToServer::Flush { id, .. }
            | ToServer::Subscribe { id, .. } => {
                answer(&self.frames, id, Err(BusError::Denied(why))).await;
            }
            ToServer::Publish { .. } => tracing::warn!("dropped a message: {why}"),
            ToServer::Unsubscribe { id } => self.unsubscribe(id),
        }
    }

    fn unsubscribe(&mut self, id: u64) {
        if let Some(task) = self.subscriptions.remove(&id) {
            task.abort();
        }
    }

    fn take(&mut self, frame: SocketFrame<ToServer>, tasks: &mut JoinSet<()>) {
        let (bus, frames) = (Arc::clone(&self.bus), self.frames.clone());
        match frame.header {
            ToServer::Publish { subject } => bus.publish(subject, frame.payload),
            ToServer::Request { id, to, timeout } => {
                tasks.spawn(async move {
                    let done = match Address::parse(&to) {
                        Some(to) => bus.request(&to, frame.payload, timeout).await,
                        None => Err(BusError::NoResponders(to)),
                    };
                    answer(&frames, id, done).await;
                });
            }
            ToServer::Flush { id, timeout } => {
                tasks.spawn(async move {
                    let done = bus.flush(timeout).await;
                    answer(&frames, id, done.map(|()| Bytes::new())).await;
                });
            }
            ToServer::Subscribe { id, subject } => {
                let task = tasks.spawn(forward(bus, subject, id, frames));
                self.subscriptions.insert(id, task);
            }
            ToServer::Unsubscribe { id } => self.unsubscribe(id),
        }
    }
}

async fn answer(
    frames: &mpsc::Sender<SocketFrame<ToClient>>,
    id: u64,
    done: Result<Bytes, BusError>,
) {
    let frame = match done {
        Ok(payload) => SocketFrame {
            header: ToClient::Done { id },
            payload,
        },
        Err(error) => SocketFrame::bare(ToClient::Failed { id, error }),
    };
    // The client may be gone.
    let _gone = frames.send(frame).await;
}

/// Sends the messages of a subscription to a client.
async fn forward(
    bus: Arc<dyn Bus>,
    subject: String,
    id: u64,
    frames: mpsc::Sender<SocketFrame<ToClient>>,
) {
    let mut messages = match bus.subscribe(&subject).await {
        Ok(messages) => messages,
        Err(error) => return answer(&frames, id, Err(error)).await,
    };
    answer(&frames, id, Ok(Bytes::new())).await;
    while let Some(message) = messages.next().await {
        let frame = SocketFrame {
            header: ToClient::Message {
                id,
                subject: message.subject,
            },
            payload: message.payload,
        };
        if frames.send(frame).await.is_err() {
            return;
        }
    }
}
