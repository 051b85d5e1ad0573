//! Endless answers in every provider's wire format: text, calls, and events without content.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use planck_common::event::EventKind;
use planck_scripted_model::Script;
use planck_tests::machine::{PersonalMachine, Ran, of_kind, run};
use serde_json::json;
use tokio::process::Command;

use super::hostile::{Behaviour, Hostile};

const SSE: &str = "text/event-stream";
const NDJSON: &str = "application/x-ndjson";

/// Returns a command of one prompt whose model is served by the hostile server. With the provider
/// `responses` the command uses OpenAI's Responses API.
fn prompt(
    machine: &PersonalMachine,
    provider: &str,
    server: &Hostile,
    settings: &[(&str, &str)],
) -> Result<Command> {
    if provider == "responses" {
        return prompt(
            machine,
            "openai",
            server,
            &[settings, &[("WIRE", "responses")]].concat(),
        );
    }
    let mut command = machine.planck(&[
        "run",
        "-o",
        "jsonl",
        "--model",
        &format!("{provider}:m"),
        "go",
    ])?;
    let name = provider.to_uppercase();
    let base = if provider == "openai" {
        format!("{}/v1", server.url)
    } else {
        server.url.clone()
    };
    command
        .env_remove("OPENAI_BASE_URL")
        .env(format!("PLANCK_PROVIDERS_{name}_BASE_URL"), base);
    command.env(format!("PLANCK_PROVIDERS_{name}_MAX_ATTEMPTS"), "2");
    for (key, value) in settings {
        command.env(format!("PLANCK_PROVIDERS_{name}_{key}"), value);
    }
    Ok(command)
}

fn errors(ran: &Ran) -> Result<Vec<(String, String)>> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(of_kind(&ran.events()?, EventKind::Error)
        .iter()
        .map(|error| (text(&error["code"]), text(&error["reason"])))
        .collect())
}

