//! Arguments of external tools that a program would interpret as options.

use anyhow::Result;
use planck_common::event::EventKind;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::machine::{PersonalMachine, of_kind};
use serde_json::{Value, json};

fn tool(more: Value) -> String {
    let mut tool = json!({
        "name": "history", "description": "Shows what changed.", "command": "sort {{ref}}", "effect": "pure",
        "parameters": {"type": "object", "properties": {"ref": {"type": "string"}}, "required": ["ref"]},
    });
    tool.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    tool.to_string()
}

/// Runs a turn in which the model calls the tool `history` with an argument. Returns the machine
/// and the result of the call.
async fn called(tool: &str, argument: &str) -> Result<(PersonalMachine, Value)> {
    let call = Reply::call("history", json!({ "ref": argument }));
    let machine = PersonalMachine::start(
        Script::new()
            .rule(When::any().result_of("history"), "Done.")
            .always(call),
    )
    .await?;
    let folder = machine.folder().join("home/.planck/tools/history");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("TOOL.json"), tool)?;
    machine.write(
        "team/TEAM.json",
        &json!([{"type": "a", "tools": ["history"]}]).to_string(),
    )?;
    machine.write("a.txt", "b\na\n")?;
    let ran = machine
        .run(&[
            "run", "-o", "jsonl", "--team", "team", "--model", "openai:m", "go",
        ])
        .await?;
    let end = of_kind(&ran.events()?, EventKind::ToolEnd)
        .pop()
        .unwrap_or_default();
    Ok((machine, end))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn argument_of_a_tool_cannot_become_an_option() -> Result<()> {
    let (machine, end) = called(&tool(json!({})), "--output=../written").await?;
    assert!(
        end["error"] == true && end["result"].as_str().unwrap().contains("begins with `-`"),
        "{end}"
    );
    assert!(
        !machine.folder().join("written").exists(),
        "nothing was written outside of the workspace"
    );
    let (_machine, end) = called(&tool(json!({})), "a.txt").await?;
    assert!(
        end["error"] == false && end["result"].as_str().unwrap().starts_with("a\nb"),
        "{end}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "shows what an attacker cannot do, for minutes: make test-all"]
async fn author_of_a_tool_decides_which_arguments_may_be_options() -> Result<()> {
    let (_machine, end) = called(&tool(json!({"options": ["ref"]})), "--version").await?;
    assert!(
        end["error"] == false && end["result"].as_str().unwrap().contains("sort"),
        "{end}"
    );
    let (_machine, end) = called(
        &tool(json!({"command": "sort -- {{ref}}"})),
        "--output=../written",
    )
    .await?;
    assert!(
        end["error"] == true
            && end["result"]
                .as_str()
                .unwrap()
                .contains("--output=../written"),
        "it is a file's name: {end}"
    );
    Ok(())
}
