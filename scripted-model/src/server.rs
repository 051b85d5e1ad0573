//! The HTTP server: a listener, a script that can be replaced while the server runs, and a record
//! of the requests. A request is read and checked, recorded, and answered.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, State, connect_info::Connected},
    http::{
        HeaderName, HeaderValue, Request as HttpRequest, Response, StatusCode, header,
        request::Parts,
    },
    serve::{IncomingStream, Listener},
};
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    answer::{self, Playbook},
    play::{FrameWriter, Player, StreamEnding},
    record::{RecordedRequest, Recorder, Violation},
    request::{ModelRequest, RefusalKind, WireRefusal},
    script::{Reply, Script, ScriptedFault},
    wire::{self, Heading, Wire},
};

/// A running server. Dropping it ends its streams and closes its listener.
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerState>,
    task: JoinHandle<io::Result<()>>,
    stop: DropGuard,
}

struct ServerState {
    wires: &'static [&'static Wire],
    playbook: RwLock<Arc<Playbook>>,
    recorder: Recorder,
    stop: CancellationToken,
}

impl Server {
    /// Serves a script on a free port of 127.0.0.1, on the current runtime.
    pub async fn start(script: Script) -> io::Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0)).await?, script)
    }

    /// Serves a script on a free port of 127.0.0.1, and only in the format of chat completions. A
    /// program that starts no other server does not contain the code of the other formats.
    pub async fn start_chat_completions(script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        Self::serve_wires(listener, script, wire::CHAT_COMPLETIONS, None)
    }

    /// Serves a script on a bound listener, in all formats.
    pub fn serve(listener: TcpListener, script: Script) -> io::Result<Self> {
        Self::serve_wires(listener, script, wire::ALL, None)
    }

    /// Serves a script in all formats, and writes each request, each end of a stream and each
    /// refusal to a file, a line of JSON each.
    pub fn serve_with_log(listener: TcpListener, script: Script, log: File) -> io::Result<Self> {
        Self::serve_wires(listener, script, wire::ALL, Some(log))
    }

    fn serve_wires(
        listener: TcpListener,
        script: Script,
        wires: &'static [&'static Wire],
        log: Option<File>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let playbook = RwLock::new(Arc::new(Playbook::new(script)));
        let shared = Arc::new(ServerState {
            wires,
            playbook,
            recorder: Recorder::with_log(log),
            stop: stop.clone(),
        });
        let router = Router::new().fallback(handle).with_state(shared.clone());
        let numbered = NumberingListener {
            listener,
            shared: shared.clone(),
        };
        let service = router.into_make_service_with_connect_info::<ConnectionId>();
        let serving =
            axum::serve(numbered, service).with_graceful_shutdown(stop.clone().cancelled_owned());
        let task = tokio::spawn(serving.into_future());
        Ok(Self {
            address,
            shared,
            task,
            stop: stop.drop_guard(),
        })
    }

    /// Returns `http://ADDRESS:PORT`, the base of Anthropic's, Google's and Ollama's paths.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the base URL for OpenAI's clients, with `/v1`.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// Returns the base URL under which the server behaves like llama.cpp's.
    pub fn llama_cpp_url(&self) -> String {
        format!("{}/llama_cpp", self.url())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the script from the next request on. The recorded requests are kept.
    pub fn set_script(&self, script: Script) {
        *self
            .shared
            .playbook
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(Playbook::new(script));
    }

    /// Returns the latest requests that are kept, oldest first.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.recorder.requests()
    }

    /// Returns the number of requests that arrived, whether they are kept or not.
    pub fn request_count(&self) -> u64 {
        self.shared.recorder.recorded.load(Ordering::Relaxed)
    }

    /// Returns the requests that a real provider would have refused, or for which the script had no
    /// reply. Only the first 1,000 are kept.
    pub fn violations(&self) -> Vec<Violation> {
        self.shared.recorder.violations()
    }

    /// Returns the number of TCP connections that were accepted.
    pub fn connections(&self) -> u64 {
        self.shared.recorder.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of streams that are open now.
    pub fn streams(&self) -> usize {
        self.shared.recorder.streams()
    }

    /// Returns the maximum number of streams that were open at the same time.
    pub fn most_streams(&self) -> usize {
        self.shared.recorder.most_streams()
    }

    /// Ends every stream and waits until the last connection is closed.
    pub async fn stop(self) -> io::Result<()> {
        drop(self.stop);
        self.task.await.map_err(io::Error::other)?
    }
}

