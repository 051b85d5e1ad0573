//! Starts a session, sends it a prompt and prints the answer as it comes: `turn "What is in this folder?"`.

use planck_client::{Client, protocol::command::Start, turn::TurnEvent};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = std::env::args().nth(1).ok_or("usage: turn PROMPT")?;
    let client = Client::connect(&std::env::var("NATS_URL")?).await?;
    let dir = Some(std::env::current_dir()?.display().to_string());
    let start = Start {
        dir,
        ..Start::default()
    };
    let session = client.start(start).await?.session_id;

    let accepted = client.prompt(&session, text.as_str()).await?;
    let mut turn = client.follow_prompt(&accepted).await?;
    while let Some(event) = turn.next().await? {
        match event {
            TurnEvent::Text { text, .. } => print!("{text}"),
            TurnEvent::StepReset => println!("\n(the text above is void: the model answers again)"),
            TurnEvent::StepEnded { .. } => println!(),
            TurnEvent::ToolCalled { name, args, .. } => println!("({name} {args})"),
            TurnEvent::WaitOpened(wait) => println!("(waits for an answer: {})", wait.title),
            TurnEvent::Failed { reason, .. } => return Err(reason.into()),
            _ => {}
        }
    }
    Ok(())
}
