//! Teams as tools of MCP clients: the SDKs of the MCP project at fronts of a cluster and at
//! `planck mcp serve`.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    front::Front,
    line_client::LineClient,
    machine::run,
    sdk::{Sdk, is_there, node_in},
    world::{Backend, World},
};
use serde_json::{Value, json};
use tokio::process::Command;

use super::clients::replies;

/// The clients, each with the generation of the protocol that it speaks.
const CLIENTS: [(Sdk, &str); 3] = [
    (Sdk::McpPython, "legacy"),
    (Sdk::McpPython, "auto"),
    (Sdk::McpTypeScript, "legacy"),
];

fn are_there() -> bool {
    CLIENTS.iter().all(|(sdk, _)| sdk.is_there())
}

fn words(word: &str, count: u32) -> String {
    let words: Vec<String> = (0..count).map(|n| format!("{word}-{n}")).collect();
    words.join(" ")
}

/// Writes the teams of the scenarios into a folder of the world, and returns it.
fn teams(world: &World) -> Result<String> {
    let teams = world.folder().join("teams");
    for (name, tool) in [("painter", "bash"), ("asker", "ask_user")] {
        let lead = json!({"type": "lead", "description": "Leads", "tools": [tool]});
        let team = json!({"name": name, "description": "Paints", "members": [lead]});
        fs::create_dir_all(teams.join(name))?;
        fs::write(teams.join(name).join("TEAM.json"), team.to_string())?;
    }
    Ok(teams.display().to_string())
}

/// Returns a `planck` command in the world, and the path of its program.
fn planck(world: &World) -> Result<(Command, String)> {
    let mut command = world.planck()?;
    command
        .current_dir(world.dir())
        .env("PLANCK_TEAMS_DIRS", teams(world)?);
    let program = command.as_std().get_args().last().context("no program")?;
    let program = program.to_string_lossy().into_owned();
    Ok((command, program))
}

fn tour() -> Script {
    let prompt = |text: &str| When::any().user(text);
    let warm = json!({"city": "Rome", "degrees": 21});
    let story = Reply::text(words("slow", 2_000)).pace(Pace::per_second(20.0).chunk(8));
    Script::new()
        .rounds(
            prompt("Say hello."),
            [
                Reply::call("bash", json!({"command": "sleep 2"})),
                Reply::text("Hello."),
            ],
        )
        .rule(prompt("Once more."), Reply::text("Again."))
        .rule(prompt("How warm"), Reply::call("submit_output", warm))
        .rounds(
            prompt("Paint."),
            [
                Reply::call("ask_user", json!({"question": "Which colour?"})),
                Reply::text("Painted."),
            ],
        )
        .rule(prompt("Tell a story."), story)
}

/// Without NATS the command has a node of its own, and works in its folder.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the SDKs of the MCP project: make test-all"]
async fn sdks_use_teams_of_planck_mcp_serve() -> Result<()> {
    if !are_there() {
        return Ok(());
    }
    let world = World::start(Backend::Sqlite, tour()).await?;
    let (mut command, program) = planck(&world)?;
    command.env_remove("NATS_URL");
    for (sdk, generation) in CLIENTS {
        let scenario = ["tour", generation];
        let client = sdk.play_mcp(scenario, std::slice::from_ref(&program), "", &command)?;
        client.result().await?;
    }
    world.check_model()
}

/// The client gives up, and its `planck mcp serve` ends. Another one finds the work.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the SDKs of the MCP project: make test-all"]
async fn work_is_found_by_another_planck_mcp_serve() -> Result<()> {
    if !are_there() {
        return Ok(());
    }
    let story = Reply::text(words("slow", 20)).pace(Pace::per_second(4.0).chunk(8));
    let script = Script::new().rule(When::any().user("Tell a story."), story);
    let world = World::start(Backend::Sqlite, script).await?;
    let work = world.dir().display().to_string();
    let _node = world
        .node_with(&[("PLANCK_WORKSPACES_CODE", &work)])
        .await?;
    let (mut command, program) = planck(&world)?;
    command.env("PLANCK_WORKSPACE", "code");
    for (sdk, generation) in CLIENTS {
        let targets = [program.clone(), program.clone()];
        let client = sdk.play_mcp(["lost", generation], &targets, "", &command)?;
        let result = client.result().await?;
        assert_eq!(result["answer"], words("slow", 20));
    }
    world.check_model()
}

