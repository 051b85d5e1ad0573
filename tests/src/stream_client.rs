//! A client of a front's stream of events that is cut off again and again, and checks what it gets.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use planck_common::{
    AgentId, Seq,
    envelope::Envelope,
    event::{Delta, Event},
    message::{MessageRole, Part},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpStream,
    time::{Instant, sleep, timeout_at},
};

use crate::front::{AUTHORIZATION, open, status};

/// The pause after a front could not be reached or cut the client off.
const PAUSE: Duration = Duration::from_millis(100);

/// What a client got of a session.
#[derive(Debug, Default)]
pub struct StreamClient {
    /// The number of the last durable event.
    pub last: Seq,
    /// The durable events, in the order in which they came.
    pub events: Vec<Envelope>,
    /// How often the client connected.
    pub connections: u32,
    /// The value of its header `Authorization`.
    bearer: String,
    /// The text of the running request of each agent, by part. A part is incomplete if the client
    /// missed its beginning.
    running: BTreeMap<AgentId, RunningText>,
    /// The number of saved messages whose text the client had put together from deltas before.
    pub joined: u32,
}

#[derive(Debug, Default)]
struct RunningText {
    /// The epoch and the number of the request. A node that takes over uses the number again.
    request: (i64, u32),
    parts: BTreeMap<usize, String>,
}

impl StreamClient {
    /// Returns a client with a key of the fronts.
    pub fn with_key(key: &str) -> Self {
        Self {
            bearer: format!("Bearer {key}"),
            ..Self::default()
        }
    }

    /// Follows a session at these fronts, in turn, until a durable event is the last one. After
    /// each of the given times the client drops its connection by itself.
    pub async fn follow(
        mut self,
        fronts: &[SocketAddr],
        session: &str,
        is_last: impl Fn(&Envelope) -> bool,
        patience: Duration,
        mut lifetime: impl FnMut() -> Duration,
    ) -> Result<Self> {
        let until = Instant::now() + patience;
        let mut turn = fastrand::usize(..fronts.len());
        while Instant::now() < until {
            turn += 1;
            let front = *fronts.get(turn % fronts.len()).context("no front")?;
            let end = (Instant::now() + lifetime()).min(until);
            if let Ok(true) = self.connect_once(front, session, &is_last, end).await? {
                return Ok(self);
            }
            sleep(PAUSE).await;
        }
        bail!(
            "the last event did not come; the client is at {}",
            self.last
        )
    }

    /// Reads one connection to its end. The inner result is whether the last event came, or why the
    /// connection ended. The outer one fails if the client got something wrong.
    async fn connect_once(
        &mut self,
        front: SocketAddr,
        session: &str,
        is_last: &impl Fn(&Envelope) -> bool,
        end: Instant,
    ) -> Result<Result<bool>> {
        let path = format!("/v1/sessions/{session}/events");
        let last = self.last.to_string();
        let headers = [
            ("Accept", "text/event-stream"),
            ("Last-Event-ID", last.as_str()),
            (AUTHORIZATION, self.bearer.as_str()),
        ];
        let Ok(Ok(stream)) = timeout_at(end, open(front, "GET", &path, &headers, "")).await else {
            return Ok(Ok(false));
        };
        let mut lines = BufReader::new(stream).lines();
        match timeout_at(end, head(&mut lines)).await {
            Ok(Ok(200)) => {}
            Ok(Ok(status)) if status >= 500 => return Ok(Ok(false)),
            Ok(Ok(status)) => bail!("the stream was refused with {status}"),
            Ok(Err(_)) | Err(_) => return Ok(Ok(false)),
        }
        self.connections += 1;
        self.running.clear();
        let (mut id, mut name) = (None, None);
        while let Ok(Ok(Some(line))) = timeout_at(end, lines.next_line()).await {
            match line.split_once(": ") {
                Some(("id", text)) => id = Some(text.parse::<Seq>()?),
                Some(("event", text)) => name = Some(text.to_owned()),
                Some(("data", data)) if name.is_none() => {
                    let event: Envelope = serde_json::from_str(data)?;
                    ensure!(event.seq == id, "id {id:?} of {data}");
                    if self.take(event)?.is_some_and(is_last) {
                        return Ok(Ok(true));
                    }
                }
                Some(_) | None => {}
            }
            if line.is_empty() {
                (id, name) = (None, None);
            }
        }
        Ok(Ok(false))
    }

    /// Checks an event, and returns it if it is durable.
    fn take(&mut self, event: Envelope) -> Result<Option<&Envelope>> {
        let Some(seq) = event.seq else {
            if let Some(Ok(Event::TextDelta(delta))) = event.event() {
                self.delta(&event, &delta)?;
            }
            return Ok(None);
        };
        ensure!(seq == self.last + 1, "event {seq} came after {}", self.last);
        self.last = seq;
        if let Some(Ok(Event::Message(saved))) = event.event()
            && saved.message.role == MessageRole::Assistant
        {
            self.compare(&event, &saved.message.content)?;
        }
        self.events.push(event);
        Ok(self.events.last())
    }

    fn delta(&mut self, event: &Envelope, delta: &Delta) -> Result<()> {
        let running = self.running.entry(event.agent_id.clone()).or_default();
        let request = (event.epoch, event.request);
        if running.request != request {
            *running = RunningText {
                request,
                parts: BTreeMap::new(),
            };
        }
        let text = running.parts.entry(delta.part).or_default();
        let known = text.chars().count();
        ensure!(
            known == delta.offset,
            "a delta at {} after {known}",
            delta.offset
        );
        text.push_str(&delta.text);
        Ok(())
    }

    /// Fails unless the text that was put together from deltas begins the saved text.
    fn compare(&mut self, event: &Envelope, content: &[Part]) -> Result<()> {
        // The pieces of a later reply may arrive before a message that NATS lost.
        let is_running = |running: &RunningText| running.request == (event.epoch, event.request);
        if !self.running.get(&event.agent_id).is_some_and(is_running) {
            return Ok(());
        }
        let running = self.running.remove(&event.agent_id).unwrap_or_default();
        for (part, text) in running.parts {
            let Some(Part::Text { text: saved, .. }) = content.get(part) else {
                bail!("part {part} of message {:?} is no text", event.seq);
            };
            ensure!(
                saved.starts_with(&text),
                "{text:?} does not begin {saved:?}"
            );
            self.joined += u32::from(*saved == text);
        }
        Ok(())
    }
}

/// Reads the head of an answer, and returns its status.
async fn head(lines: &mut Lines<BufReader<TcpStream>>) -> Result<u16> {
    let first = lines.next_line().await?.context("no answer")?;
    while let Some(line) = lines.next_line().await? {
        if line.is_empty() {
            return status(&first);
        }
    }
    bail!("the head broke off")
}
