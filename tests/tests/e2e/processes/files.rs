//! Which files tools can reach, and tools and skills that come from files.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::Result;
use planck_scripted_model::{Reply, Script};
use planck_tests::world::{Backend, World};
use serde_json::{Value, json};

use crate::teams::scene::{Scene, by, member};

#[tokio::test(flavor = "multi_thread")]
async fn files_outside_the_workspace_are_out_of_reach() -> Result<()> {
    let reach = |tool: &str, path: &str| match tool {
        "read" => json!({ "path": path }),
        "write" => json!({ "path": path, "content": "x" }),
        _ => json!({ "path": path, "old_string": "secret", "new_string": "x" }),
    };
    let cases = [
        ("read", "../secret"),
        ("read", "way/secret"),
        ("write", "way/new"),
        ("edit", "/etc/hostname"),
        ("write", "a/../../b"),
    ];
    let calls = cases.iter().fold(Reply::new(), |reply, (tool, path)| {
        reply.and_call(tool, reach(tool, path))
    });
    let calls = calls.and_call("bash", json!({ "command": "pwd", "cwd": ".." }));
    let script = Script::new().rounds(by("agent"), [calls, Reply::text("done")]);
    let world = World::start(Backend::Sqlite, script).await?;
    fs::write(world.folder().join("secret"), "secret")?;
    symlink(world.folder(), world.dir().join("way"))?;
    let scene = Scene::start_on(
        world,
        &[member("agent", &["read", "write", "edit", "bash"])],
        "go",
    )
    .await?;
    scene.answer().await?;
    for tool in ["read", "write", "edit", "bash"] {
        for end in scene.results("agent", tool).await? {
            assert!(
                end.error && !end.result.contains("secret\n"),
                "{tool}: {}",
                end.result
            );
        }
    }
    assert!(!scene.world.folder().join("new").exists() && !scene.world.folder().join("b").exists());
    scene.end().await
}

fn describe(folder: &Path, name: &str, command: &str) -> Result<()> {
    let tool = json!({
        "name": name, "description": "Says a word.", "command": command, "effect": "pure",
        "parameters": { "type": "object", "properties": { "word": { "type": "string" } }, "required": ["word"] },
    });
    fs::create_dir_all(folder.join(name))?;
    Ok(fs::write(
        folder.join(name).join("TOOL.json"),
        tool.to_string(),
    )?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_tool_gets_its_arguments_as_words_and_not_as_shell_text() -> Result<()> {
    let word = "a; touch made && echo $HOME 'b' \"c\"";
    let script = Script::new().rounds(
        by("agent"),
        [
            Reply::call("say", json!({ "word": word })).and_call("say", json!({})),
            Reply::text("said {{result:say}}"),
        ],
    );
    let world = World::start(Backend::Sqlite, script).await?;
    let tools = world.folder().join("tools");
    describe(&tools, "say", "printf %s {{word}}")?;
    let node = world
        .node_with(&[("PLANCK_TOOLS_DIRS", &tools.display().to_string())])
        .await?;
    let recorder = world.record().await?;
    let start =
        json!({ "dir": world.dir(), "members": [member("agent", &["say"])], "prompt": "go" });
    let started = world.caller.start(&start).await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    scene.answer().await?;
    let ends = scene.results("agent", "say").await?;
    let said = ends
        .iter()
        .find(|end| !end.error)
        .map(|end| end.result.as_str());
    assert_eq!(said, Some(word), "{ends:?}");
    assert!(!scene.world.dir().join("made").exists());
    assert!(
        ends.iter().any(|end| end.error
            && end
                .result
                .contains("`say` was not run, its arguments do not fit")),
        "{ends:?}"
    );
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_loads_the_skills_it_has() -> Result<()> {
    let calls = Reply::call("list_skills", json!({}))
        .and_call("load_skill", json!({ "name": "review" }))
        .and_call("load_skill", json!({ "name": "secret" }));
    let script = Script::new().rounds(by("agent"), [calls, Reply::text("done")]);
    let world = World::start(Backend::Sqlite, script).await?;
    let skills = world.folder().join("skills");
    for name in ["review", "secret"] {
        fs::create_dir_all(skills.join(name))?;
        let text =
            format!("---\nname: {name}\ndescription: How to {name}.\n---\nThe way of {name}.\n");
        fs::write(skills.join(name).join("SKILL.md"), text)?;
    }
    let node = world
        .node_with(&[("PLANCK_SKILLS_DIRS", &skills.display().to_string())])
        .await?;
    let recorder = world.record().await?;
    let mut agent = member("agent", &[]);
    agent["skills"] = json!(["review"]);
    let started = world
        .caller
        .start(&json!({ "dir": world.dir(), "members": [agent], "prompt": "go" }))
        .await?;
    let scene = Scene {
        world,
        node: Some(node),
        recorder,
        started,
    };
    scene.answer().await?;
    let listed: Vec<Value> =
        serde_json::from_str(&scene.result("agent", "list_skills").await?.result)?;
    assert_eq!(
        listed
            .iter()
            .map(|skill| &skill["name"])
            .collect::<Vec<_>>(),
        ["review"]
    );
    let loaded = scene.results("agent", "load_skill").await?;
    let texts: Vec<_> = loaded
        .iter()
        .map(|end| (end.error, end.result.lines().next().unwrap_or_default()))
        .collect();
    assert!(texts.contains(&(false, "The way of review.")), "{texts:?}");
    assert!(
        texts
            .iter()
            .any(|(error, text)| *error && text.starts_with("there is no skill `secret`")),
        "{texts:?}"
    );
    let asked = scene
        .world
        .model
        .requests()
        .into_iter()
        .filter_map(|request| request.asked)
        .next()
        .unwrap();
    assert!(
        asked.system.contains("- review: How to review.") && !asked.system.contains("secret"),
        "{}",
        asked.system
    );
    scene.end().await
}