impl ServerState {
    fn playbook(&self) -> Arc<Playbook> {
        self.playbook
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A listener that numbers the connections it accepts.
struct NumberingListener {
    listener: TcpListener,
    shared: Arc<ServerState>,
}

/// The number of a connection, from 1.
#[derive(Debug, Clone, Copy)]
struct ConnectionId(u64);

impl Listener for NumberingListener {
    type Io = TcpStream;
    type Addr = ConnectionId;

    async fn accept(&mut self) -> (TcpStream, ConnectionId) {
        let (stream, _) = Listener::accept(&mut self.listener).await;
        let _ = stream.set_nodelay(true); // without it only latency suffers
        (
            stream,
            ConnectionId(
                self.shared
                    .recorder
                    .connections
                    .fetch_add(1, Ordering::Relaxed)
                    + 1,
            ),
        )
    }

    fn local_addr(&self) -> io::Result<ConnectionId> {
        Ok(ConnectionId(0))
    }
}

impl Connected<IncomingStream<'_, NumberingListener>> for ConnectionId {
    fn connect_info(stream: IncomingStream<'_, NumberingListener>) -> Self {
        *stream.remote_addr()
    }
}

/// The maximum size of a request body that is read, in bytes. Real providers accept less.
const MOST_BYTES: usize = 64 * 1024 * 1024;

async fn handle(
    State(shared): State<Arc<ServerState>>,
    ConnectInfo(connection): ConnectInfo<ConnectionId>,
    request: HttpRequest<Body>,
) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, MOST_BYTES).await else {
        return plain(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the request is too large or was cut off".to_owned(),
        );
    };
    let mut request = seen(&shared, connection, &head, &bytes);
    let Some(wire) = shared
        .wires
        .iter()
        .find(|wire| (wire.serves)(&request.path))
    else {
        let message = format!("nothing is served at {}", request.path);
        shared.recorder.violated(Violation {
            serial: request.serial,
            path: request.path,
            message: message.clone(),
        });
        shared.recorder.recorded.fetch_add(1, Ordering::Relaxed);
        return plain(StatusCode::NOT_FOUND, message);
    };
    let playbook = shared.playbook();
    let judged = judge(wire, &playbook, &request);
    request.asked = judged.as_ref().ok().cloned();
    let (serial, path) = (request.serial, request.path.clone());
    shared.recorder.keep(request, playbook.script.keep.0);
    let answered = match judged {
        Ok(asked) => answer(&shared, &playbook, wire, &asked, serial, bytes.len()).await,
        Err(refusal) => Err(refusal),
    };
    answered.unwrap_or_else(|refusal| {
        let message = format!(
            "{}{}",
            refusal
                .field
                .as_deref()
                .map(|field| format!("{field}: "))
                .unwrap_or_default(),
            refusal.message
        );
        shared.recorder.violated(Violation {
            serial,
            path,
            message,
        });
        refused(wire, &refusal)
    })
}

fn seen(
    shared: &ServerState,
    ConnectionId(connection): ConnectionId,
    head: &Parts,
    body: &Bytes,
) -> RecordedRequest {
    let headers = head.headers.iter();
    RecordedRequest {
        serial: shared.recorder.serials.fetch_add(1, Ordering::Relaxed),
        at: Instant::now(),
        connection,
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: headers
            .map(|(name, value)| {
                (
                    name.to_string(),
                    String::from_utf8_lossy(value.as_bytes()).into_owned(),
                )
            })
            .collect(),
        body: serde_json::from_slice(body).unwrap_or(Value::Null),
        asked: None,
    }
}

fn judge(
    wire: &Wire,
    playbook: &Playbook,
    request: &RecordedRequest,
) -> Result<ModelRequest, WireRefusal> {
    if request.method != "POST" {
        return Err(WireRefusal {
            status: 405,
            ..WireRefusal::invalid("Method Not Allowed")
        });
    }
    let heading = Heading {
        path: &request.path,
        query: &request.query,
        headers: &request.headers,
    };
    (wire.authorise)(&playbook.script.auth, &heading)?;
    if !heading
        .header("content-type")
        .is_some_and(|kind| kind.starts_with("application/json"))
    {
        return Err(WireRefusal {
            status: 415,
            ..WireRefusal::invalid("content-type must be application/json")
        });
    }
    let asked = (wire.read)(&request.body, &heading)?;
    if !asked.stream {
        return Err(WireRefusal::invalid("this server only streams"));
    }
    Ok(asked)
}

