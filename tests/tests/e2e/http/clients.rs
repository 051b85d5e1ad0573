//! Ready-made clients at a front of a cluster: the AI SDK's, AG-UI's and OpenAI's own.

use anyhow::{Context as _, Result, ensure};
use planck_common::{
    command::AgentState,
    message::{MessageRole, text_of},
};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    front::Front,
    sdk::Sdk,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// The clients of the test of failovers, each with its scenario and the prompt that it sends.
const CLIENTS: [(Sdk, &str, &str); 5] = [
    (Sdk::AiSdk, "a failover", "ai-sdk"),
    (Sdk::AgUi, "a failover", "ag-ui"),
    (Sdk::OpenAiPython, "failover_chat", "python-chat"),
    (Sdk::OpenAiPython, "failover_responses", "python-responses"),
    (Sdk::OpenAiJavaScript, "failover_responses", "javascript"),
];

fn words(word: &str, count: u32) -> String {
    let words: Vec<String> = (0..count).map(|n| format!("{word}-{n}")).collect();
    words.join(" ")
}

/// For each client a reply with a call, then a reply that takes minutes, and another one when the
/// request is made again.
fn script() -> Script {
    let mut script = Script::new();
    for (_, _, prompt) in CLIENTS {
        let prompt = || When::any().user(prompt);
        let first = Reply::text("Looking.").and_call("bash", json!({"command": "true"}));
        let slow = Reply::text(words("slow", 5_000)).pace(Pace::per_second(20.0).chunk(8));
        let again = Reply::text(words("again", 60)).pace(Pace::per_second(40.0).chunk(16));
        script = script
            .rule(prompt().round(0), first)
            .limited(1, prompt().round(1), slow)
            .rule(prompt().round(1), again);
    }
    script
}

