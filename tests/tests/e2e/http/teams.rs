//! The team that comes with Planck and the one that `planck team new` writes, with ready-made clients.
//! Their node is killed while a worker works and the lead rests.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use planck_common::command::{AgentState, SessionsVerb};
use planck_scripted_model::{Pace, Reply, Script, When};
use planck_tests::{
    caller::sessions,
    eventually::eventually,
    front::Front,
    sdk::Sdk,
    world::{Backend, World},
};
use serde_json::{Value, json};

use super::clients::replies;

const SHIPPED: &str = include_str!("../../../../examples/scripts/build-a-cli.json");
/// The clients, each with its scenario and a word of its prompt that no other has.
const CLIENTS: [(Sdk, &str, &str); 4] = [
    (Sdk::OpenAiJavaScript, "shipped_team", "response"),
    (Sdk::OpenAiJavaScript, "new_team", "completion"),
    (Sdk::AiSdk, "a shipped team", "talk"),
    (Sdk::AiSdk, "a new team", "chat"),
];
/// The beginnings of the last answers of the leads.
const LAST: [&str; 2] = [
    "Done. count.sh counts the words",
    "There are two, says the worker, who counted twice.",
];

/// The script of the shipped team, and one for the new team, whose worker ends its turn without
/// `send_response`. In each session the first reply of one worker would take minutes.
fn script() -> Result<Script> {
    let by = |prompt: &str| When::any().system(prompt);
    let lead = || by("You lead a small team.");
    let worker = || by("You work for the lead");
    let words: Vec<String> = (0..5_000).map(|n| format!("slow-{n}")).collect();
    let slow = || Reply::text(words.join(" ")).pace(Pace::per_second(20.0).chunk(8));
    let task = json!({ "agent": "worker", "task": "Count the files." });
    let check = json!({ "agent": "worker", "question": "How did you check it?" });
    let mut script = Script::new()
        .limited(2, by("You are the coder").round(0), slow())
        .limited(2, worker().user("Count the files").round(0), slow())
        .rounds(
            lead().user("task_unanswered"),
            [
                Reply::text("I ask how.").and_call("ask_agent", check),
                Reply::text("There are two, says the worker, who counted twice."),
            ],
        )
        .rounds(
            lead(),
            [
                Reply::text("I split it.").and_call("delegate_task", task),
                Reply::text("The worker counts."),
            ],
        )
        .rule(
            worker().user("How did you"),
            Reply::text("I counted twice."),
        )
        .rounds(
            worker(),
            [
                Reply::call("bash", json!({ "command": "ls | wc -l" })),
                Reply::text("There are two files."),
            ],
        )
        .refuse_otherwise();
    script.rules.extend(Script::parse(SHIPPED)?.rules);
    Ok(script)
}

/// Writes the team `crew` with the command for that, and returns the folders of both teams.
async fn teams(world: &World) -> Result<String> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/teams");
    let written = world.folder().join("teams");
    let mut new = world.planck()?;
    let folder = written.join("crew");
    let new = new.args(["team", "new", "crew", "--dir"]).arg(&folder);
    let new = new.output().await?;
    ensure!(new.status.success(), "{new:?}");
    Ok(format!("{},{}", shipped.display(), written.display()))
}

/// Waits until in every session only the worker works whose reply takes minutes.
async fn only_one_works(world: &World) -> Result<()> {
    eventually("only one worker of each team works", async || {
        let list = sessions(SessionsVerb::List);
        let list: Value = world.caller.ask(&list, &json!({})).await.ok()?;
        let mut working = 0;
        for session in list["sessions"].as_array()? {
            let info = world.caller.session(session["id"].as_str()?).await.ok()?;
            for agent in info.agents {
                match (agent.name.as_str(), agent.state) {
                    ("coder" | "worker", AgentState::Streaming) => working += 1,
                    ("lead" | "tester", AgentState::Idle) => {}
                    _ => return None,
                }
            }
        }
        (working == CLIENTS.len()).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "kills a node and needs the vendors' SDKs: make test-all"]
async fn teams_that_come_with_planck_deliver_their_result_when_the_node_is_killed() -> Result<()> {
    if !CLIENTS.iter().all(|(sdk, ..)| sdk.is_there()) {
        return Ok(());
    }
    let world = World::start(Backend::Postgres, script()?).await?;
    let teams = teams(&world).await?;
    let environment = [("PLANCK_TEAMS_DIRS", &*teams)];
    let mut host = world.node_with(&environment).await?;
    let front = Front::start(world.planck()?, world.folder(), &["--front-only"]).await?;
    let mut clients = Vec::new();
    for (sdk, scenario, word) in CLIENTS {
        let dir = world.dir().join(word);
        fs::create_dir(&dir)?;
        clients.push((sdk.play(scenario, &front, &dir)?, word));
    }
    for (client, _) in &mut clients {
        client.says("waiting").await?;
    }
    only_one_works(&world).await?;
    let _heir = world.node_with(&environment).await?;
    host.kill().await?;
    for (client, word) in clients {
        let result = client.result().await?;
        let saved = replies(&world, word).await?;
        let shown = result["texts"].as_array().context("no texts")?;
        let shown: Vec<&str> = shown.iter().filter_map(Value::as_str).collect();
        let said: Vec<&String> = saved.iter().filter(|text| !text.is_empty()).collect();
        assert_eq!(shown, said, "{word}");
        let last = shown.last().context("no text")?;
        ensure!(
            LAST.iter().any(|end| last.starts_with(end)),
            "{word}: {shown:?}"
        );
    }
    world.check_model()
}