/// The node dies while a call waits at one front, and the answer comes from another front.
#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_killed_node_is_found_finished_on_another_one() -> Result<()> {
    if !are_there() {
        return Ok(());
    }
    let prompt = || When::any().user("Tell a story.");
    let slow = Reply::text(words("slow", 5_000)).pace(Pace::per_second(20.0).chunk(8));
    let again = Reply::text(words("again", 60)).pace(Pace::per_second(40.0).chunk(16));
    let script = Script::new()
        .rule(
            prompt().round(0),
            Reply::call("bash", json!({"command": "sleep 2"})),
        )
        .limited(3, prompt().round(1), slow)
        .rule(prompt().round(1), again);
    let world = World::start(Backend::Postgres, script).await?;
    let (work, teams) = (world.dir().display().to_string(), teams(&world)?);
    let settings = [
        ("PLANCK_WORKSPACES_CODE", work.as_str()),
        ("PLANCK_TEAMS_DIRS", &teams),
    ];
    let mut host = world.node_with(&settings).await?;
    let one = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let other = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let targets = [&one, &other].map(|front| format!("{}/mcp", front.url()));
    let (mut command, _) = planck(&world)?;
    command.env("PLANCK_WORKSPACE", "code");
    let mut clients = Vec::new();
    for (sdk, generation) in CLIENTS {
        clients.push(sdk.play_mcp(["killed", generation], &targets, one.key(), &command)?);
    }
    for client in &mut clients {
        client.says("streaming").await?;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let _heir = world.node_with(&settings).await?;
    host.kill().await?;
    for client in clients {
        let result = client.result().await?;
        assert_eq!(result["state"], "completed", "{result}");
        assert_eq!(result["answer"], words("again", 60));
        let session = result["session"].as_str().context("no session")?;
        let messages = world.caller.messages(session, None).await?;
        let prompts = messages
            .iter()
            .filter(|message| planck_common::message::text_of(&message.content) == "Tell a story.");
        assert_eq!(prompts.count(), 1);
    }
    ensure!(replies(&world, "Tell a story.").await?.len() >= 2);
    world.check_model()
}

/// The inspector is a program that starts a client for each request: of a front, and of `planck mcp
/// serve`. It fails at a schema of a tool that other clients cannot use.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the inspector of the MCP project: make test-all"]
async fn inspector_uses_teams_as_tools() -> Result<()> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
    let package = "mcp-inspector/node_modules/@modelcontextprotocol/inspector";
    let inspector = tools.join(package).join("clients/launcher/build/index.js");
    // It needs the newer Node.js too.
    let modules = tools.join("mcp-conformance/node_modules");
    if !is_there(&inspector) || !is_there(&modules) {
        return Ok(());
    }
    let script = Script::new().rule(When::any().user("Say hello."), Reply::text("Hello."));
    let world = World::start(Backend::Sqlite, script).await?;
    let (mut served, program) = planck(&world)?;
    served.env_remove("NATS_URL");
    // The servers that it starts get these variables and no others.
    let environment = served.as_std().get_envs();
    let environment: Vec<String> = environment
        .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)))
        .flat_map(|(name, value)| ["-e".into(), format!("{name}={value}")])
        .collect();
    let front = Front::start(served, world.folder(), &[]).await?;
    let key = format!("Authorization: Bearer {}", front.key());
    let url = format!("{}/mcp", front.url());
    let at_front = ["--server-url", &url, "--header", &key];
    for target in [&at_front[..], &[&program, "mcp", "serve"]] {
        for era in ["legacy", "modern"] {
            let inspect = async |request: &[&str]| {
                let mut command = Command::new(node_in(&modules));
                command
                    .arg(&inspector)
                    .arg("--cli")
                    .args(target)
                    .args(&environment)
                    .args(["--protocol-era", era, "--format", "json", "--method"])
                    .args(request)
                    .env("HOME", world.folder())
                    .current_dir(world.dir())
                    .kill_on_drop(true);
                let ran = run(command).await?;
                ensure!(ran.code == 0, "{target:?} {era} {request:?}: {ran:?}");
                let said: Value = serde_json::from_str(&ran.out)?;
                Ok(said["result"].clone())
            };
            let listed = inspect(&["tools/list", "--strict"]).await?;
            let listed = listed["tools"].as_array().map(Vec::len);
            assert_eq!(listed, Some(7));
            let teams = inspect(&["tools/call", "--tool-name", "list_teams"]).await?;
            let teams = teams["structuredContent"]["teams"].to_string();
            ensure!(teams.contains("painter"), "{teams}");
            let arguments = r#"{"prompt": "Say hello."}"#;
            let run_team = ["tools/call", "--tool-name", "run_team"];
            let work = [&run_team[..], &["--tool-args-json", arguments]].concat();
            let work = inspect(&work).await?["structuredContent"].clone();
            assert_eq!(
                (&work["state"], &work["answer"]),
                (&json!("completed"), &json!("Hello."))
            );
        }
    }
    world.check_model()
}

