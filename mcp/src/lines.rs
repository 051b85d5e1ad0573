//! A reader that fails when a line is too long. A server that writes such a line either floods its
//! output or gives an answer that cannot be carried on. `rmcp` would drop the line and go on, and the
//! call that waits for it would never be answered.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, ReadBuf};

/// The maximum size of a line, which is one message, in bytes.
pub const LONGEST_LINE: usize = 16 << 20;

/// Passes on what `inner` reads until a line has more than `longest` bytes.
#[derive(Debug)]
pub struct BoundedLines<R> {
    inner: R,
    longest: usize,
    /// The number of bytes since the last end of a line.
    length: usize,
    on_long: Option<tokio::sync::oneshot::Sender<()>>,
}

impl<R> BoundedLines<R> {
    /// Creates the reader. It sends to `on_long` before it fails because of a line.
    pub fn new(inner: R, longest: usize, on_long: tokio::sync::oneshot::Sender<()>) -> Self {
        Self {
            inner,
            longest,
            length: 0,
            on_long: Some(on_long),
        }
    }

    /// Counts bytes that were read. Returns whether all lines are within the bound.
    fn admits(&mut self, read: &[u8]) -> bool {
        for (index, line) in read.split(|byte| *byte == b'\n').enumerate() {
            if index > 0 {
                self.length = 0;
            }
            self.length = self.length.saturating_add(line.len());
            if self.length > self.longest {
                return false;
            }
        }
        true
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        if self.admits(read) {
            return Poll::Ready(Ok(()));
        }
        // A reader that fails has read nothing.
        buffer.set_filled(before);
        if let Some(on_long) = self.on_long.take() {
            let _ = on_long.send(());
        }
        Poll::Ready(Err(io::Error::other("a line is too long")))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, sync::oneshot};

    use super::*;

    async fn read(bytes: &[u8], longest: usize) -> (io::Result<usize>, bool) {
        let (on_long, mut heard) = oneshot::channel();
        let mut lines = BoundedLines::new(bytes, longest, on_long);
        let end = lines.read_to_end(&mut Vec::new()).await;
        (end, heard.try_recv().is_ok())
    }

    #[tokio::test]
    async fn many_short_lines_pass() {
        let text = "12345\n".repeat(100_000);
        let (end, was_long) = read(text.as_bytes(), 5).await;
        assert_eq!((end.unwrap(), was_long), (600_000, false));
    }

    #[tokio::test]
    async fn a_long_line_fails_before_it_is_kept() {
        for text in ["123456", "12345\n123456\n", "\n\n1234567"] {
            let (end, was_long) = read(text.as_bytes(), 5).await;
            assert!(end.is_err() && was_long, "{text:?}");
        }
    }
}