/// Returns the texts of the orchestrator's replies in the session that began with a prompt.
pub async fn replies(world: &World, prompt: &str) -> Result<Vec<String>> {
    let list = planck_tests::caller::sessions(planck_common::command::SessionsVerb::List);
    let sessions: Value = world.caller.ask(&list, &json!({})).await?;
    for session in sessions["sessions"].as_array().context("no list")? {
        let session = session["id"].as_str().context("no id")?;
        let messages = world.caller.messages(session, None).await?;
        let first = messages.first();
        let first = first.filter(|first| text_of(&first.content).contains(prompt));
        if let Some(first) = first {
            let replies = messages.iter().filter(|message| {
                message.role == MessageRole::Assistant && message.agent_id == first.agent_id
            });
            return Ok(replies.map(|message| text_of(&message.content)).collect());
        }
    }
    anyhow::bail!("no session began with {prompt}")
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_of_a_ready_made_client_goes_on_when_the_node_is_killed() -> Result<()> {
    if !CLIENTS.iter().all(|(sdk, ..)| sdk.is_there()) {
        return Ok(());
    }
    let world = World::start(Backend::Postgres, script()).await?;
    let mut host = world.node().await?;
    let front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let mut clients = Vec::new();
    for (sdk, scenario, prompt) in CLIENTS {
        clients.push((sdk.play(scenario, &front, &world.dir())?, prompt));
    }
    // No other node is there before all sessions have their agents.
    for (client, _) in &mut clients {
        client.says("streaming").await?;
    }
    let _heir = world.node().await?;
    host.kill().await?;
    for (client, prompt) in clients {
        let result = client.result().await?;
        let saved = replies(&world, prompt).await?;
        let expected = ["Looking.".to_owned(), words("again", 60)];
        assert_eq!(saved, expected, "{prompt}");
        let shown = result["paragraphs"].as_array().context("no paragraphs")?;
        let shown: Vec<&str> = shown.iter().filter_map(Value::as_str).collect();
        // The text of a chat that was sent cannot be taken back.
        let (lost, kept) = match (shown.as_slice(), result["void"].as_str()) {
            ([first, second], Some(lost)) => (lost, [*first, *second]),
            ([first, lost, second], None) => (*lost, [*first, *second]),
            other => anyhow::bail!("{prompt}: {other:?}"),
        };
        assert_eq!(kept, [saved[0].as_str(), saved[1].as_str()], "{prompt}");
        ensure!(
            lost.contains("slow-3") && words("slow", 5_000).starts_with(lost),
            "{prompt}: {lost}"
        );
    }
    world.check_model()
}

/// Whatever the node does, the lead's turns and the result of the worker are one answer.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "kills a node and needs the vendors' SDKs: make test-all"]
async fn answer_of_a_team_has_its_result_when_the_node_is_killed() -> Result<()> {
    if !Sdk::OpenAiPython.is_there() {
        return Ok(());
    }
    let by = |name: &str| When::any().system(&format!("You are {name}."));
    let task = json!({"agent": "helper", "task": "How many?"});
    let slow = Reply::text(words("slow", 5_000)).pace(Pace::per_second(20.0).chunk(8));
    let respond = Reply::call("send_response", json!({"response": "Seven."}));
    let script = Script::new()
        .rule(
            by("lead").user("[response to task"),
            Reply::text("Seven, says the helper."),
        )
        .rounds(
            by("lead"),
            [
                Reply::call("delegate_task", task),
                Reply::text("It is at work."),
            ],
        )
        .limited(1, by("helper").round(0), slow)
        .rounds(by("helper"), [respond, Reply::text("Sent.")]);
    let world = World::start(Backend::Postgres, script).await?;
    let teams = world.folder().join("teams");
    let team = teams.join("crew");
    std::fs::create_dir_all(&team)?;
    let members = json!([
        {"type": "lead", "system_prompt": "You are lead.", "tools": ["spawn_agent", "delegate_task"]},
        {"type": "helper", "system_prompt": "You are helper.", "tools": ["send_response"]},
    ]);
    std::fs::write(team.join("TEAM.json"), members.to_string())?;
    let teams = teams.display().to_string();
    let mut host = world.node_with(&[("PLANCK_TEAMS_DIRS", &teams)]).await?;
    let front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let mut client = Sdk::OpenAiPython.play("failover_team", &front, &world.dir())?;
    client.says("delegated").await?;
    let list = planck_tests::caller::sessions(planck_common::command::SessionsVerb::List);
    let sessions: Value = world.caller.ask(&list, &json!({})).await?;
    let session = sessions["sessions"][0]["id"].as_str().context("no id")?;
    eventually("the helper works alone", async || {
        let info = world.caller.session(session).await.ok()?;
        let is = |name: &str, state| {
            let mut agents = info.agents.iter();
            agents.any(|agent| agent.name == name && agent.state == state)
        };
        let is_alone = is("lead", AgentState::Idle) && is("helper", AgentState::Streaming);
        is_alone.then_some(())
    })
    .await?;
    let _heir = world.node_with(&[("PLANCK_TEAMS_DIRS", &teams)]).await?;
    host.kill().await?;
    client.result().await?;
    world.check_model()
}

#[tokio::test(flavor = "multi_thread")]
async fn person_answers_while_a_client_of_openai_waits() -> Result<()> {
    if !Sdk::OpenAiPython.is_there() {
        return Ok(());
    }
    let call = json!({"path": "a.txt", "content": "a"});
    let asks = Reply::new()
        .think("A file is asked for.")
        .say("I will write.")
        .and_call("write", call);
    let script = Script::new().rounds(When::any(), [asks, Reply::text("It is done.")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let teams = world.folder().join("teams");
    let team = teams.join("careful");
    std::fs::create_dir_all(&team)?;
    let member = json!([{"type": "lead", "tools": ["write"],
        "permissions": [{"tool": "write", "action": "ask"}]}]);
    std::fs::write(team.join("TEAM.json"), member.to_string())?;
    let teams = teams.display().to_string();
    let _node = world.node_with(&[("PLANCK_TEAMS_DIRS", &teams)]).await?;
    let front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let client = Sdk::OpenAiPython.play("waits", &front, &world.dir())?;
    client.result().await?;
    Ok(())
}

/// A client of AG-UI answers a question, and another one loses its front in the middle of a run and
/// reads all of it at the next one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the client of AG-UI: make test-all"]
async fn run_of_ag_ui_is_read_whole_when_its_front_is_killed() -> Result<()> {
    if !Sdk::AgUi.is_there() {
        return Ok(());
    }
    let call = Reply::new()
        .think("Hm.")
        .say("Looking.")
        .and_call("bash", json!({"command": "true"}));
    let slow = Reply::text(words("slow", 120)).pace(Pace::per_second(20.0).chunk(8));
    let question = Reply::call("ask_user", json!({"question": "Which city?"}));
    let script = Script::new()
        .rounds(When::any().user("killed"), [call, slow])
        .rounds(
            When::any().user("Ask me"),
            [question, Reply::text("Oslo it is.")],
        );
    let world = World::start(Backend::Sqlite, script).await?;
    let teams = world.folder().join("teams");
    std::fs::create_dir_all(teams.join("asks"))?;
    let members = json!([{"type": "lead", "tools": ["ask_user"]}]);
    std::fs::write(teams.join("asks/TEAM.json"), members.to_string())?;
    let teams = teams.display().to_string();
    let _node = world.node_with(&[("PLANCK_TEAMS_DIRS", &teams)]).await?;
    let mut front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let asked = Sdk::AgUi.play("a question", &front, &world.dir())?;
    asked.result().await?;
    let mut client = Sdk::AgUi.play("a killed front", &front, &world.dir())?;
    client.says("streaming").await?;
    front.kill().await?;
    let options = ["--front-only"];
    let _next = Front::start_at(front.address(), world.planck()?, world.folder(), &options).await?;
    let result = client.result().await?;
    let expected = json!({"paragraphs": ["Looking.", words("slow", 120)], "reasoning": ["Hm."]});
    assert_eq!(result, expected);
    world.check_model()
}
