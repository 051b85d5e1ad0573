//! Starts a session, sends it a prompt and prints the answer: `ask "What is in this folder?"`.

use planck_client::{
    Client,
    protocol::command::{Start, WorkState},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = std::env::args().nth(1).ok_or("usage: ask PROMPT")?;
    let client = Client::connect(&std::env::var("NATS_URL")?).await?;
    let dir = Some(std::env::current_dir()?.display().to_string());
    let start = Start {
        dir,
        ..Start::default()
    };
    let session = client.start(start).await?.session_id;

    let outcome = client.run(&session, text.as_str()).await?;
    if outcome.state == WorkState::Waiting {
        return Err("an agent waits for an answer; `planck waits` shows the question".into());
    }
    if let Some(error) = outcome.error {
        return Err(error.reason.into());
    }
    println!("{}", outcome.message.unwrap_or_default());
    Ok(())
}
