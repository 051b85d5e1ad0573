//! A sidecar with two tools and a compactor: `cargo run -p planck-sidecar --example text-rust`.

use std::{convert::Infallible, time::Duration};

use planck_sidecar::{Compactor, Context, Conversation, Decision, Sidecar, Tool, message};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
struct Repeat {
    /// What to repeat
    text: String,
    /// How often
    times: u32,
}

async fn repeat(_: Context, args: Repeat) -> Result<String, Infallible> {
    Ok(args.text.repeat(args.times as usize))
}

#[derive(Deserialize, JsonSchema)]
struct Countdown {
    /// How long it takes
    #[schemars(range(min = 0.0, max = 3600.0))]
    seconds: f64,
}

/// It is simply dropped when it is cancelled or out of time; what has to be cleaned up could wait
/// for `context.cancelled()`.
async fn countdown(context: Context, args: Countdown) -> Result<String, Infallible> {
    for step in 0..10 {
        context.progress(format!("{} to go", 10 - step), Some(f64::from(step) * 10.0));
        tokio::time::sleep(Duration::from_secs_f64(
            args.seconds.clamp(0.0, 3600.0) / 10.0,
        ))
        .await;
    }
    Ok("lift-off".into())
}

/// Keeps the last messages, and of the older ones what the user said.
struct Requests;

#[async_trait::async_trait]
impl Compactor for Requests {
    async fn compact(&self, _: Context, conversation: Conversation) -> Result<Decision, String> {
        let Some(keep_from) = conversation.cut(4) else {
            return Ok(Decision::Skip);
        };
        let older = conversation
            .messages
            .iter()
            .filter(|message| message.id < keep_from && message.role == message::Role::User);
        let said: Vec<String> = older
            .map(|message| message::text_of(&message.content))
            .collect();
        Ok(Decision::Compact {
            summary: format!("The user had asked: {}", said.join(" ")),
            keep_from,
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), planck_sidecar::Error> {
    Sidecar::new("text-rust", "1.0.0")?
        .tool(Tool::new("repeat", "Repeats a text.", repeat).pure())
        .tool(
            Tool::new(
                "countdown",
                "Counts down, and says how far it is.",
                countdown,
            )
            .pure(),
        )
        .compactor("requests", Requests)
        .run()
        .await
}
