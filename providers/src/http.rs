//! Sends one request within the limit of its endpoint, and reads the stream of the answer to
//! its end so that the connection can be reused.

mod refusal;

use std::{error::Error as _, io, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, stream};
use reqwest::{RequestBuilder, Response, header::CONTENT_TYPE};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep_until, timeout_at},
};

use planck_agent::model::{Chunk, Failure, FailureKind, Finish};
use planck_host::terminal::clean_line;

use self::refusal::HttpRefusal;
use crate::{
    ReplyProgress,
    answer_bounds::{Allowance, AnswerBounds, over},
    catalogue::ModelFacts,
    client::watched,
    concurrency::ConcurrencyLimit,
    decode::{Decoder, broken},
    options::Times,
    secret::Secret,
    wire::{WireFormat, WireTarget},
};

/// The maximum number of attempts that may fail because a reused connection was already closed. One
/// last attempt follows them.
const MOST_CLOSED: usize = 8;

/// A request that is ready to be sent, and everything that is needed to read its answer.
pub struct HttpCall {
    pub name: Arc<str>,
    pub request: reqwest::RequestBuilder,
    /// The permit for a connection that is kept for the whole idle time, if this request has one.
    pub place: Option<OwnedSemaphorePermit>,
    pub destination: Destination,
    /// Whether the address belongs to the provider or is allowed by the configuration. Only then do
    /// users see the server's error messages.
    pub configured: bool,
    pub wire: &'static dyn WireFormat,
    pub target: WireTarget,
    pub key: Option<Secret>,
    pub times: Times,
    pub answer: AnswerBounds,
    pub concurrency: Arc<ConcurrencyLimit>,
    pub entry: ModelFacts,
}

/// The address and the model of a request, for error messages.
pub struct Destination {
    pub address: String,
    /// The address of the proxy through which the request goes.
    pub proxy: Option<String>,
    pub model: String,
}

impl Destination {
    /// Returns the address, and the proxy on the way to it, which may be what failed.
    fn way(&self) -> String {
        match &self.proxy {
            Some(proxy) => format!("{} through the proxy {proxy}", self.address),
            None => self.address.clone(),
        }
    }
}

/// The state of a stream between two of its items.
enum StreamState {
    Ready(Box<HttpCall>),
    Reading(Box<ReadingBody>),
    /// The request has succeeded or failed. The next item of the stream reports the result.
    Ended(Result<Finish, Failure>),
    Over,
}

struct ReadingBody {
    wording: FailureWording,
    entry: ModelFacts,
    concurrency: Arc<ConcurrencyLimit>,
    decoder: Box<dyn Decoder>,
    reader: BodyReader,
    allowance: Allowance,
    /// The permits for the request and for the kept connection. They are released when the answer has
    /// been read.
    _places: [Option<OwnedSemaphorePermit>; 2],
}

pub fn stream(
    call: HttpCall,
) -> impl Stream<Item = Result<ReplyProgress, Failure>> + Send + 'static {
    stream::unfold(StreamState::Ready(Box::new(call)), next)
}

async fn next(mut state: StreamState) -> Option<(Result<ReplyProgress, Failure>, StreamState)> {
    loop {
        state = match state {
            StreamState::Over => return None,
            StreamState::Ended(result) => {
                return Some((result.map(ReplyProgress::Finished), StreamState::Over));
            }
            StreamState::Ready(call) => match begin(*call).await {
                Ok(reading) => StreamState::Reading(reading),
                Err(failure) => StreamState::Ended(Err(failure)),
            },
            StreamState::Reading(mut reading) => {
                let (chunks, end) = reading.read().await;
                let state = end.map_or_else(|| StreamState::Reading(reading), StreamState::Ended);
                if !chunks.is_empty() {
                    return Some((Ok(ReplyProgress::Chunks(chunks)), state));
                }
                state
            }
        }
    }
}

