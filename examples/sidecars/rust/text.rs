//! A sidecar with tools and a compactor. Run `cargo run -p planck-sidecar --example text-rust`.

use planck_sidecar::{Compactor, Context, Conversation, Decision, Sidecar, Tool, message};
use schemars::JsonSchema;
use serde::Deserialize;
use std::{convert::Infallible, time::Duration};

#[derive(Deserialize, JsonSchema)]
struct Repeat {
    text: String,
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

/// Counts down. The SDK drops a cancelled call one second after `context.cancelled()` completes.
async fn countdown(context: Context, args: Countdown) -> Result<String, Infallible> {
    let step = Duration::from_secs_f64(args.seconds.clamp(0.0, 3600.0) / 10.0);
    for left in (1..=10).rev() {
        let percent = 100.0 - f64::from(left) * 10.0;
        context.progress(format!("{left} to go"), Some(percent));
        tokio::time::sleep(step).await;
    }
    Ok("lift-off".into())
}

/// A compactor that keeps the last four messages or more, and quotes the user's older ones.
struct Requests;
#[async_trait::async_trait]
impl Compactor for Requests {
    async fn compact(&self, _: Context, conversation: Conversation) -> Result<Decision, String> {
        let Some(keep_from) = conversation.cut(4) else {
            return Ok(Decision::Skip);
        };
        let said = conversation.messages.iter();
        let said = said.filter(|m| m.id < keep_from && m.role == message::MessageRole::User);
        let said: Vec<String> = said.map(|m| message::text_of(&m.content)).collect();
        let summary = format!("The user had asked: {}", said.join(" "));
        Ok(Decision::Compact { summary, keep_from })
    }
}

#[tokio::main]
async fn main() -> Result<(), planck_sidecar::Error> {
    let repeat = Tool::new("repeat", "Repeats a text.", repeat).pure();
    let countdown = Tool::new("countdown", "Counts down to zero.", countdown).pure();
    let sidecar = Sidecar::new("text-rust", "1.0.0")?;
    let sidecar = sidecar.tool(repeat).tool(countdown);
    sidecar.compactor("requests", Requests).run().await
}
