//! Starts a session at a front, sends a prompt, and prints the answer as it comes.
#![allow(
    clippy::indexing_slicing,
    reason = "a field that a `Value` lacks is null"
)]

use std::{error::Error, time::Duration};

use reqwest::{Client, header::AUTHORIZATION};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let text = std::env::args().nth(1).ok_or("usage: http-ask PROMPT")?;
    let base = std::env::var("PLANCK_URL").unwrap_or("http://127.0.0.1:8400".into());
    let client = client()?;
    let post = async |path: &str, body: Value| -> Result<Value, Box<dyn Error>> {
        let request = client.post(format!("{base}{path}"));
        let request = request.header("content-type", "application/json");
        let answer = request
            .body(body.to_string())
            .send()
            .await?
            .error_for_status()?;
        Ok(serde_json::from_slice(&answer.bytes().await?)?)
    };
    let started = post("/v1/sessions", json!({})).await?;
    let session = started["session_id"].as_str().ok_or("no session")?;
    let prompt = post(
        &format!("/v1/sessions/{session}/prompt"),
        json!({ "text": text }),
    )
    .await?;

    let id = prompt["prompt_id"].as_str().ok_or("no prompt")?;
    let mut last = prompt["seq"].to_string();
    let mut shown = String::new();
    loop {
        let events = format!("{base}/v1/sessions/{session}/events?prompt={id}");
        let request = client.get(events).header("accept", "text/event-stream");
        let stream = request.header("last-event-id", &last).send().await;
        let Ok(mut stream) = stream else {
            tokio::time::sleep(SECOND).await;
            continue;
        };
        let mut rest = String::new();
        while let Ok(Some(bytes)) = stream.chunk().await {
            // A chunk of the front holds whole events.
            rest += &String::from_utf8_lossy(&bytes);
            while let Some((line, next)) = rest.split_once('\n') {
                if let Some(id) = line.strip_prefix("id: ") {
                    last = id.to_owned();
                } else if let Some(event) = line.strip_prefix("data: ") {
                    let event: Value = serde_json::from_str(event)?;
                    match event["outcome"].as_str() {
                        // The work is over: that of the agent, and of all to which it gave tasks.
                        Some("completed") => return Ok(()),
                        Some(other) => return Err(format!("{other} {}", event["error"]).into()),
                        None => {}
                    }
                    if event["agent_id"] == prompt["agent_id"] {
                        show(&event, &mut shown);
                    }
                }
                rest = next.to_owned();
            }
        }
    }
}

/// Returns a client that sends the key, if there is one.
fn client() -> Result<Client, Box<dyn Error>> {
    // reqwest needs a TLS library even for addresses without TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = std::env::var("PLANCK_KEY").unwrap_or_default();
    let headers = [(AUTHORIZATION, format!("Bearer {key}").try_into()?)];
    let client = Client::builder().default_headers(headers.into_iter().collect());
    Ok(client.build()?)
}

/// Returns the text of a message.
fn text_of(message: &Value) -> String {
    let parts = message["content"].as_array().into_iter().flatten();
    let texts = parts.filter(|part| part["type"] == "text");
    texts.filter_map(|part| part["text"].as_str()).collect()
}

/// Prints what an event adds to the answer. `shown` is what was printed of the reply that is not
/// saved yet.
fn show(event: &Value, shown: &mut String) {
    let message = &event["data"]["message"];
    match event["type"].as_str() {
        Some("text_delta") => {
            let text = event["data"]["text"].as_str().unwrap_or_default();
            print!("{text}");
            *shown += text;
        }
        Some("message") if message["role"] == "assistant" => {
            let text = text_of(message);
            // Deltas are not repeated for a client that was away.
            match text.strip_prefix(&**shown) {
                Some(more) => print!("{more}"),
                None => print!("\n{text}"),
            }
            if !text.is_empty() {
                println!();
            }
            shown.clear();
        }
        _ => {}
    }
}