/// Sends the request when the limit of its endpoint admits it, and reads the status and the headers of
/// its answer.
async fn begin(call: HttpCall) -> Result<Box<ReadingBody>, Failure> {
    let HttpCall {
        name,
        request,
        place: kept,
        destination,
        configured,
        wire,
        target,
        key,
        times,
        answer: bounds,
        concurrency,
        entry,
    } = call;
    let wording = FailureWording {
        name,
        address: destination.address.clone(),
        key,
        configured,
    };
    let place = concurrency.enter().await;
    let sent = Instant::now();
    let answer = timeout_at(sent + times.first_byte, send(request)).await;
    let response = match answer {
        Err(_) => Err(broken(format!(
            "no answer from {} within {} s",
            destination.way(),
            times.first_byte.as_secs_f64()
        ))
        .into()),
        Ok(Err(error)) => Err(refusal::unsent(error, &wording.name, &destination).into()),
        Ok(Ok(response)) => accepted(response, times, &destination).await,
    };
    match response {
        Ok(response) => {
            concurrency.went_well();
            let reader = BodyReader::new(response, times, sent);
            let (decoder, allowance) = (wire.decoder(&target), Allowance::new(bounds));
            Ok(Box::new(ReadingBody {
                wording,
                entry,
                concurrency,
                decoder,
                reader,
                allowance,
                _places: [place, kept],
            }))
        }
        Err(refused) => Err(wording.to_failure(refused, &concurrency)),
    }
}

/// Sends a request. If a reused connection turns out to be closed before the first byte of an
/// answer arrives, sends the request again on another connection.
async fn send(request: RequestBuilder) -> reqwest::Result<Response> {
    for _ in 0..MOST_CLOSED {
        let Some(copy) = request.try_clone() else {
            break;
        };
        match watched(copy.send()).await {
            (Err(error), false) if is_closed(&error) => {}
            (answer, _) => return answer,
        }
    }
    request.send().await
}

