//! A model that asks to run a command outside of the sandbox.

use anyhow::Result;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::machine::{PersonalMachine, run};
use serde_json::json;

use super::asked::AtTerminal;

/// Starts a machine whose model asks once to read a file of the home.
async fn machine() -> Result<PersonalMachine> {
    let args = json!({"command": "cat ../home/private.txt", "unsandboxed": true});
    let script = Script::new()
        .limited(1, When::any(), Reply::call("bash", args))
        .always("Done.");
    let machine = PersonalMachine::start(script).await?;
    machine.write("../home/private.txt", "PRIVATE")?;
    Ok(machine)
}

fn command(machine: &PersonalMachine, unsandboxed: &str) -> Result<tokio::process::Command> {
    let mut command = machine.planck(&["run", "--session", "bold-oak", "go"])?;
    command
        .env("PLANCK_MODELS_DEFAULT", "openai:gpt-5")
        .env("PLANCK_TOOLS_UNSANDBOXED", unsandboxed)
        .env(
            "PLANCK_PERMISSIONS_RULES",
            r#"[{"tool":"bash","action":"allow"}]"#,
        );
    Ok(command)
}

fn last_request(machine: &PersonalMachine) -> String {
    let requests = machine.model.requests();
    let last = requests.last();
    last.map_or_else(String::new, |asked| asked.body.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn command_leaves_the_sandbox_only_if_a_person_allows_it() -> Result<()> {
    let allowed = machine().await?;
    let mut planck = AtTerminal::spawn(command(&allowed, "ask")?)?;
    let drawn = planck.answer("y").await?;
    assert!(
        drawn.contains("? bash OUTSIDE of the sandbox") && drawn.contains("all your rights"),
        "{drawn}"
    );
    assert!(!drawn.contains("for the session"), "{drawn}");
    let (code, screen) = planck.end().await?;
    assert_eq!(code, Some(0), "{screen}");
    assert!(last_request(&allowed).contains("PRIVATE"), "{screen}");

    let denied = machine().await?;
    let mut planck = AtTerminal::spawn(command(&denied, "ask")?)?;
    planck.answer("n").await?;
    planck.terminal.until("why not?").await?;
    planck.terminal.type_in("\r")?;
    let (code, screen) = planck.end().await?;
    assert_eq!(code, Some(0), "{screen}");
    let asked = last_request(&denied);
    assert!(asked.contains("not run: ") && !asked.contains("PRIVATE"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_leaves_the_sandbox_where_no_person_can_be_asked() -> Result<()> {
    let machine = machine().await?;
    let ran = run(command(&machine, "ask")?).await?;
    assert_eq!(ran.code, 0, "{ran:?}");
    let asked = last_request(&machine);
    assert!(
        asked.contains("no person can be asked here") && asked.contains("not run"),
        "{asked}"
    );
    assert!(!asked.contains("PRIVATE"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_model_can_ask_to_leave_the_sandbox_by_default() -> Result<()> {
    let machine = machine().await?;
    let planck = AtTerminal::spawn(command(&machine, "off")?)?;
    let (code, screen) = planck.end().await?;
    assert_eq!(code, Some(0), "{screen}");
    let requests = machine.model.requests();
    let first = requests[0].body.to_string();
    assert!(
        !first.contains("unsandboxed"),
        "the model is not told of it"
    );
    assert!(!last_request(&machine).contains("PRIVATE"), "{screen}");
    Ok(())
}
