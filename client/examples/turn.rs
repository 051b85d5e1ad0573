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
        if let TurnEvent::Text { text, .. } = event {
            print!("{text}");
        } else if let TurnEvent::StepReset = event {
            println!("\n(the text above is void: the model answers again)");
        } else if let TurnEvent::StepEnded { .. } = event {
            println!();
        } else if let TurnEvent::ToolCalled { name, args, .. } = event {
            println!("({name} {args})");
        } else if let TurnEvent::WaitOpened(wait) = event {
            println!("(waits for an answer: {})", wait.title);
        } else if let TurnEvent::Failed { reason, .. } = event {
            return Err(reason.into());
        }
    }
    Ok(())
}