/// Returns whether the connection ended before the first byte of the answer arrived.
fn is_closed(error: &reqwest::Error) -> bool {
    if error.is_connect() || error.is_timeout() || error.is_body() || !error.is_request() {
        return false;
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        let by_hyper = inner
            .downcast_ref::<hyper::Error>()
            .is_some_and(|error| error.is_incomplete_message() || error.is_closed());
        let reset = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            )
        };
        if by_hyper || inner.downcast_ref::<io::Error>().is_some_and(reset) {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// Returns a successful response that may be a stream. For any other response, reads the body and
/// returns the reason for the refusal.
async fn accepted(
    response: Response,
    times: Times,
    destination: &Destination,
) -> Result<Response, HttpRefusal> {
    let status = response.status();
    if status.is_success() && is_stream(&response) {
        return Ok(response);
    }
    Err(refusal::of(response, times.between_content, destination).await)
}

/// Returns whether a response may be a stream. An HTML page is not a stream. Any other body is
/// identified later by its bytes, because content types are often wrong.
fn is_stream(response: &Response) -> bool {
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    !kind.starts_with("text/html")
}

/// The facts about a provider that determine the wording of its failures.
struct FailureWording {
    name: Arc<str>,
    address: String,
    key: Option<Secret>,
    configured: bool,
}

impl FailureWording {
    /// Converts a refusal into a failure: adds the provider's name, removes the key from the
    /// message, and delays other requests if the provider is overloaded. If the server is not
    /// `configured`, the server's own message is left out.
    fn to_failure(&self, refusal: HttpRefusal, concurrency: &ConcurrencyLimit) -> Failure {
        let HttpRefusal { failure, overload } = refusal;
        if overload {
            concurrency.slow_down(failure.retry_after);
        }
        let text = failure
            .public
            .as_ref()
            .filter(|_| !self.configured)
            .unwrap_or(&failure.message);
        let message = self.word(text);
        Failure {
            message,
            public: failure.public.as_ref().map(|public| self.word(public)),
            ..failure
        }
    }

    /// Converts a failure while the answer was read. What cannot be read may come from a wrong
    /// address, so the message names the address.
    fn while_reading(&self, mut failure: Failure, concurrency: &ConcurrencyLimit) -> Failure {
        match failure.kind {
            FailureKind::Transient | FailureKind::Refused if self.configured => {
                let message = failure.message.clone();
                failure.public.get_or_insert(message);
                failure.message = format!("{} (from {})", failure.message, self.address);
            }
            FailureKind::Transient
            | FailureKind::Refused
            | FailureKind::Auth
            | FailureKind::ContextFull
            | FailureKind::AnswerLimit => {}
        }
        self.to_failure(failure.into(), concurrency)
    }

    fn word(&self, text: &str) -> String {
        let message = clean_line(&format!("{}: {text}", self.name)).into_owned();
        match &self.key {
            Some(key) => key.scrub(message),
            None => message,
        }
    }
}

impl ReadingBody {
    /// Reads bytes once. Returns the resulting chunks, and how the stream ended if it did.
    async fn read(&mut self) -> (Vec<Chunk>, Option<Result<Finish, Failure>>) {
        let mut chunks = Vec::new();
        let end = match self.reader.next(self.decoder.is_whole()).await {
            Ok(Some(bytes)) => self.decoder.feed(&bytes, &mut chunks).err().map(Err),
            Ok(None) => Some(self.decoder.finish(&mut chunks)),
            // A reply whose end has arrived is complete, even if the server keeps the connection
            // open.
            Err(failure) => Some(self.decoder.finish(&mut chunks).map_err(|_| failure)),
        };
        let end = match self.allowance.take(&chunks) {
            Ok(true) => {
                self.reader.progressed();
                end
            }
            Ok(false) => end,
            Err(over) => {
                chunks.clear();
                Some(Err(over))
            }
        };
        let end = end.map(|end| match end {
            Ok(finish) => Ok(self.priced(finish)),
            Err(failure) => Err(self.wording.while_reading(failure, &self.concurrency)),
        });
        (chunks, end)
    }

    fn priced(&self, mut finish: Finish) -> Finish {
        finish.usage.cost_usd = self.entry.cost(&finish.usage);
        finish.names = self.decoder.names();
        finish
    }
}

// Reads the body of a response under its deadlines.

/// How long to wait for the end of a body after the reply is complete. If the end does not arrive
/// in time, the connection is closed instead of reused.
const DRAIN: Duration = Duration::from_millis(500);

struct BodyReader {
    response: Response,
    /// The only timer for the whole body. It is reset when it fires too early, which is cheaper
    /// than a reset at each read.
    alarm: Pin<Box<Sleep>>,
    deadline: Instant,
    between: Duration,
    /// When the next content must have arrived. Bytes without content, such as pings, comments and
    /// empty pieces, do not extend this deadline.
    due: Instant,
    drained: Option<Instant>,
}

impl BodyReader {
    fn new(response: Response, times: Times, sent: Instant) -> Self {
        // Until the first content, the time for the first byte applies too, because servers that
        // queue a request or read a long prompt send keep-alives before they begin to answer.
        let due = (Instant::now() + times.between_content).max(sent + times.first_byte);
        let deadline = sent + times.whole;
        let alarm = Box::pin(sleep_until(deadline.min(due)));
        Self {
            response,
            alarm,
            deadline,
            between: times.between_content,
            due,
            drained: None,
        }
    }

    /// Records that content arrived. The server may then be silent for another `between`.
    fn progressed(&mut self) {
        self.due = Instant::now() + self.between;
        // The time for the first byte no longer applies. That time may be longer than `between`, so
        // the timer may have to fire earlier.
        if self.due < self.alarm.deadline() {
            self.alarm.as_mut().reset(self.due.min(self.deadline));
        }
    }

    /// Returns the next bytes, or `None` at the end of the body. If the reply `is_whole`,
    /// returns `None` after [`DRAIN`] at the latest, even if the body has not ended.
    async fn next(&mut self, is_whole: bool) -> Result<Option<Bytes>, Failure> {
        if is_whole {
            return Ok(self.drain().await);
        }
        loop {
            tokio::select! {
                biased;
                () = self.alarm.as_mut() => self.rung()?,
                read = self.response.chunk() => return read.map_err(refusal::cut),
            }
        }
    }

    fn rung(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(over("took too long as a whole"));
        }
        if now >= self.due {
            return Err(broken(format!(
                "the stream brought nothing for {} s",
                self.between.as_secs_f64()
            )));
        }
        self.alarm.as_mut().reset(self.due.min(self.deadline));
        Ok(())
    }

    async fn drain(&mut self) -> Option<Bytes> {
        let until = *self.drained.get_or_insert_with(|| Instant::now() + DRAIN);
        let read = tokio::time::timeout_at(until, self.response.chunk()).await;
        read.ok()?.ok()?
    }
}
