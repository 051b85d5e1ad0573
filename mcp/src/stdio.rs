//! The transport of `rmcp` over two streams, with what it lacks for servers that are slow or do not
//! read: the late answer to a probe is skipped, and answers that a server does not read are bounded.

use std::{io, sync::Arc};

use rmcp::{
    RoleClient,
    model::{ClientRequest, JsonRpcMessage, RequestId},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};

/// The maximum number of messages that wait to be written. While as many wait, nothing is read, so
/// that a server that asks without reading the answers takes no memory.
const WAITING: usize = 256;

pub struct StdioTransport<R: AsyncRead, W: AsyncWrite> {
    inner: AsyncRwTransport<RoleClient, R, W>,
    waiting: Arc<Semaphore>,
    /// The `server/discover` that has no answer yet.
    probe: Option<RequestId>,
    /// The `server/discover` that had no answer when `initialize` was sent. `rmcp` waits 10 s for
    /// it, and would take a later answer for that to `initialize`.
    late: Option<RequestId>,
}

impl<R, W> StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    pub fn new(output: R, input: W) -> Self {
        // The bound of `rmcp` drops a line. The reader below it fails before that.
        let inner = AsyncRwTransport::new_client(output, input).with_max_line_length(usize::MAX);
        Self {
            inner,
            waiting: Arc::new(Semaphore::new(WAITING)),
            probe: None,
            late: None,
        }
    }

    fn note_request(&mut self, message: &TxJsonRpcMessage<RoleClient>) {
        if let JsonRpcMessage::Request(request) = message {
            if matches!(request.request, ClientRequest::DiscoverRequest(_)) {
                self.probe = Some(request.id.clone());
            } else if matches!(request.request, ClientRequest::InitializeRequest(_)) {
                self.late = self.probe.take();
            }
        }
    }

    /// Returns whether a message is the late answer to a probe.
    fn is_late(&mut self, message: &RxJsonRpcMessage<RoleClient>) -> bool {
        let id = if let JsonRpcMessage::Response(response) = message {
            Some(&response.id)
        } else if let JsonRpcMessage::Error(error) = message {
            error.id.as_ref()
        } else {
            None
        };
        if id.is_none() {
            return false;
        }
        self.probe.take_if(|probe| Some(&*probe) == id);
        self.late.take_if(|late| Some(&*late) == id).is_some()
    }
}

impl<R, W> Transport<RoleClient> for StdioTransport<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.note_request(&message);
        let (waiting, sending) = (self.waiting.clone(), self.inner.send(message));
        async move {
            let _place = waiting.acquire_owned().await.map_err(io::Error::other)?;
            sending.await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            drop(self.waiting.acquire().await.ok()?);
            let message = self.inner.receive().await?;
            if !self.is_late(&message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.inner.close().await
    }
}
