//! Runs the programs and requests that the guides show.

use std::{path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use planck_common::{reply::Code, subject::Address};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::{
    eventually::eventually,
    example::root,
    front::Front,
    node::{planck, planck_in},
    sdk::Sdk,
    world::{Backend, World},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt as _, process::Command};

const ANSWER: &str = "It has a README and a folder of sources.";
/// The address of a front in the guides.
const ADDRESS: &str = "http://127.0.0.1:8400";
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the blocks of code of a guide that are in this language.
fn blocks(guide: &str, language: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root().join(guide))?;
    let begin = format!("```{language}\n");
    let blocks = text.split(&begin).skip(1);
    let blocks = blocks.filter_map(|rest| rest.split_once("```"));
    Ok(blocks.map(|(block, _)| block.to_owned()).collect())
}

/// Gives a program to an interpreter, and returns what the program prints.
async fn printed(mut interpreter: Command, program: &str) -> Result<String> {
    interpreter
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = interpreter.spawn()?;
    let mut stdin = child.stdin.take().context("no input")?;
    stdin.write_all(program.as_bytes()).await?;
    drop(stdin);
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}\nfailed:\n{errors}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Starts a front in one process with its node.
async fn serve(folder: &Path, model: &planck_scripted_model::Server) -> Result<Front> {
    let mut command = planck_in(folder)?;
    command
        .env("PLANCK_MODELS_DEFAULT", "scripted:test")
        .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.openai_url());
    Front::start(command, folder, &[]).await
}

/// Returns a shell whose `planck` is that of a front.
fn shell(folder: &Path) -> Result<Command> {
    let planck = planck()?;
    let planck = planck.parent().context("no folder")?.display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .env_clear()
        .env("PATH", format!("{planck}:{path}"))
        .env("HOME", folder)
        .current_dir(folder);
    Ok(shell)
}

/// Returns the interpreter of an SDK, with the key of a front where the SDK looks for it.
fn interpreter(sdk: Sdk, front: &Front) -> Command {
    let mut interpreter = sdk.interpreter();
    interpreter.env("OPENAI_API_KEY", front.key());
    interpreter
}

