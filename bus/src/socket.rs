//! Lets other processes of the same user use the bus of this process, over a Unix socket. So commands
//! reach the agents of a process that has no NATS.
//!
//! A message is a frame: the lengths of its header and of its payload, each a `u32` in big-endian
//! order, the header as JSON, and the payload. Tools cannot connect, because their sandbox has no Unix
//! sockets.

mod client;
mod server;

use std::{fs::File, io, os::fd::AsRawFd as _, path::PathBuf, time::Duration};

use bytes::Bytes;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufWriter},
    net::{UnixStream, unix::OwnedWriteHalf},
    sync::mpsc,
};

pub use self::{client::SocketBus, server::SocketServer};

use crate::{BusError, memory::MAX_PAYLOAD};

/// The name of the socket in its folder.
const NAME: &str = "bus.sock";

/// The maximum size of a header in bytes. A header has a subject or an error.
const MOST_HEADER: usize = 64 << 10;

/// The number of frames that wait for the other end to read them. A subscription holds more messages.
const WAITING: usize = 64;

/// The header of a client's frame. The payload is the body of the request or of the message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToServer {
    Publish {
        subject: String,
    },
    Request {
        id: u64,
        to: String,
        timeout: Duration,
    },
    Flush {
        id: u64,
        timeout: Duration,
    },
    Subscribe {
        id: u64,
        subject: String,
    },
    Unsubscribe {
        id: u64,
    },
}

/// The header of the server's frame. The payload is the body of the reply or of the message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToClient {
    /// The reply to the request with this id, or that the flush or the subscription is done.
    Done {
        id: u64,
    },
    Failed {
        id: u64,
        error: BusError,
    },
    /// A message for the subscription with this id.
    Message {
        id: u64,
        subject: String,
    },
}

#[derive(Debug)]
struct SocketFrame<H> {
    header: H,
    payload: Bytes,
}

impl<H> SocketFrame<H> {
    /// Returns a frame without a payload.
    fn bare(header: H) -> Self {
        Self {
            header,
            payload: Bytes::new(),
        }
    }
}

impl<H: Serialize> SocketFrame<H> {
    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let header = serde_json::to_vec(&self.header)?;
        let length = |part: &[u8]| u32::try_from(part.len()).map_err(io::Error::other);
        to.write_u32(length(&header)?).await?;
        to.write_u32(length(&self.payload)?).await?;
        to.write_all(&header).await?;
        to.write_all(&self.payload).await
    }
}

impl<H: DeserializeOwned> SocketFrame<H> {
    /// Reads a frame. Returns `None` at the end of the stream.
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let header = match from.read_u32().await {
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            length => part(length?, MOST_HEADER)?,
        };
        let payload = part(from.read_u32().await?, MAX_PAYLOAD)?;
        let mut both = vec![0; header + payload];
        from.read_exact(&mut both).await?;
        let mut both = Bytes::from(both);
        let payload = both.split_off(header);
        Ok(Some(Self {
            header: serde_json::from_slice(&both)?,
            payload,
        }))
    }
}

/// Writes frames until their senders are gone.
async fn write_frames<H: Serialize>(
    to: OwnedWriteHalf,
    mut frames: mpsc::Receiver<SocketFrame<H>>,
) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    while let Some(frame) = frames.recv().await {
        frame.write(&mut to).await?;
        if frames.is_empty() {
            to.flush().await?;
        }
    }
    Ok(())
}

/// Returns the user of the process at the other end, unless it is this user or root.
fn other_user(stream: &UnixStream) -> io::Result<Option<u32>> {
    let user = stream.peer_cred()?.uid();
    Ok(Some(user).filter(|user| *user != geteuid().as_raw() && *user != 0))
}

/// Returns a path of the socket that is short enough for the kernel (107 bytes), however long the path
/// of its folder is.
fn path_in(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", folder.as_raw_fd()))
}

fn part(length: u32, most: usize) -> io::Result<usize> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    match length <= most {
        true => Ok(length),
        false => Err(io::Error::other("a part of a frame is too long")),
    }
}

#[cfg(test)]
mod tests;
