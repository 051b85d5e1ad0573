//! An agent of the library `rig`, as a contender of tools/compare. All agents run on one thread,
//! which suits rig best here. Nothing is saved.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use futures_util::{StreamExt as _, future::try_join_all};
use rig::{
    Agent, AgentBuilder,
    agent::MultiTurnStreamItem,
    providers::openai::OpenAIConfig,
    tool::{Tool, ToolContext},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// The maximum number of model requests of one turn.
const MOST_REQUESTS: usize = 128;

/// Reads lines of a file in this folder.
struct Read(PathBuf);

#[derive(Deserialize)]
struct Lines {
    path: String,
    offset: usize,
    limit: usize,
}

impl Tool for Read {
    const NAME: &'static str = "read";
    type Args = Lines;
    type Output = String;
    type Error = std::io::Error;

    fn description(&self) -> String {
        "Read a file.".into()
    }

    fn parameters(&self) -> Value {
        let whole = json!({ "type": "integer" });
        json!({
            "type": "object",
            "properties": { "path": { "type": "string" }, "offset": whole, "limit": whole },
            "required": ["path", "offset", "limit"],
        })
    }

    async fn call(&self, _: &mut ToolContext, lines: Lines) -> std::io::Result<String> {
        let text = fs::read_to_string(self.0.join(&lines.path))?;
        let lines: Vec<&str> = text.lines().skip(lines.offset).take(lines.limit).collect();
        Ok(lines.join("\n"))
    }
}

/// Notes in the ledger of this folder that it begins, and later its effect.
struct Book(PathBuf);

#[derive(Deserialize)]
struct Number {
    number: String,
}

impl Tool for Book {
    const NAME: &'static str = "book";
    type Args = Number;
    type Output = String;
    type Error = std::io::Error;

    fn description(&self) -> String {
        "Books a number.".into()
    }

    fn parameters(&self) -> Value {
        json!({
            "type": "object",
            "properties": { "number": { "type": "string" } },
            "required": ["number"],
        })
    }

    async fn call(&self, _: &mut ToolContext, Number { number }: Number) -> std::io::Result<String> {
        let seconds = env::var("COMPARE_HOLD").ok().and_then(|hold| hold.parse().ok());
        let hold = Duration::from_secs_f64(seconds.unwrap_or(0.0));
        for word in ["begin", "effect"] {
            let mut ledger = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.0.join("ledger"))?;
            writeln!(ledger, "{word} {number}")?;
            tokio::time::sleep(hold).await;
        }
        Ok(format!("booked {number}"))
    }
}

/// Runs a turn and returns the text of its last reply.
async fn turn(agent: &Agent, prompt: &str) -> Result<String> {
    let runner = agent.prompt(prompt).max_turns(MOST_REQUESTS);
    let mut stream = runner.tool_concurrency(8).stream();
    let mut answer = None;
    while let Some(item) = stream.next().await {
        if let MultiTurnStreamItem::FinalResponse(response) = item? {
            answer = Some(response.output());
        }
    }
    answer.context("a turn ended without an answer")
}

fn agent(model: &str, dir: &Path) -> Agent {
    let client = OpenAIConfig::new("none").with_base_url(model).client();
    AgentBuilder::new(client.chat("book"))
        .preamble("Be brief.")
        .tool(Read(dir.into()))
        .tool(Book(dir.into()))
        .build()
}

async fn cost(model: &str, dir: &Path, agents: usize, turns: usize) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        println!("ready");
        if lines.next_line().await?.is_none() {
            return Ok(());
        }
        let agents: Vec<Agent> = (0..agents).map(|_| agent(model, dir)).collect();
        for _ in 0..turns {
            try_join_all(agents.iter().map(|agent| turn(agent, "Read the lines."))).await?;
        }
        println!("done");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let model = env::var("COMPARE_MODEL").context("COMPARE_MODEL")?;
    let dir = PathBuf::from(env::var("COMPARE_DIR").context("COMPARE_DIR")?);
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["version"] => println!("version rig 0.44.0"),
        ["cost", _, agents, turns] => cost(&model, &dir, agents.parse()?, turns.parse()?).await?,
        ["prompt", text] => println!("answer {}", turn(&agent(&model, &dir), text).await?),
        ["resume"] => println!("nothing rig keeps no state"),
        other => bail!("{other:?} is not known"),
    }
    Ok(())
}
