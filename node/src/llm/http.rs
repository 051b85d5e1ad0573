//! One request: it is let through the gate, sent, and its stream read to the end, so that its
//! connection is used again.

mod reader;
mod refusal;
mod retry_after;

use std::{error::Error as _, io, sync::Arc};

use futures_util::{Stream, stream};
use reqwest::{RequestBuilder, Response, header::CONTENT_TYPE};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};

use self::{reader::Reader, refusal::Refusal};
use super::{
    Progress,
    allowance::{Allowance, AnswerBounds},
    catalogue::Entry,
    client::watched,
    decode::{Decoder, broken},
    gate::Gate,
    options::Times,
    wire::{Target, Wire},
};
use crate::{
    model::{Chunk, Failure, Finish},
    secret::Secret,
    terminal::clean_line,
};

/// Kept connections that may turn out to be closed, one after the other, before a request is sent
/// for the last time.
const MOST_CLOSED: usize = 8;

/// A request that is ready to be sent, and what reading its answer takes.
pub struct Call {
    pub name: Arc<str>,
    pub request: reqwest::RequestBuilder,
    /// Of its connection among those that are kept.
    pub place: Option<OwnedSemaphorePermit>,
    pub destination: Destination,
    /// Whether the configuration names the server, so that its words may be shown to people.
    pub configured: bool,
    pub wire: &'static dyn Wire,
    pub target: Target,
    pub key: Option<Secret>,
    pub times: Times,
    pub answer: AnswerBounds,
    pub gate: Arc<Gate>,
    pub entry: Entry,
}

/// Where a request goes, for messages.
pub struct Destination {
    pub address: String,
    pub model: String,
}

/// Where a stream stands between two of its items.
enum State {
    Ready(Box<Call>),
    Reading(Box<Reading>),
    /// All was read; the end is told next.
    Ended(Result<Finish, Failure>),
    Over,
}

struct Reading {
    voice: Voice,
    entry: Entry,
    gate: Arc<Gate>,
    decoder: Box<dyn Decoder>,
    reader: Reader,
    allowance: Allowance,
    /// At the gate, and of its connection.
    _places: [Option<OwnedSemaphorePermit>; 2],
}

pub fn stream(call: Call) -> impl Stream<Item = Result<Progress, Failure>> + Send + 'static {
    stream::unfold(State::Ready(Box::new(call)), next)
}

async fn next(mut state: State) -> Option<(Result<Progress, Failure>, State)> {
    loop {
        state = match state {
            State::Over => return None,
            State::Ended(result) => return Some((result.map(Progress::Finished), State::Over)),
            State::Ready(call) => match begin(*call).await {
                Ok(reading) => State::Reading(reading),
                Err(failure) => State::Ended(Err(failure)),
            },
            State::Reading(mut reading) => {
                let (chunks, end) = reading.read().await;
                let state = end.map_or_else(|| State::Reading(reading), State::Ended);
                if !chunks.is_empty() {
                    return Some((Ok(Progress::Chunks(chunks)), state));
                }
                state
            }
        }
    }
}

/// Sends the request and looks at the head of its answer.
async fn begin(call: Call) -> Result<Box<Reading>, Failure> {
    let Call {
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
        gate,
        entry,
    } = call;
    let voice = Voice {
        name,
        key,
        configured,
    };
    let place = gate.enter().await;
    let sent = Instant::now();
    let answer = timeout_at(sent + times.first_byte, send(request)).await;
    let response = match answer {
        Err(_) => Err(broken(format!(
            "no answer from {} within {} s",
            destination.address,
            times.first_byte.as_secs_f64()
        ))
        .into()),
        Ok(Err(error)) => Err(refusal::unsent(error, &destination.address).into()),
        Ok(Ok(response)) => accepted(response, times, &destination).await,
    };
    match response {
        Ok(response) => {
            gate.went_well();
            let reader = Reader::new(response, times, sent);
            let (decoder, allowance) = (wire.decoder(&target), Allowance::new(bounds));
            Ok(Box::new(Reading {
                voice,
                entry,
                gate,
                decoder,
                reader,
                allowance,
                _places: [place, kept],
            }))
        }
        Err(refused) => Err(voice.tell(refused, &gate)),
    }
}

/// Sends a request, once more where a connection that was used again had been closed by then: the
/// server saw nothing of it, or has told nobody what it saw.
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

/// Whether the connection ended before a byte of the answer came.
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

/// The response if it is a stream; else what its body says.
async fn accepted(
    response: Response,
    times: Times,
    destination: &Destination,
) -> Result<Response, Refusal> {
    let status = response.status();
    if status.is_success() && is_stream(&response) {
        return Ok(response);
    }
    Err(refusal::of(response, times.between_content, destination).await)
}

/// An HTML page is no answer. Any other body is recognised by its bytes, because content types are
/// often wrong.
fn is_stream(response: &Response) -> bool {
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    !kind.starts_with("text/html")
}

/// How failures of one provider are worded.
struct Voice {
    name: Arc<str>,
    key: Option<Secret>,
    configured: bool,
}

impl Voice {
    /// Names the provider, hides the key, and slows everybody down if that was asked. The words of
    /// a server that the configuration does not name are not repeated to anybody.
    fn tell(&self, refusal: Refusal, gate: &Gate) -> Failure {
        let Refusal { failure, overload } = refusal;
        if overload {
            gate.slow_down(failure.retry_after);
        }
        let said = failure
            .public
            .as_ref()
            .filter(|_| !self.configured)
            .unwrap_or(&failure.message);
        let message = self.word(said);
        Failure {
            message,
            public: failure.public.as_ref().map(|public| self.word(public)),
            ..failure
        }
    }

    fn word(&self, said: &str) -> String {
        let message = clean_line(&format!("{}: {said}", self.name)).into_owned();
        match &self.key {
            Some(key) => key.scrub(message),
            None => message,
        }
    }
}

impl Reading {
    /// Reads once. Returns the chunks, and the result if the stream ended.
    async fn read(&mut self) -> (Vec<Chunk>, Option<Result<Finish, Failure>>) {
        let mut chunks = Vec::new();
        let end = match self.reader.next(self.decoder.is_whole()).await {
            Ok(Some(bytes)) => self.decoder.feed(&bytes, &mut chunks).err().map(Err),
            Ok(None) => Some(self.decoder.finish(&mut chunks)),
            // A reply whose end came is whole, though the server keeps the connection open.
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
            Err(failure) => Err(self.voice.tell(failure.into(), &self.gate)),
        });
        (chunks, end)
    }

    fn priced(&self, mut finish: Finish) -> Finish {
        finish.usage.cost_usd = self.entry.cost(&finish.usage);
        finish.names = self.decoder.names();
        finish
    }
}
