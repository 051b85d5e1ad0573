//! Starts a session, sends it a prompt and prints the answer: `ask "What is in this folder?"`.

use planck_client::{Client, protocol::command::Start, protocol::event::Event};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = std::env::args().nth(1).ok_or("usage: ask PROMPT")?;
    let client = Client::connect(&std::env::var("NATS_URL")?).await?;
    let dir = Some(std::env::current_dir()?.display().to_string());
    let start = Start {
        dir,
        ..Start::default()
    };
    let session = client.start(start).await?;
    let prompt = client.prompt(&session.session_id, text.as_str()).await?;

    let mut events = client.follow(&prompt.session_id, prompt.seq + 1).await?;
    loop {
        match events.next().await?.event() {
            Some(Event::TurnEnd(end)) if end.inputs.contains(&prompt.prompt_id) => {
                println!("{}", end.message.unwrap_or_default());
                return Ok(());
            }
            Some(Event::Error(error)) if error.inputs.contains(&prompt.prompt_id) => {
                return Err(error.reason.into());
            }
            _ => {}
        }
    }
}
