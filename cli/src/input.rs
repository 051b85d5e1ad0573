//! Reads standard input for a protocol that a program writes.

use std::{
    io::{self, Read as _},
    thread,
};

use bytes::Bytes;
use futures_util::stream;
use tokio::{io::AsyncRead, sync::mpsc};
use tokio_util::io::StreamReader;

/// The size of the buffer for the input in bytes, and how many of them may wait.
const BUFFER: usize = 64 << 10;
const WAITING: usize = 4;

/// Returns the standard input. A thread of its own reads it, because tokio's reader would keep the
/// process from ending while the client writes nothing.
pub fn from_program() -> io::Result<impl AsyncRead + Send + Unpin + 'static> {
    let (sender, mut receiver) = mpsc::channel(WAITING);
    let read = move || {
        let (mut stdin, mut buffer) = (io::stdin().lock(), vec![0; BUFFER]);
        loop {
            let read = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(size) => Ok(Bytes::copy_from_slice(
                    buffer.get(..size).unwrap_or_default(),
                )),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_last = read.is_err();
            if sender.blocking_send(read).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("stdin".into()).spawn(read)?;
    Ok(StreamReader::new(stream::poll_fn(move |context| {
        receiver.poll_recv(context)
    })))
}
