//! A program that embeds the runtime. Its agent uses a tool that is a function of the program.

use planck_node::{Agent, Event, Runtime, ScriptedModel, Tool, ToolContext};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Count {
    text: String,
}

async fn count(_: ToolContext, args: Count) -> Result<String, std::convert::Infallible> {
    Ok(args.text.split_whitespace().count().to_string())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = serde_json::json!({"text": "to be or not to be"});
    let model = ScriptedModel::new().call("count", args).text("Six words.");
    let tool = Tool::new("count", "Counts the words of a text.", count);
    let builder = Runtime::builder().scripted_model(model).tool(tool);
    let runtime = builder.start().await?;

    let session = runtime.start(Agent::new("counter")).await?;
    let mut events = session.events().await?;
    session.prompt("How many words are there?").await?;
    loop {
        match events.next().await?.event() {
            Some(Event::ToolEnd(call)) => println!("{} -> {}", call.name, call.result),
            Some(Event::TurnEnd(turn)) => break println!("{}", turn.message.unwrap_or_default()),
            Some(Event::Error(error)) => return Err(error.reason.into()),
            _ => {}
        }
    }
    runtime.shut_down().await;
    Ok(())
}