/// Returns, for each wire format, bytes that keep a stream open but carry no content.
fn signs_of_life() -> Vec<(&'static str, &'static str, String)> {
    let empty = json!({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": null}]});
    let responses = json!({"type": "response.in_progress", "response": {"id": "resp_1", "status": "in_progress", "output": []}});
    let nothing = json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": ""});
    let google = json!({"candidates": [{"content": {"parts": [{"text": ""}]}}]});
    let ollama = json!({"message": {"role": "assistant", "content": ""}, "done": false});
    let thinking = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}});
    vec![
        (
            "anthropic",
            SSE,
            "event: ping\ndata: {\"type\":\"ping\"}\n\n".into(),
        ),
        (
            "anthropic",
            SSE,
            format!("event: content_block_start\ndata: {thinking}\n\n"),
        ),
        ("openai", SSE, ": OPENROUTER PROCESSING\n\n".into()),
        ("openai", SSE, format!("data: {empty}\n\n")),
        (
            "responses",
            SSE,
            format!("event: response.in_progress\ndata: {responses}\n\n"),
        ),
        (
            "responses",
            SSE,
            format!("event: response.output_text.delta\ndata: {nothing}\n\n"),
        ),
        ("google", SSE, format!("data: {google}\n\n")),
        ("ollama", NDJSON, format!("{ollama}\n")),
        ("ollama", NDJSON, "\n".into()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn signs_of_life_without_content_do_not_keep_a_turn_open() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    for (provider, kind, then) in signs_of_life() {
        let endless = Behaviour::Endless {
            kind,
            first: String::new(),
            then: then.clone(),
            pause: Duration::from_millis(50),
        };
        let server = Hostile::start(endless).await?;
        let settings = [
            ("IDLE_TIMEOUT", "1s"),
            ("FIRST_BYTE_TIMEOUT", "1s"),
            ("MAX_RETRY_DELAY", "10ms"),
        ];
        let began = Instant::now();
        let ran = run(prompt(&machine, provider, &server, &settings)?).await?;
        let errors = errors(&ran)?;
        assert!(
            ran.code == 1 && errors[0].1.contains("brought nothing for 1 s"),
            "{provider} {then}: {errors:?} {}",
            ran.err
        );
        assert_eq!(server.asked(), 2, "{provider} {then}: it is tried again");
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{provider} {then}: {:?}",
            began.elapsed()
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn text_before_an_unreadable_event_is_kept() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let text = json!({"choices": [{"index": 0, "delta": {"content": "half a word"}}]});
    let body =
        format!("data: {text}\n\ndata: {{\"choices\": 7}}\n\ndata: {text}\n\ndata: [DONE]\n\n");
    let server = Hostile::start(Behaviour::Whole {
        status: 200,
        kind: SSE,
        body,
    })
    .await?;
    let ran = run(prompt(&machine, "openai", &server, &[])?).await?;
    let errors = errors(&ran)?;
    assert_eq!(
        (ran.code, server.asked(), errors.len()),
        (1, 1, 1),
        "{errors:?} {}",
        ran.err
    );
    let reason = &errors[0].1;
    assert!(
        reason.contains("an event of the stream cannot be read")
            && reason.contains("{\"choices\": 7}"),
        "{reason}"
    );
    let messages = of_kind(&ran.events()?, EventKind::Message);
    let answer = &messages.last().context("it is kept")?["message"];
    assert_eq!(
        (&answer["role"], &answer["content"][0]["text"]),
        (&json!("assistant"), &json!("half a word")),
        "{answer}"
    );
    assert_eq!(answer["metadata"]["interrupted"], true, "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn endless_text_is_cut_and_costs_little_memory() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let delta = json!({"choices": [{"index": 0, "delta": {"content": "x".repeat(4_000)}}]});
    let endless = Behaviour::Endless {
        kind: SSE,
        first: String::new(),
        then: format!("data: {delta}\n\n"),
        pause: Duration::ZERO,
    };
    let server = Hostile::start(endless).await?;
    let mut command = prompt(&machine, "openai", &server, &[])?;
    let log = machine.folder().join("events");
    command
        .stdout(std::fs::File::create(&log)?)
        .stderr(std::process::Stdio::null());
    let mut child = command.spawn()?;
    let pid = child.id().context("it runs")?;
    let mut peak = 0;
    let ended = loop {
        match tokio::time::timeout(Duration::from_millis(50), child.wait()).await {
            Ok(ended) => break ended?,
            Err(_) => peak = peak.max(memory(pid).unwrap_or(0)),
        }
    };
    let text = std::fs::read_to_string(&log)?;
    assert!(
        !ended.success() && text.contains("\"code\":\"answer_limit\"") && text.contains("8 MiB"),
        "{:?}",
        text.lines().last()
    );
    assert_eq!(
        server.asked(),
        1,
        "an answer over the limit is not asked for again"
    );
    assert!(peak > 0 && peak < 300 << 10, "{peak} KiB at most");
    Ok(())
}

/// Returns the peak memory of a process, in KiB.
fn memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn endless_calls_are_cut_and_none_of_them_runs() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let mut calls = Vec::new();
    for index in 0..20_000 {
        let function = json!({"name": "bash", "arguments": "{\"command\":\"touch ran\"}"});
        calls.push(json!({"index": index, "id": format!("c{index}"), "type": "function", "function": function}));
    }
    let delta = |calls: &[serde_json::Value]| json!({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]});
    let each: String = calls
        .iter()
        .map(|call| format!("data: {}\n\n", delta(std::slice::from_ref(call))))
        .collect();
    let (end, done) = (
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        "data: [DONE]\n\n",
    );
    for body in [
        format!("data: {}\n\ndata: {end}\n\n{done}", delta(&calls)),
        format!("{each}data: {end}\n\n{done}"),
    ] {
        let server = Hostile::start(Behaviour::Whole {
            status: 200,
            kind: SSE,
            body,
        })
        .await?;
        let ran = run(prompt(&machine, "openai", &server, &[])?).await?;
        let errors = errors(&ran)?;
        assert!(
            ran.code == 1
                && errors[0].0 == "answer_limit"
                && errors[0].1.contains("128 tool calls"),
            "{errors:?} {}",
            ran.err
        );
        assert_eq!(
            of_kind(&ran.events()?, EventKind::ToolStart),
            Vec::<serde_json::Value>::new()
        );
        assert!(machine.read("ran").is_err(), "none of the calls ran");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn request_that_takes_too_long_ends_although_content_arrives() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let delta = json!({"choices": [{"index": 0, "delta": {"content": "x"}}]});
    let pause = Duration::from_millis(100);
    let endless = Behaviour::Endless {
        kind: SSE,
        first: String::new(),
        then: format!("data: {delta}\n\n"),
        pause,
    };
    let server = Hostile::start(endless).await?;
    let ran = run(prompt(
        &machine,
        "openai",
        &server,
        &[("REQUEST_TIMEOUT", "2s")],
    )?)
    .await?;
    let errors = errors(&ran)?;
    assert!(
        ran.code == 1 && errors[0].0 == "answer_limit" && errors[0].1.contains("took too long"),
        "{errors:?} {}",
        ran.err
    );
    assert_eq!(server.asked(), 1);
    Ok(())
}
