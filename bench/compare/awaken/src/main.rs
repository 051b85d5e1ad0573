//! An agent of the library `awaken` with its store in files, as a contender of tools/compare.

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use awaken::{engine::GenaiExecutor, prelude::*};
use awaken_server_contract::contract::storage::{RunStore as _, ThreadStore as _};
use awaken_stores::{FileCommitCoordinator, FileStore};
use futures_util::future::try_join_all;
use genai::{
    Client, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    resolver::{AuthData, Endpoint},
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// The maximum number of model requests of one turn.
const MOST_ROUNDS: usize = 1_000;
const THREAD: &str = "compare";

/// Reads lines of a file in this folder.
struct Read(PathBuf);

#[async_trait]
impl Tool for Read {
    fn descriptor(&self) -> ToolDescriptor {
        let whole = json!({ "type": "integer" });
        ToolDescriptor::new("read", "Read", "Read a file.").with_parameters(json!({
            "type": "object",
            "properties": { "path": { "type": "string" }, "offset": whole, "limit": whole },
            "required": ["path", "offset", "limit"],
        }))
    }

    async fn execute(&self, args: Value, _: &ToolCallContext) -> Result<ToolOutput, ToolError> {
        let whole = |name: &str| args[name].as_u64().unwrap_or_default() as usize;
        let path = self.0.join(args["path"].as_str().unwrap_or_default());
        let text = fs::read_to_string(path).map_err(failed)?;
        let lines = text.lines().skip(whole("offset")).take(whole("limit"));
        let lines: Vec<&str> = lines.collect();
        Ok(ToolResult::success("read", json!(lines.join("\n"))).into())
    }
}

/// Notes in the ledger of this folder that it begins, and later its effect.
struct Book(PathBuf);

#[async_trait]
impl Tool for Book {
    fn descriptor(&self) -> ToolDescriptor {
        ToolDescriptor::new("book", "Book", "Books a number.").with_parameters(json!({
            "type": "object",
            "properties": { "number": { "type": "string" } },
            "required": ["number"],
        }))
    }

    async fn execute(&self, args: Value, _: &ToolCallContext) -> Result<ToolOutput, ToolError> {
        let seconds = env::var("COMPARE_HOLD").ok().and_then(|hold| hold.parse().ok());
        let hold = Duration::from_secs_f64(seconds.unwrap_or(0.0));
        let number = args["number"].as_str().unwrap_or_default();
        for word in ["begin", "effect"] {
            let mut ledger = fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(self.0.join("ledger"))
                .map_err(failed)?;
            writeln!(ledger, "{word} {number}").map_err(failed)?;
            tokio::time::sleep(hold).await;
        }
        Ok(ToolResult::success("book", json!(format!("booked {number}"))).into())
    }
}

fn failed(error: std::io::Error) -> ToolError {
    ToolError::ExecutionFailed(error.to_string())
}

fn client(model: &str) -> Client {
    let base = format!("{}/", model.trim_end_matches('/'));
    Client::builder()
        .with_service_target_resolver_fn(move |target: ServiceTarget| {
            Ok(ServiceTarget {
                endpoint: Endpoint::from_owned(base.clone()),
                auth: AuthData::from_single("none"),
                model: ModelIden::new(AdapterKind::OpenAI, target.model.model_name),
            })
        })
        .build()
}

fn runtime(model: &str, dir: &Path, store: Arc<FileStore>) -> Result<AgentRuntime> {
    let agent = AgentSpec::new("agent")
        .with_model_id("book")
        .with_system_prompt("Be brief.")
        .with_max_rounds(MOST_ROUNDS);
    Ok(AgentRuntimeBuilder::new()
        .with_agent_spec(agent)
        .with_tool("read", Arc::new(Read(dir.into())))
        .with_tool("book", Arc::new(Book(dir.into())))
        .with_provider("compare", Arc::new(GenaiExecutor::with_client(client(model))))
        .with_model(ModelSpec::new("book", "compare", "book"))
        .with_commit_coordinator(FileCommitCoordinator::wrap(store)?)
        .build()?)
}

/// Runs a turn and returns the text of its last reply.
async fn turn(runtime: &AgentRuntime, run: RunActivation) -> Result<String> {
    let result = runtime.run_to_completion(run.with_agent_id("agent")).await?;
    Ok(result.response.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn prompt(thread: &str, text: &str) -> RunActivation {
    RunActivation::new(thread, vec![Message::user(text)])
}

async fn cost(runtime: &AgentRuntime, agents: usize, turns: usize) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        println!("ready");
        if lines.next_line().await?.is_none() {
            return Ok(());
        }
        let threads: Vec<_> = (0..agents).map(|_| uuid::Uuid::new_v4().to_string()).collect();
        for _ in 0..turns {
            let turns = threads.iter().map(|thread| turn(runtime, prompt(thread, "Read the lines.")));
            try_join_all(turns).await?;
        }
        println!("done");
    }
}

/// Goes on with the latest run of the thread from its checkpoint, if it has one.
async fn resume(runtime: &AgentRuntime, store: &FileStore) -> Result<()> {
    let messages = store.load_messages(THREAD).await?.unwrap_or_default();
    let Some(run) = store.latest_run(THREAD).await? else {
        println!("nothing the thread has no run");
        return Ok(());
    };
    match messages.last() {
        Some(last) if last.role == Role::Assistant && !last.text().is_empty() => {
            println!("answer {}", last.text());
        }
        Some(_) => {
            let run = RunActivation::new(THREAD, Vec::new()).with_continuation_run_id(run.run_id);
            println!("answer {}", turn(runtime, run).await?);
        }
        None => println!("nothing the thread has no message"),
    }
    Ok(())
}

fn main() -> Result<()> {
    // Awaken refuses its store in files without this, because it is meant for development.
    env::set_var("AWAKEN_ALLOW_DEV_FILE_COORDINATOR", "true");
    tokio::runtime::Runtime::new()?.block_on(serve())
}

async fn serve() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if arguments == ["version"] {
        println!("version awaken 0.6.0");
        return Ok(());
    }
    let folder = |name: &str| env::var(name).map(PathBuf::from).with_context(|| name.to_owned());
    let (dir, store) = (folder("COMPARE_DIR")?, folder("COMPARE_STORE")?);
    let store = Arc::new(FileStore::new(store));
    let runtime = runtime(&env::var("COMPARE_MODEL")?, &dir, store.clone())?;
    match arguments.as_slice() {
        ["cost", _, agents, turns] => cost(&runtime, agents.parse()?, turns.parse()?).await?,
        ["prompt", text] => println!("answer {}", turn(&runtime, prompt(THREAD, text)).await?),
        ["resume"] => resume(&runtime, &store).await?,
        other => bail!("{other:?} is not known"),
    }
    Ok(())
}
