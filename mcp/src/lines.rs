//! A reader that bounds what a server writes. It fails when a line is too long: `rmcp` would drop the
//! line and go on, and the call that waits for it would never be answered. And it reads no faster than
//! answers can be used, because a server may write notifications without end.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// The maximum size of a line, which is one message, in bytes.
pub const LONGEST_LINE: usize = 16 << 20;

/// The number of bytes that are read at once after a pause, and of those that are read in each second.
/// A line counts as [`LINE`] bytes more, for the work that each message causes.
const BURST: i64 = 64 << 20;
const PER_SECOND: i64 = 16 << 20;
const LINE: i64 = 1 << 10;

/// How long the reader waits when it has read too fast.
const PAUSE: Duration = Duration::from_millis(50);

/// Passes on what `inner` reads until a line has more than `longest` bytes.
#[derive(Debug)]
pub struct BoundedLines<R> {
    inner: R,
    longest: usize,
    /// The number of bytes that may be read now, as of `counted`. It is negative if too many were.
    left: i64,
    counted: Instant,
    pause: Pin<Box<Sleep>>,
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
            left: BURST,
            counted: Instant::now(),
            pause: Box::pin(sleep(Duration::ZERO)),
            length: 0,
            on_long: Some(on_long),
        }
    }

    /// Waits until bytes may be read.
    fn poll_allowance(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.left <= 0 {
            ready!(self.pause.as_mut().poll(context));
            let millis = i64::try_from(self.counted.elapsed().as_millis()).unwrap_or(i64::MAX);
            let more = millis.saturating_mul(PER_SECOND / 1000);
            self.left = self.left.saturating_add(more).min(BURST);
            self.counted = Instant::now();
            self.pause.as_mut().reset(self.counted + PAUSE);
        }
        Poll::Ready(())
    }

    /// Counts bytes that were read. Returns whether all lines are within the bound.
    fn admits(&mut self, read: &[u8]) -> bool {
        let length = i64::try_from(read.len()).unwrap_or(i64::MAX);
        self.left = self.left.saturating_sub(length);
        for (index, line) in read.split(|byte| *byte == b'\n').enumerate() {
            if index > 0 {
                self.length = 0;
                self.left = self.left.saturating_sub(LINE);
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
        ready!(self.poll_allowance(context));
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

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_lines_is_read_slowly() {
        let lines = (10 * PER_SECOND + BURST) / LINE;
        let text = "\n".repeat(lines.try_into().unwrap());
        let began = Instant::now();
        let (end, _) = read(text.as_bytes(), 5).await;
        assert_eq!(end.unwrap(), text.len());
        let took = began.elapsed().as_secs();
        assert!((8..=12).contains(&took), "{took} s");
    }

    #[tokio::test]
    async fn a_long_line_fails_before_it_is_kept() {
        for text in ["123456", "12345\n123456\n", "\n\n1234567"] {
            let (end, was_long) = read(text.as_bytes(), 5).await;
            assert!(end.is_err() && was_long, "{text:?}");
        }
    }
}
