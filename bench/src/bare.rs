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

/// Runs the turns of all agents concurrently on a single thread, with one future for each agent. A
/// short workload runs once before it is measured, so that its connections are open, and is then
/// repeated for at least [`LEAST`].
pub async fn run(workload: Workload, agents: usize, base: &str) -> Result<Waves> {
    let (base, answers, turns) = (base.to_owned(), workload.answers(), workload.turns());
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = planck_providers::client(&planck_providers::ClientOptions::default())?;
        runtime.block_on(async {
            let wave = || try_join_all((0..agents).map(|_| agent(&client, &base, &answers, turns)));
            let mut waves = Waves::default();
            if workload.is_short() {
                wave().await?;
            }
            let span = Span::of(workload, None);
            loop {
                waves.add(wave().await?.into_iter().flatten());
                waves.turns = span.end();
                if !workload.is_short() || waves.turns.wall >= LEAST {
                    return Ok(waves);
                }
            }
        })
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