#[tokio::test]
#[ignore = "needs OpenAI's SDK: make test-all"]
async fn snippets_of_the_guide_to_openai_work() -> Result<()> {
    if !Sdk::OpenAiPython.is_there() || !Sdk::OpenAiJavaScript.is_there() {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let script = Script::new().always(Reply::text(ANSWER)).without_auth();
    let model = planck_scripted_model::Server::start(script).await?;
    let front = serve(folder.path(), &model).await?;
    let here = |text: &str| text.replace(ADDRESS, &format!("http://{}", front.address()));

    let guide = "docs/openai.md";
    let [python] = blocks(guide, "python")?
        .try_into()
        .ok()
        .context("one program")?;
    let said = printed(interpreter(Sdk::OpenAiPython, &front), &here(&python)).await?;
    assert_eq!(said.trim(), ANSWER);
    let [javascript] = blocks(guide, "js")?
        .try_into()
        .ok()
        .context("one program")?;
    let sdk = interpreter(Sdk::OpenAiJavaScript, &front);
    let said = printed(sdk, &here(&javascript)).await?;
    assert_eq!(said.trim(), ANSWER);

    let mut requests = blocks(guide, "sh")?;
    requests.retain(|block| block.contains("curl "));
    let [first, stream] = requests.try_into().ok().context("two blocks")?;
    let (serve, requests) = first.split_once('\n').context("the first command")?;
    assert!(serve.starts_with("planck serve"), "{serve}");
    let requests = format!("set -e\n{}", here(requests));
    let said = printed(shell(folder.path())?, &requests).await?;
    let (models, completion) = said.split_once("}{").context("two answers")?;
    let models: Value = serde_json::from_str(&format!("{models}}}"))?;
    assert_eq!(models["data"][0]["id"], "planck");
    let completion: Value = serde_json::from_str(&format!("{{{completion}"))?;
    assert_eq!(completion["choices"][0]["message"]["content"], ANSWER);

    let body = json!({"model": "planck", "input": "What is in this folder?"});
    let response = front.post("/openai/v1/responses", &body).await?;
    let id = response["id"].as_str().context("no id")?;
    let stream = here(&stream).replace("/ID?", &format!("/{id}?"));
    let mut shell = shell(folder.path())?;
    shell.env("OPENAI_API_KEY", front.key());
    let said = printed(shell, &stream).await?;
    // The number in the guide is that of the eighth character.
    assert!(
        said.contains(&format!(r#""delta":"{}""#, &ANSWER[8..])),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs the client of AG-UI: make test-all"]
async fn snippets_of_the_guide_to_ag_ui_work() -> Result<()> {
    if !Sdk::AgUi.is_there() {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let write = json!({"path": "a.txt", "content": "hello"});
    let script = Script::new()
        .rounds(
            When::any().user("Write hello"),
            [Reply::call("write", write), Reply::text("It is there.")],
        )
        .always(Reply::text(ANSWER));
    let model = planck_scripted_model::Server::start(script.without_auth()).await?;
    let front = serve(folder.path(), &model).await?;
    let here = |text: &str| text.replace("127.0.0.1:8400", &front.address().to_string());
    let guide = "docs/ag-ui.md";
    let [program] = blocks(guide, "js")?
        .try_into()
        .ok()
        .context("one program")?;
    let mut sdk = Sdk::AgUi.interpreter();
    sdk.env("PLANCK_KEY", front.key());
    let said = printed(sdk, &here(&program)).await?;
    assert_eq!(
        said,
        "\nwrite { content: 'hello', path: 'a.txt' }\nIt is there."
    );
    let written = std::fs::read_to_string(folder.path().join("a.txt"))?;
    assert_eq!(written, "hello");

    let [request] = blocks(guide, "sh")?.try_into().ok().context("one block")?;
    let request = request.replace("localhost:8400", &front.address().to_string());
    // The session of the program has another message already.
    let request = request.replace("bold-oak", "calm-elm");
    let said = printed(shell(folder.path())?, &request).await?;
    assert!(said.contains(r#""type":"RUN_FINISHED""#), "{said}");
    Ok(())
}

#[tokio::test]
async fn example_of_the_guide_to_structured_output_works() -> Result<()> {
    let folder = TempDir::new()?;
    let todos = json!({"todos": ["Write tests", "Ship"]});
    let script = Script::new().rule(
        When::any().user("Which TODOs").round(0),
        Reply::call("submit_output", todos),
    );
    let model = planck_scripted_model::Server::start(script.without_auth()).await?;
    let blocks = blocks("docs/structured-output.md", "sh")?;
    let example = blocks.first().context("an example")?;
    let mut shell = shell(folder.path())?;
    shell
        .env("PLANCK_MODELS_DEFAULT", "scripted:test")
        .env("PLANCK_PROVIDERS_SCRIPTED_BASE_URL", model.openai_url());
    let said = printed(shell, &format!("set -e\n{example}")).await?;
    assert_eq!(said, "\"Write tests\"\n\"Ship\"\n");
    Ok(())
}

/// Returns the requests of a guide: their subjects and bodies.
fn requests(guide: &str) -> Result<Vec<(Address, Value)>> {
    let blocks = blocks(guide, "sh")?;
    let lines = blocks.iter().flat_map(|block| block.lines());
    let requests = lines.filter_map(|line| line.strip_prefix("nats req --raw "));
    let request = |request: &str| {
        let (subject, body) = request.split_once(' ').context("no body")?;
        let (body, _) = body
            .strip_prefix('\'')
            .context("no quote")?
            .split_once('\'')
            .context("no end")?;
        let body = if body.is_empty() { "{}" } else { body };
        let address = Address::parse(subject).with_context(|| subject.to_owned())?;
        Ok((
            address,
            serde_json::from_str(body).with_context(|| body.to_owned())?,
        ))
    };
    requests.map(request).collect()
}

/// Sends a request of the guide about a wait of this world.
async fn send(
    world: &World,
    (to, body): &(Address, Value),
    wait: &Value,
) -> Result<Result<Value, Code>> {
    let mut body = body.clone();
    for key in ["wait", "digest"] {
        if body.get(key).is_some() {
            body[key] = wait[if key == "wait" { "id" } else { key }].clone();
        }
    }
    let reply: Result<Value, _> = world.caller.try_request(to, &body).await?;
    Ok(reply.map_err(|refusal: planck_common::reply::Refusal| refusal.code))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_the_guide_to_approvals_work() -> Result<()> {
    let call = Reply::call("bash", json!({"command": "git push origin main"}));
    let question = Reply::call("ask_user", json!({"question": "Which one?"}));
    let script = Script::new()
        .rule(When::any().user("Publish").round(0), call)
        .rule(When::any().user("Ask").round(0), question)
        .always(Reply::text("Done."));
    let world = World::start(Backend::Sqlite, script).await?;
    let _node = world.node().await?;
    let asked = async |name: &str, prompt: &str| {
        let body = json!({"name": name, "prompt": prompt, "dir": world.dir(), "permissions": "careful",
            "members": [{"type": "agent", "tools": ["bash", "ask_user"],
                "limits": {"max_requests_per_turn": 1, "on_limit": "ask"}}]});
        world.caller.start(&body).await?;
        first_wait(&world, name).await
    };
    let guide = requests("docs/approvals.md")?;
    let on = |name: &str| -> Vec<_> {
        let target = planck_common::subject::Target::Session(name.to_owned());
        guide.iter().filter(|(to, _)| to.target == target).collect()
    };

    let lists = guide.iter().filter(|(to, _)| to.verb == "waits");
    let wait = asked("nightly", "Publish the report").await?;
    for request in lists {
        let list = send(&world, request, &wait).await?.expect("a list");
        assert_eq!(list["waits"][0]["title"], "bash: git push origin main");
        assert_eq!(list["waits"][0]["request"]["effect"], "mutating");
    }
    let [allow, deny] = on("nightly")[..] else {
        panic!("two answers for `nightly`: {guide:?}")
    };
    let answered = send(&world, allow, &wait).await?.expect("an answer");
    assert_eq!(
        (&answered["decision"], &answered["answered_by"]),
        (&json!("allow"), &json!("ann"))
    );
    assert_eq!(send(&world, deny, &wait).await?, Err(Code::Exists));
    // The turn now reaches its limit, which is raised.
    let limit = eventually("the limit waits", async || {
        let wait = first_wait(&world, "nightly").await.ok()?;
        (wait["kind"] == "budget").then_some(wait)
    });
    let limit = limit.await?;

    let [approval, answer, budget] = on("bold-oak")[..] else {
        panic!("three answers for `bold-oak`: {guide:?}")
    };
    let raised = (Address::session("nightly", "answer"), budget.1.clone());
    send(&world, &raised, &limit)
        .await?
        .expect("a higher limit");
    let other = asked("bold-oak", "Publish it").await?;
    send(&world, approval, &other).await?.expect("an answer");
    let question = asked("other", "Ask me").await?;
    assert_eq!(question["kind"], "question");
    let told = (Address::session("other", "answer"), answer.1.clone());
    send(&world, &told, &question).await?.expect("an answer");
    Ok(())
}

async fn first_wait(world: &World, session: &str) -> Result<Value> {
    let list = Address::parse("cmd.sessions.waits").context("a subject")?;
    eventually("the session waits", async || {
        let waits: Value = world
            .caller
            .ask(&list, &json!({"session": session}))
            .await
            .ok()?;
        waits["waits"].get(0).cloned()
    })
    .await
}