async fn answer(
    shared: &Arc<ServerState>,
    playbook: &Playbook,
    wire: &Wire,
    asked: &ModelRequest,
    serial: u64,
    asked_bytes: usize,
) -> Result<Response<Body>, WireRefusal> {
    let unscripted = |message| WireRefusal {
        kind: RefusalKind::Invalid,
        ..WireRefusal::invalid(message)
    };
    let reply = playbook.reply(asked).map_err(unscripted)?;
    if reply.delay_ms > 0 {
        tokio::time::sleep(Duration::from_millis(reply.delay_ms)).await;
    }
    if let Some(response) = instead(shared, wire, reply.fault.as_ref()).await {
        return Ok(response);
    }
    let pace = reply.pace.unwrap_or(playbook.script.pace);
    let speech =
        answer::speech(&reply, asked, wire, serial, pace.chunk, asked_bytes).map_err(unscripted)?;
    let (limit, ending) = ending(wire, &reply);
    let player = Player {
        frames: FrameWriter::write(|out| (wire.write)(&speech, out)),
        limit,
        ending,
        pace,
        split: reply.split.map(fastrand::Rng::with_seed),
        stop: shared.stop.clone(),
        open: Box::new(OpenRequest::new(shared, serial)),
    };
    let id = HeaderValue::from(serial);
    let kind = HeaderValue::from_static(wire.content_type);
    Ok(with(
        StatusCode::OK,
        kind,
        Body::from_stream(player.play()),
        Some((HeaderName::from_static("request-id"), id)),
    ))
}

/// Returns the response for a fault that replaces the stream, or `None` if a stream is sent.
async fn instead(
    shared: &ServerState,
    wire: &Wire,
    fault: Option<&ScriptedFault>,
) -> Option<Response<Body>> {
    match fault? {
        ScriptedFault::Status {
            status,
            body,
            retry_after,
        } => {
            let refusal = WireRefusal::of_status(*status);
            let body = body.clone().unwrap_or_else(|| (wire.refuse)(&refusal));
            let wait = retry_after
                .as_deref()
                .and_then(|wait| HeaderValue::from_str(wait).ok());
            let kind = if body.starts_with('<') {
                "text/html"
            } else {
                "application/json"
            };
            let header = wait.map(|wait| (header::RETRY_AFTER, wait));
            Some(with(
                status_code(*status),
                HeaderValue::from_static(kind),
                body.into(),
                header,
            ))
        }
        ScriptedFault::Html(page) => Some(with(
            StatusCode::OK,
            HeaderValue::from_static("text/html; charset=utf-8"),
            page.clone().into(),
            None,
        )),
        ScriptedFault::HangBeforeHead => {
            shared.stop.cancelled().await;
            Some(plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the server stops".to_owned(),
            ))
        }
        ScriptedFault::Hang { .. }
        | ScriptedFault::Cut { .. }
        | ScriptedFault::End { .. }
        | ScriptedFault::Error { .. } => None,
    }
}

/// Returns how many events are sent at most, and what follows them.
fn ending(wire: &Wire, reply: &Reply) -> (usize, StreamEnding) {
    match &reply.fault {
        Some(ScriptedFault::Hang { after }) => (*after, StreamEnding::Hang),
        Some(ScriptedFault::Cut { after }) => (*after, StreamEnding::Cut),
        Some(ScriptedFault::End { after }) => (*after, StreamEnding::End),
        Some(ScriptedFault::Error { after, message }) => {
            let event = FrameWriter::write(|out| (wire.error_event)(message, out));
            (*after, StreamEnding::Say(event.range(0, event.count())))
        }
        Some(
            ScriptedFault::Status { .. } | ScriptedFault::Html(_) | ScriptedFault::HangBeforeHead,
        )
        | None => (usize::MAX, StreamEnding::End),
    }
}

fn refused(wire: &Wire, refusal: &WireRefusal) -> Response<Body> {
    let json = HeaderValue::from_static("application/json");
    with(
        status_code(refusal.status),
        json,
        (wire.refuse)(refusal).into(),
        None,
    )
}

fn plain(status: StatusCode, message: String) -> Response<Body> {
    with(
        status,
        HeaderValue::from_static("text/plain; charset=utf-8"),
        message.into(),
        None,
    )
}

fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn with(
    status: StatusCode,
    kind: HeaderValue,
    body: Body,
    more: Option<(HeaderName, HeaderValue)>,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.headers_mut().extend(more);
    response
}

/// A guard that counts a stream as open until it is dropped.
struct OpenRequest(Arc<ServerState>, u64);

impl OpenRequest {
    fn new(shared: &Arc<ServerState>, serial: u64) -> Self {
        shared.recorder.begin_stream();
        Self(shared.clone(), serial)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.recorder.end_stream(self.1);
    }
}
