//! The outcome of a prompt over HTTP: as the reply, as a resource, and as the end of a stream.

use anyhow::{Result, ensure};
use planck_scripted_model::{Reply, Script, Server, When};
use planck_tests::{front::Front, node::planck_in};
use serde_json::{Value, json};
use tempfile::TempDir;

fn by(name: &str) -> When {
    When::any().system(&format!("You are {name}."))
}

fn member(name: &str, tools: &[&str]) -> Value {
    json!({ "type": name, "system_prompt": format!("You are {name}."), "tools": tools })
}

/// A team whose lead delegates, and ends its turn first.
fn team() -> Script {
    let delegate = json!({ "agent": "one", "task": "count" });
    Script::new()
        .rule(by("lead").user("[response to task"), Reply::text("Seven."))
        .rounds(
            by("lead"),
            [
                Reply::call("delegate_task", delegate),
                Reply::text("One is at work."),
            ],
        )
        .rounds(
            by("one"),
            [
                Reply::call("send_response", json!({ "response": "seven" })),
                Reply::text("told"),
            ],
        )
}

#[tokio::test]
async fn a_prompt_has_its_outcome_when_the_team_is_done() -> Result<()> {
    let folder = TempDir::new()?;
    let model = Server::start(team().without_auth()).await?;
    let mut command = planck_in(folder.path())?;
    command
        .env("PLANCK_MODELS_DEFAULT", "scripted:test")
        .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.openai_url())
        .env("PLANCK_TOOLS_SANDBOX", "off");
    let front = Front::start(command, folder.path(), &[]).await?;
    let members = [member("lead", &["spawn_agent"]), member("one", &[])];
    let start = json!({ "name": "bold-oak", "members": members });
    front.post("/v1/sessions", &start).await?;

    let path = "/v1/sessions/bold-oak/prompt?wait=50";
    let found = front.try_post(path, &json!({ "text": "go" }), &[]).await?;
    ensure!(found.status == 200, "{}", found.body);
    let found = found.json()?;
    ensure!(
        (&found["state"], &found["outcome"], &found["message"])
            == (&json!("over"), &json!("completed"), &json!("Seven.")),
        "{found}"
    );
    let prompt = found["prompt_id"].as_str().unwrap_or_default().to_owned();
    let one = format!("/v1/sessions/bold-oak/prompts/{prompt}");
    ensure!(front.get(&one).await?.json()? == found);
    for (path, status) in [
        ("/v1/sessions/bold-oak/prompts/other".to_owned(), 404),
        (format!("{one}?wait=51"), 400),
        (format!("/v1/sessions/bold-oak/events?prompt={prompt}"), 400),
    ] {
        ensure!(front.get(&path).await?.status == status, "{path}");
    }

    // The stream ends by itself, after all events.
    let path = format!("/v1/sessions/bold-oak/events?prompt={prompt}");
    let accept = [("Accept", "text/event-stream")];
    let stream = front.request("GET", &path, &accept, "").await?;
    let last = stream.body.rfind("event: outcome\n").unwrap_or_default();
    let (events, outcome) = stream.body.split_at(last);
    ensure!(outcome.contains(r#""message":"Seven.""#), "{}", stream.body);
    ensure!(
        events.contains(&format!("id: {}\n", found["head"])),
        "{events}"
    );
    Ok(())
}
