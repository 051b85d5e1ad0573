//! The bare loop, which sends the requests of a workload with the HTTP client of a node, reads each
//! stream to its end, and does nothing else.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::{
    measure::{LEAST, Span, Waves},
    workload::{ModelAnswer, Workload, call},
};

/// A bare loop on a single thread, whose connections stay open between its waves.
pub struct BareLoop {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    base: String,
    answers: Vec<ModelAnswer>,
    turns: usize,
}

impl BareLoop {
    /// Must not be called on a thread that drives a runtime.
    pub fn new(workload: Workload, base: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = planck_providers::client(&planck_providers::ClientOptions::default())?;
        Ok(Self {
            runtime,
            client,
            base: base.to_owned(),
            answers: workload.answers(),
            turns: workload.turns(),
        })
    }

    /// Runs the turns of all agents concurrently, with one future for each agent. Returns how long
    /// each turn took.
    pub fn wave(&self, agents: usize) -> Result<Vec<Duration>> {
        let agents =
            (0..agents).map(|_| agent(&self.client, &self.base, &self.answers, self.turns));
        let times = self.runtime.block_on(try_join_all(agents))?;
        Ok(times.into_iter().flatten().collect())
    }
}

/// Runs the workload. A short one runs once before it is measured, so that its connections are
/// open, and is then repeated for at least [`LEAST`].
pub async fn run(workload: Workload, agents: usize, base: &str) -> Result<Waves> {
    let base = base.to_owned();
    let work = move || {
        let bare = BareLoop::new(workload, &base)?;
        let mut waves = Waves::default();
        if workload.is_short() {
            bare.wave(agents)?;
        }
        let span = Span::of(workload, None);
        loop {
            waves.add(bare.wave(agents)?);
            waves.turns = span.end();
            if !workload.is_short() || waves.turns.wall >= LEAST {
                return Ok(waves);
            }
        }
    };
    tokio::task::spawn_blocking(work)
        .await
        .context("the bare loop failed")?
}

async fn agent(
    client: &reqwest::Client,
    base: &str,
    answers: &[ModelAnswer],
    turns: usize,
) -> Result<Vec<Duration>> {
    let (mut history, mut times) = (head()?, Vec::with_capacity(turns));
    for _ in 0..turns {
        let began = Instant::now();
        add(
            &mut history,
            &json!({ "role": "user", "content": "Read the lines." }),
        )?;
        for (round, answer) in answers.iter().enumerate() {
            ask(client, base, &history).await?;
            append_answer(&mut history, round, *answer)?;
        }
        times.push(began.elapsed());
    }
    Ok(times)
}

async fn ask(client: &reqwest::Client, base: &str, history: &[u8]) -> Result<()> {
    let body = [history, b"]}"].concat();
    let request = client
        .post(format!("{base}/chat/completions"))
        .header("content-type", "application/json")
        .body(body);
    let mut response = request.send().await?.error_for_status()?;
    while response.chunk().await?.is_some() {}
    Ok(())
}

/// Appends the model's answer, which is known in advance, and the results of its calls to the
/// history.
fn append_answer(history: &mut Vec<u8>, round: usize, answer: ModelAnswer) -> Result<()> {
    let calls: Vec<_> = (0..answer.calls).map(|at| call(round, at)).collect();
    let id = |at: usize| format!("call_{round}_{at}");
    let listed = calls.iter().enumerate().map(|(at, call)| {
        json!({ "id": id(at), "type": "function", "function": { "name": call.name, "arguments": call.args.to_string() } })
    });
    if calls.is_empty() {
        return add(
            history,
            &json!({ "role": "assistant", "content": "word ".repeat(answer.deltas) }),
        );
    }
    add(
        history,
        &json!({ "role": "assistant", "content": null, "tool_calls": listed.collect::<Vec<_>>() }),
    )?;
    (0..answer.calls).try_for_each(|at| {
        add(
            history,
            &json!({ "role": "tool", "tool_call_id": id(at), "content": "line 1" }),
        )
    })
}

fn head() -> Result<Vec<u8>> {
    let parameters = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let tool = json!({ "type": "function", "function": { "name": "read", "description": "Read a file.", "parameters": parameters } });
    let options = json!({ "model": "bench", "stream": true, "stream_options": { "include_usage": true }, "tools": [tool] });
    let mut bytes = serde_json::to_vec(&options)?;
    bytes.pop();
    bytes.extend_from_slice(br#","messages":["#);
    bytes.extend(serde_json::to_vec(
        &json!({ "role": "system", "content": "Be brief." }),
    )?);
    Ok(bytes)
}

fn add(history: &mut Vec<u8>, message: &Value) -> Result<()> {
    history.push(b',');
    Ok(serde_json::to_writer(history, message)?)
}
