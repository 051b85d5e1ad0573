//! The connection to the client: reads its messages, lets its requests be performed, and writes to
//! it.

use std::{
    collections::HashMap,
    io,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    rpc::{Incoming, Outgoing, Params, RequestId, RpcError, next_line},
    sessions::Sessions,
    wire::{
        AgentInfo, CancelRequest, Capabilities, Initialize, Initialized, NamedSession, Nothing,
        PromptCapabilities, SessionCapabilities, SessionUpdate, Update, VERSION,
    },
};
use crate::output::warn;

/// How many lines wait for a client that reads slowly. Then the sessions wait too.
const WAITING: usize = 64;
/// How many requests are performed at once.
const MOST_REQUESTS: usize = 1_024;
/// How long the first request may take, if all that it gets is an error.
const FIRST: Duration = Duration::from_secs(5);
/// How long the last lines may take.
const LAST: Duration = Duration::from_secs(2);

/// The way to the client. Clones share one connection.
#[derive(Debug, Clone)]
pub struct ToClient {
    lines: mpsc::Sender<String>,
    asked: Arc<Mutex<Asked>>,
}

/// The requests to the client that have no answer yet.
#[derive(Debug, Default)]
struct Asked {
    last: i64,
    open: HashMap<i64, oneshot::Sender<ClientAnswer>>,
}

type ClientAnswer = Result<Box<RawValue>, RpcError>;

impl ToClient {
    /// Sends a message. If the client has gone, the connection is about to end, and the message is
    /// dropped.
    async fn send<T: Serialize>(&self, message: &Outgoing<T>) {
        match message.line() {
            Ok(line) => drop(self.lines.send(line).await),
            Err(why) => warn(&format!("planck: a message has no JSON: {why}")),
        }
    }

    pub async fn answer<T: Serialize>(&self, id: RequestId, answer: Result<T, RpcError>) {
        self.send(&Outgoing::answer(id, answer)).await;
    }

    pub async fn update(&self, session_id: &str, update: Update) {
        let update = SessionUpdate { session_id, update };
        self.send(&Outgoing::notification("session/update", update))
            .await;
    }

    /// Sends a request, and waits for its answer without a time limit, because a person gives it.
    /// If the question is withdrawn first, the client is told so, and nothing is returned.
    pub async fn ask<T: Serialize>(
        &self,
        method: &'static str,
        params: T,
        withdrawn: &CancellationToken,
    ) -> Option<ClientAnswer> {
        let (sender, answer) = oneshot::channel();
        let id = self.asked().open(sender);
        self.send(&Outgoing::request(id, method, params)).await;
        let gone = || RpcError::new(RpcError::INTERNAL, "the client has gone");
        tokio::select! {
            answer = answer => Some(answer.unwrap_or_else(|_| Err(gone()))),
            () = withdrawn.cancelled() => {
                self.asked().open.remove(&id);
                let cancel = CancelRequest { request_id: RequestId::Number(id) };
                self.send(&Outgoing::notification("$/cancel_request", cancel)).await;
                None
            }
        }
    }

    /// Takes an answer of the client. An answer to what was not asked, or a second one, is dropped.
    fn answered(&self, id: &RequestId, answer: ClientAnswer) {
        let RequestId::Number(id) = id else { return };
        let asked = self.asked().open.remove(id);
        if let Some(asked) = asked {
            // The prompt may be over.
            let _ = asked.send(answer);
        }
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    fn open(&mut self, sender: oneshot::Sender<ClientAnswer>) -> i64 {
        // Nothing waits any more for the answers to some of them.
        self.open.retain(|_, asked| !asked.is_closed());
        self.last += 1;
        self.open.insert(self.last, sender);
        self.last
    }
}

/// Serves a client until it closes its end, or `stop` is cancelled. `open` creates the sessions for
/// the way to the client. The work of sessions does not end with the connection.
pub async fn serve(
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
    open: impl FnOnce(ToClient) -> Sessions,
    stop: CancellationToken,
) -> io::Result<()> {
    let (lines, queue) = mpsc::channel(WAITING);
    let mut writing = pin!(write(queue, output));
    let to_client = ToClient {
        lines,
        asked: Arc::default(),
    };
    let connection = Connection {
        sessions: Arc::new(open(to_client.clone())),
        to_client,
        is_initialized: false,
        requests: JoinSet::new(),
    };
    let read = tokio::select! {
        read = connection.read(input) => read,
        written = &mut writing => return written,
        () = stop.cancelled() => Ok(()),
    };
    // The connection is dropped, and with it the requests. What they have sent is still written.
    let _ = timeout(LAST, writing).await;
    read
}

/// Answers the first request of a client with an error, if it comes soon.
pub async fn refuse(input: impl AsyncRead + Unpin, mut output: impl AsyncWrite + Unpin, why: &str) {
    let mut input = BufReader::new(input);
    let refuse = async {
        while let Ok(Some(line)) = next_line(&mut input).await {
            let message = line.ok().and_then(|line| Incoming::parse(&line).ok());
            if let Some(Incoming::Request { id, .. }) = message {
                let error = RpcError::new(RpcError::INTERNAL, why);
                let line = Outgoing::<Nothing>::answer(id, Err(error)).line();
                output
                    .write_all(line.unwrap_or_default().as_bytes())
                    .await?;
                return output.flush().await;
            }
        }
        Ok(())
    };
    // The reason is also what the command ends with.
    let _ = timeout(FIRST, refuse).await;
}

async fn write(
    mut queue: mpsc::Receiver<String>,
    mut output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    while let Some(line) = queue.recv().await {
        output.write_all(line.as_bytes()).await?;
        output.flush().await?;
    }
    Ok(())
}

struct Connection {
    sessions: Arc<Sessions>,
    to_client: ToClient,
    is_initialized: bool,
    requests: JoinSet<()>,
}

impl Connection {
    async fn read(mut self, input: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut input = BufReader::new(input);
        while let Some(line) = next_line(&mut input).await? {
            while self.requests.try_join_next().is_some() {}
            let message = line
                .map_err(|error| (RequestId::Null, error))
                .and_then(|line| Incoming::parse(&line));
            match message {
                Ok(Incoming::Request { id, method, params }) => {
                    if let Err(error) = self.request(&id, &method, &params).await {
                        self.to_client.answer::<Nothing>(id, Err(error)).await;
                    }
                }
                Ok(Incoming::Notification { method, params }) => self.notified(&method, &params),
                Ok(Incoming::Response { id, result }) => self.to_client.answered(&id, result),
                Err((id, error)) => self.to_client.answer::<Nothing>(id, Err(error)).await,
            }
        }
        Ok(())
    }

