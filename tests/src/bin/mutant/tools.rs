//! The mutant's behaviour when one of its tools or its compactor is called, or a call is cancelled.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::{Client, HeaderMap, Message, Subject};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

use crate::mutation::Mutation;

pub struct RequestHandler {
    client: Client,
    mutation: Mutation,
    running: Mutex<HashMap<String, &'static Notify>>,
    epochs: Mutex<HashMap<String, i64>>,
    text: Mutex<String>,
    turn: tokio::sync::Mutex<()>,
    open: watch::Sender<usize>,
}

/// The keys of a tool call that this version of the protocol defines.
const KNOWN: &[&str] = &[
    "v",
    "call_id",
    "tool",
    "args",
    "agent_id",
    "session_id",
    "team_id",
    "epoch",
    "deadline_ms",
];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RequestHandler {
    pub fn new(client: Client, mutation: Mutation) -> Self {
        let (running, epochs, text, turn) = Default::default();
        Self {
            client,
            mutation,
            running,
            epochs,
            text,
            turn,
            open: watch::channel(0).0,
        }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    pub fn begin(&self) {
        self.open.send_modify(|open| *open += 1);
    }

    pub fn end(&self) {
        self.open.send_modify(|open| *open -= 1);
    }

    pub async fn finished(&self) {
        let mut open = self.open.subscribe();
        let _last = open.wait_for(|open| *open == 0).await;
    }

    pub fn cancel(&self, body: &[u8]) {
        let cancel: Value = serde_json::from_slice(body).unwrap_or_default();
        let running = cancel["call_id"]
            .as_str()
            .and_then(|id| lock(&self.running).get(id).copied());
        if let Some(running) = running.filter(|_| !self.is(Mutation::IgnoresCancel)) {
            running.notify_one();
        }
    }

    pub async fn take(&self, name: &str, message: Message) {
        let Some(reply) = message.reply else { return };
        let request: Value = serde_json::from_slice(&message.payload).unwrap_or_default();
        let answer = match name {
            "head" => self.compact(&request),
            _ => self.call(name, &request, &reply).await,
        };
        let Some(answer) = answer else { return };
        if let (true, Some(error)) = (self.is(Mutation::ErrorInHeader), answer["error"].as_str()) {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Service-Error", error);
            headers.insert("Nats-Service-Error-Code", "400");
            let _sent = self
                .client
                .publish_with_headers(reply, headers, "".into())
                .await;
            return;
        }
        let mut text = answer.to_string();
        let most = self.client.server_info().max_payload;
        if text.len() > most {
            if self.is(Mutation::SilentWhenTooLarge) {
                return;
            }
            text = json!({"v": 1, "error": "too large"}).to_string();
        }
        if self.is(Mutation::PlainText) {
            text = answer["ok"].as_str().map(str::to_owned).unwrap_or(text);
        }
        self.send(&reply, &text).await;
        if self.is(Mutation::AnswersTwice) {
            self.send(&reply, &text).await;
        }
        if self.is(Mutation::ProgressAfterAnswer) && name == "countdown" {
            self.send(&reply, r#"{"v":1,"progress":{"message":"done"}}"#)
                .await;
        }
    }

    async fn send(&self, reply: &Subject, text: &str) {
        let _sent = self
            .client
            .publish(reply.clone(), text.to_owned().into())
            .await;
    }

    async fn call(&self, name: &str, request: &Value, reply: &Subject) -> Option<Value> {
        let error = |text: &str| Some(json!({"v": 1, "error": text}));
        let needed = ["call_id", "args", "agent_id", "epoch"];
        if !needed.iter().all(|key| request.get(key).is_some()) {
            match self.mutation {
                Mutation::SilentOnMalformed => return None,
                Mutation::DiesOfMalformed => std::process::exit(3),
                _ => return error("malformed"),
            }
        }
        let unknown = request
            .as_object()
            .into_iter()
            .flatten()
            .any(|(key, _)| !KNOWN.contains(&key.as_str()));
        if unknown && self.is(Mutation::RefusesUnknownFields) {
            return error("unknown field");
        }
        let agent = request["agent_id"].as_str()?.to_owned();
        let epoch = request["epoch"].as_i64()?;
        let highest = *lock(&self.epochs)
            .entry(agent)
            .and_modify(|highest| *highest = epoch.max(*highest))
            .or_insert(epoch);
        if epoch < highest && !self.is(Mutation::TakesStaleEpochs) {
            return error("stale epoch");
        }
        let args = &request["args"];
        let fits = match name {
            "repeat" => args["text"].is_string() && args["times"].is_u64(),
            _ => args["seconds"].is_number(),
        };
        if !fits {
            match self.mutation {
                Mutation::TakesBadArgs => (),
                Mutation::SilentOnBadArgs => return None,
                Mutation::DiesOfBadArgs => std::process::exit(3),
                _ => return error("the arguments do not fit"),
            }
        }
        let call_id = request["call_id"].as_str()?.to_owned();
        let cancelled: &'static Notify = Box::leak(Box::default());
        if lock(&self.running)
            .insert(call_id.clone(), cancelled)
            .is_some()
        {
            match self.mutation {
                Mutation::RunsTwice => (),
                Mutation::BusyInOtherWords => return error("already running"),
                _ => return error("in progress"),
            }
        }
        let left = match self.mutation {
            Mutation::IgnoresDeadline => 3_600_000,
            _ => request["deadline_ms"].as_u64()?,
        };
        let answer = tokio::select! {
            answer = timeout(Duration::from_millis(left), self.run(name, args, reply)) => answer.unwrap_or_else(|_| error("late")),
            () = cancelled.notified() => error("cancelled"),
        };
        lock(&self.running).remove(&call_id);
        answer
    }

    async fn run(&self, name: &str, args: &Value, reply: &Subject) -> Option<Value> {
        let _turn = match self.mutation {
            Mutation::OneAtATime => Some(self.turn.lock().await),
            _ => None,
        };
        if name == "countdown" {
            self.count_down(args["seconds"].as_f64().unwrap_or(0.0), reply)
                .await;
            return Some(json!({"v": 1, "ok": "lift-off"}));
        }
        let mut text = args["text"].as_str().unwrap_or_default().to_owned();
        if self.is(Mutation::MixesUpCalls) {
            lock(&self.text).clone_from(&text);
            sleep(Duration::from_millis(50)).await;
            text = lock(&self.text).clone();
        }
        let text = text.repeat(usize::try_from(args["times"].as_u64().unwrap_or(1)).unwrap_or(1));
        match self.mutation {
            Mutation::NeverAnswers => None,
            Mutation::NoVersion => Some(json!({"ok": text})),
            Mutation::UnknownKey => Some(json!({"v": 1, "result": text})),
            Mutation::OkIsNoText => Some(json!({"v": 1, "ok": {"text": text}})),
            _ => Some(json!({"v": 1, "ok": text})),
        }
    }

    async fn count_down(&self, seconds: f64, reply: &Subject) {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            let progress = match self.mutation {
                Mutation::ProgressIsText => json!("counting"),
                Mutation::PercentTooHigh => json!({"message": "counting", "percent": 150}),
                _ => json!({"message": "counting", "percent": 50}),
            };
            self.send(reply, &json!({"v": 1, "progress": progress}).to_string())
                .await;
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn compact(&self, request: &Value) -> Option<Value> {
        let ids: Vec<i64> = request["messages"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|message| message["id"].as_i64())
            .collect();
        let Some(last) = ids.last() else {
            return Some(json!({"v": 1, "error": "malformed"}));
        };
        if ids.len() < 4 && !self.is(Mutation::CompactsShort) {
            return Some(json!({"v": 1, "skip": true}));
        }
        let summary = match self.mutation {
            Mutation::SummaryTooLong => "long ".repeat(50_000),
            Mutation::SummaryEmpty => String::new(),
            _ => "They had looked at files, one after the other, and found nothing that would have been worth a word.".into(),
        };
        let keep_from = match self.mutation {
            Mutation::KeepsFromNowhere => last + 1000,
            Mutation::KeepsEverything => *ids.first()?,
            Mutation::SplitsPairs => *ids.iter().rev().nth(2)?,
            _ => *last,
        };
        match self.mutation {
            Mutation::SkipIsNoBool => Some(json!({"v": 1, "skip": "yes"})),
            _ => Some(json!({"v": 1, "compact": {"summary": summary, "keep_from": keep_from}})),
        }
    }
}