/// Starts `planck mcp serve`.
fn start(world: &World) -> Result<LineClient> {
    let (mut command, _) = planck(world)?;
    command.env_remove("NATS_URL").args(["mcp", "serve"]);
    LineClient::start(command)
}

/// Starts `planck mcp serve`, and begins as the protocol says.
async fn greeted(world: &World) -> Result<LineClient> {
    let mut client = start(world)?;
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello});
    client.write(&hello.to_string()).await?;
    let greeted = client.read().await?;
    ensure!(
        greeted["result"]["serverInfo"]["name"] == "planck",
        "{greeted}"
    );
    client
        .write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
        .await?;
    Ok(client)
}

/// Calls a tool, and returns its structured content.
async fn call(client: &mut LineClient, tool: &str, arguments: &Value) -> Result<Value> {
    let params = json!({"name": tool, "arguments": arguments});
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    client.write(&call.to_string()).await?;
    let answer = client.read().await?;
    let work = answer["result"]["structuredContent"].clone();
    ensure!(work.is_object(), "{answer}");
    Ok(work)
}

#[tokio::test]
async fn broken_lines_to_planck_mcp_serve_are_survived_and_endless_ones_are_not() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    // A client that goes away before it says anything is no error.
    assert_eq!(start(&world)?.ends().await?.code, Some(0));
    let mut client = greeted(&world).await?;
    for broken in ["{", "", "\u{0}", &format!("[{list},{list}")] {
        client.write(broken).await?;
    }
    client.write(&list).await?;
    let listed = loop {
        let message = client.read().await?;
        if message["id"] == 2 {
            break message;
        }
        ensure!(message["error"]["code"].is_number(), "{message}");
    };
    assert_eq!(listed["result"]["tools"][1]["name"], "run_team");
    let ended = client.ends().await?;
    assert_eq!((ended.code, &*ended.warned), (Some(0), ""));
    let mut client = greeted(&world).await?;
    // The command may end before it has read all.
    let _ = client.write(&"x".repeat(20 << 20)).await;
    let ended = client.ends().await?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    ensure!(ended.warned.contains("16 MiB"), "{ended:?}");
    Ok(())
}

/// Without NATS and without `planck serve` the node ends with the command.
#[tokio::test]
async fn work_of_a_node_that_ended_with_its_client_goes_on_with_the_next_one() -> Result<()> {
    let slow = Reply::text(words("slow", 5_000)).pace(Pace::per_second(20.0).chunk(8));
    let script = Script::new()
        .limited(1, When::any().user("Tell a story."), slow)
        .rule(When::any().user("Tell a story."), Reply::text("The end."));
    let world = World::start(Backend::Sqlite, script).await?;
    let mut client = greeted(&world).await?;
    let run = json!({"prompt": "Tell a story.", "request_key": "story", "wait_seconds": 3});
    let work = call(&mut client, "run_team", &run).await?;
    assert_eq!(work["state"], "working", "{work}");
    ensure!(
        work["so_far"]
            .as_str()
            .context("no text")?
            .starts_with("slow-0"),
        "{work}"
    );
    assert_eq!(client.ends().await?.code, Some(0));
    let mut client = greeted(&world).await?;
    // The same call starts nothing, and waits for the same work.
    let run = json!({"prompt": "Tell a story.", "request_key": "story"});
    let work = call(&mut client, "run_team", &run).await?;
    assert_eq!(
        (&work["state"], &work["answer"]),
        (&json!("completed"), &json!("The end."))
    );
    assert_eq!(client.ends().await?.code, Some(0));
    world.check_model()
}