    /// Answers a request, or begins to perform it. An error is the answer.
    async fn request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: &Params,
    ) -> Result<(), RpcError> {
        if method == "initialize" {
            let initialize: Initialize = params.read()?;
            self.sessions.serve_a(initialize.client_capabilities.used());
            self.is_initialized = true;
            self.to_client.answer(id.clone(), Ok(initialized())).await;
            return Ok(());
        }
        if !self.is_initialized {
            let why = format!("`{method}` came before `initialize`");
            return Err(RpcError::new(RpcError::NO_REQUEST, why));
        }
        if self.requests.len() >= MOST_REQUESTS {
            let why = format!("{MOST_REQUESTS} requests are being performed; wait for an answer");
            return Err(RpcError::new(RpcError::INTERNAL, why));
        }
        self.begin(id.clone(), method, params)
    }

    /// Begins to perform a request. The order of requests holds up to here, so that a
    /// `session/cancel` finds the prompt before it.
    fn begin(&mut self, id: RequestId, method: &str, params: &Params) -> Result<(), RpcError> {
        let sessions = Arc::clone(&self.sessions);
        match method {
            // There is no method of authentication, so nothing is left to do.
            "authenticate" | "logout" => {
                let to_client = self.to_client.clone();
                let answer = async move { to_client.answer(id, Ok(Nothing {})).await };
                self.requests.spawn(answer);
            }
            "session/new" => {
                let new = params.read()?;
                self.requests.spawn(sessions.create(id, new));
            }
            "session/load" | "session/resume" => {
                let claim = sessions.claim(&params.read::<NamedSession>()?.session_id, None)?;
                let tells_history = method == "session/load";
                let open = sessions.open(id, claim, params.read()?, tells_history);
                self.requests.spawn(open);
            }
            "session/list" => {
                let list = params.read()?;
                self.requests.spawn(sessions.list(id, list));
            }
            "session/close" => {
                let named = params.read()?;
                self.requests.spawn(sessions.close(id, named));
            }
            "session/delete" => {
                let named = params.read()?;
                self.requests.spawn(sessions.delete(id, named));
            }
            "session/set_mode" => {
                let set = params.read()?;
                self.requests.spawn(sessions.set_mode(id, set));
            }
            "session/set_config_option" => {
                let set = params.read()?;
                self.requests.spawn(sessions.set_config_option(id, set));
            }
            "session/prompt" => {
                if let Some(prompt) = sessions.take_prompt(id, params.read()?)? {
                    self.requests.spawn(prompt);
                }
            }
            other => {
                let why = format!("there is no method `{other}`");
                return Err(RpcError::new(RpcError::UNKNOWN_METHOD, why));
            }
        }
        Ok(())
    }

    /// Takes a notification. One that is unknown or malformed is dropped, because it has no answer.
    fn notified(&self, method: &str, params: &Params) {
        match method {
            "session/cancel" => {
                if let Ok(NamedSession { session_id }) = params.read() {
                    self.sessions.cancel(&session_id);
                }
            }
            "$/cancel_request" => {
                if let Ok(CancelRequest { request_id }) = params.read() {
                    self.sessions.cancel_request(&request_id);
                }
            }
            _ => {}
        }
    }
}

fn initialized() -> Initialized {
    Initialized {
        protocol_version: VERSION,
        agent_capabilities: Capabilities {
            load_session: true,
            prompt_capabilities: PromptCapabilities {
                image: true,
                embedded_context: true,
            },
            session_capabilities: SessionCapabilities {
                list: Nothing {},
                resume: Nothing {},
                close: Nothing {},
                delete: Nothing {},
            },
        },
        agent_info: AgentInfo {
            name: "planck",
            title: "Planck",
            version: env!("PLANCK_VERSION"),
        },
        auth_methods: [],
    }
}
