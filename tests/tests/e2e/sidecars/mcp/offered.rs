//! The MCP servers that a repository offers in its `.mcp.json`.

use std::path::Path;

use anyhow::{Context as _, Result};
use planck_scripted_model::{Reply, Script, When};
use planck_tests::machine::{PersonalMachine, Ran};
use serde_json::{Value, json};

use super::program;

const RUN: [&str; 4] = ["run", "--model", "openai:m", "go"];

/// Returns a machine whose tools can read the program of the server, and the program.
async fn machine(script: Script) -> Result<Option<(PersonalMachine, String)>> {
    let Some(program) = program() else {
        return Ok(None);
    };
    let program = program.canonicalize()?;
    let modules = program
        .ancestors()
        .find(|path| path.ends_with("node_modules"));
    let modules = modules.context("no node_modules")?.display();
    let machine = PersonalMachine::start(script).await?;
    machine.configure(&format!("[tools]\nreadable = [\"{modules}\"]\n"))?;
    Ok(Some((machine, program.display().to_string())))
}

fn write(machine: &PersonalMachine, servers: &Value) -> Result<()> {
    machine.write(".mcp.json", &json!({"mcpServers": servers}).to_string())
}

async fn call(machine: &PersonalMachine, tool: &str) -> Result<Ran> {
    machine
        .run(&[
            "sidecar",
            "call",
            "everything",
            tool,
            r#"{"message": "hi"}"#,
        ])
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_repository_run_only_as_they_were_trusted() -> Result<()> {
    let script = Script::new().rounds(
        When::any().user("call it"),
        [
            Reply::call("everything__echo", json!({"message": "hi"})),
            Reply::text("it said {{result:everything__echo}}"),
        ],
    );
    let Some((machine, program)) = machine(script.always("Hello.")).await? else {
        return Ok(());
    };
    let trap = json!({"command": "sh", "args": ["-c", "touch ran"]});
    let mut servers = json!({
        "everything": {
            "command": "node", "args": [program, "stdio"],
            "env": {"LEVEL": "${LEVEL:-high}", "KEY": "text of the key"},
        },
        "trap": trap,
        "old": {"type": "sse", "url": "https://example.com/sse"},
    });
    write(&machine, &servers)?;
    let has_run = || machine.work().join("ran").exists();

    let ran = machine.run(&RUN).await?;
    let told = ran.err.contains(".mcp.json in ") && ran.err.contains("planck trust ");
    assert!(ran.code == 0 && told && !has_run(), "{ran:?}");
    for command in [vec!["doctor"], vec!["sidecar", "ls"]] {
        machine.run(&command).await?;
    }
    let called = call(&machine, "echo").await?;
    assert!(called.code != 0 && !has_run(), "{called:?}");
    let shown = machine.run(&["trust"]).await?;
    for part in [
        "MCP server trap runs [\"sh\", \"-c\", \"touch ran\"]",
        ", sets KEY LEVEL, reads your variables LEVEL (.mcp.json)",
        "MCP server \"old\" is left out: the transport `sse`",
    ] {
        assert!(shown.out.contains(part), "{part}: {shown:?}");
    }
    let is_hidden = !shown.out.contains("text of the key");
    assert!(shown.code == 1 && is_hidden && !has_run(), "{shown:?}");

    let trusted = machine.run(&["trust", "--yes"]).await?;
    assert!(trusted.code == 0 && !has_run(), "{trusted:?}");
    let environment = call(&machine, "get-env").await?;
    for part in ["\"LEVEL\": \"high\"", "\"KEY\": \"text of the key\""] {
        assert!(environment.out.contains(part), "{part}: {environment:?}");
    }
    assert!(!environment.out.contains("ANTHROPIC"), "{environment:?}");
    let shown = machine.run(&["config", "show", "--origin"]).await?;
    let line = shown
        .out
        .lines()
        .find(|line| line.contains("mcp.everything.env"));
    let line = line.context("no line")?;
    assert!(
        line.contains("KEY=(set)") && line.contains(".mcp.json:1"),
        "{line}"
    );
    let ran = machine
        .run(&["run", "--model", "openai:m", "call it"])
        .await?;
    assert!(ran.out.contains("it said Echo: hi"), "{ran:?}");
    assert!(
        ran.err.contains("the MCP server \"old\" is left out") && has_run(),
        "{ran:?}"
    );

    servers["everything"]["args"] = json!(["-e", "require('fs').writeFileSync('changed', '')"]);
    write(&machine, &servers)?;
    let ran = machine.run(&RUN).await?;
    assert!(
        ran.code == 0 && ran.err.contains("planck trust "),
        "{ran:?}"
    );
    let shown = machine.run(&["trust"]).await?;
    assert!(
        shown.code == 1 && shown.out.contains("writeFileSync"),
        "{shown:?}"
    );
    assert!(!machine.work().join("changed").exists());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn entry_of_the_user_replaces_the_whole_server_of_a_repository() -> Result<()> {
    let Some((machine, program)) = machine(Script::new().always("Hello.")).await? else {
        return Ok(());
    };
    write(
        &machine,
        &json!({"everything": {"command": "false", "env": {"LEVEL": "theirs"}}}),
    )?;
    let own = machine.read("../home/.planck/config.toml")?;
    let entry = format!("[mcp.everything]\ncommand = [\"node\", \"{program}\", \"stdio\"]\n");
    machine.configure(&format!("{own}{entry}env = [\"MINE=1\"]\n"))?;
    assert_eq!(machine.run(&["trust", "--yes"]).await?.code, 0);
    let environment = call(&machine, "get-env").await?;
    let (mine, theirs) = (
        environment.out.contains("MINE"),
        environment.out.contains("LEVEL"),
    );
    assert!(mine && !theirs, "{environment:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn server_of_a_repository_is_confined_whatever_its_file_says() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    let outside = machine.folder().join("outside");
    let script = format!("touch inside; touch {}; exit 3", outside.display());
    let server = json!({"command": "sh", "args": ["-c", script], "sandbox": "off"});
    write(&machine, &json!({"everything": server}))?;
    assert_eq!(machine.run(&["trust", "--yes"]).await?.code, 0);
    let called = call(&machine, "echo").await?;
    let ran = |path: &Path| path.exists();
    assert!(ran(&machine.work().join("inside")), "{called:?}");
    assert!(!ran(&outside), "{called:?}");
    Ok(())
}
