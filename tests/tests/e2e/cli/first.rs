//! `planck init`, and which model is used if the user names none.

use anyhow::Result;
use planck_scripted_model::{Reply, Script};
use planck_tests::machine::{PersonalMachine, run};
use serde_json::Value;

async fn machine() -> Result<PersonalMachine> {
    PersonalMachine::start(Script::new().always(Reply::text("Hello."))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_alone_selects_its_vendors_standard_model() -> Result<()> {
    let machine = machine().await?;
    let listed: Value =
        serde_json::from_str(&machine.run(&["model", "ls", "-o", "json"]).await?.out)?;
    let rows = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    let of_openai = |row: &&Value| row["provider"] == "openai" && row["standard"] == true;
    let standard = rows
        .iter()
        .find(of_openai)
        .and_then(|row| row["id"].as_str())
        .unwrap_or_default()
        .to_owned();
    let dearest = rows
        .iter()
        .filter(|row| row["provider"] == "openai")
        .filter_map(|row| row["prices"]["output"].as_f64());
    let price = rows
        .iter()
        .find(|row| row["id"] == *standard)
        .and_then(|row| row["prices"]["output"].as_f64());
    assert!(
        price < dearest.max_by(f64::total_cmp),
        "{standard} is the dearest"
    );

    let with_one_key = |arguments: &[&str]| -> Result<_> {
        let mut command = machine.planck(arguments)?;
        command
            .env_remove("ANTHROPIC_API_KEY")
            .env_remove("GOOGLE_API_KEY")
            .env("PLANCK_PROVIDERS_OPENAI_WIRE", "responses");
        Ok(command)
    };
    let ran = run(with_one_key(&["run", "hello"])?).await?;
    assert!(
        ran.code == 0 && ran.err.contains(&standard),
        "{standard}: {ran:?}"
    );
    let doctor = run(with_one_key(&["doctor"])?).await?;
    assert!(
        doctor
            .out
            .contains(&format!("{standard}, the standard one of openai")),
        "{doctor:?}"
    );
    let asked: Vec<String> = machine
        .model
        .requests()
        .iter()
        .filter_map(|asked| asked.body["model"].as_str().map(Into::into))
        .collect();
    assert_eq!(asked, [standard.trim_start_matches("openai:")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn init_writes_a_model_once_for_the_user_and_for_a_project() -> Result<()> {
    let machine = machine().await?;
    let wrote = machine.run(&["init"]).await?;
    assert!(
        wrote.code == 0 && wrote.out.contains("anthropic:"),
        "{wrote:?}"
    );
    let shown = machine
        .run(&["config", "show", "--changed", "--origin"])
        .await?;
    assert!(
        shown.out.contains("models.default") && shown.out.contains(".planck/config.toml:"),
        "{shown:?}"
    );
    let again = machine.run(&["init"]).await?;
    assert!(
        again.code == 2 && again.err.contains("is there already"),
        "{again:?}"
    );

    let project = machine.run(&["init", "--project"]).await?;
    assert_eq!(project.code, 0, "{project:?}");
    let ran = machine.run(&["run", "hello"]).await?;
    assert_eq!(ran.code, 0, "what init wrote is trusted: {ran:?}");

    let other = self::machine().await?;
    other.write(".planck/tools/lint/TOOL.json", "{}")?;
    let refused = other.run(&["init", "--project"]).await?;
    assert!(
        refused.code == 2 && refused.err.contains("planck trust"),
        "{refused:?}"
    );
    assert!(!other.work().join(".planck/config.toml").exists());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_models_replaces_the_catalogue() -> Result<()> {
    let machine = machine().await?;
    let table = "date = \"2031-01-02\"\n[standard]\nopenai = \"new-1\"\n[[models]]\nvendor = \"openai\"\ncontext_window = 9_000\n\
                 max_output = 3_000\nthinking = \"none\"\nprices.\"new-1\" = [1.0, 2.0, 0.1, 1.0]\n";
    machine.write("models.toml", table)?;
    let file = machine.work().join("models.toml");
    let with = |arguments: &[&str]| -> Result<_> {
        let mut command = machine.planck(arguments)?;
        command
            .env("PLANCK_MODELS_CATALOGUE", &file)
            .env_remove("ANTHROPIC_API_KEY")
            .env_remove("GOOGLE_API_KEY");
        Ok(command)
    };
    let listed = run(with(&["model", "ls"])?).await?;
    assert!(
        listed.out.contains("2031-01-02") && listed.out.contains("openai:new-1"),
        "{listed:?}"
    );
    assert!(!listed.out.contains("claude"), "{listed:?}");
    let ran = run(with(&["run", "hello"])?).await?;
    assert!(ran.code == 0 && ran.err.contains("openai:new-1"), "{ran:?}");

    machine.write("models.toml", &table.replace("none", "loud"))?;
    let wrong = run(with(&["model", "ls"])?).await?;
    assert!(
        wrong.code == 2 && wrong.err.contains("line 8") && wrong.err.contains("loud"),
        "{wrong:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_says_once_that_commands_have_no_network() -> Result<()> {
    let machine = machine().await?;
    let team = |tools: &str| format!(r#"{{"members": [{{"type": "lead", "tools": [{tools}]}}]}}"#);
    machine.write("reader.json", &team(r#""read""#))?;
    let said =
        async |sandbox: &str, network: &str, arguments: &[&str]| -> Result<(usize, String)> {
            let mut command = machine.planck(arguments)?;
            command
                .env("PLANCK_TOOLS_SANDBOX", sandbox)
                .env("PLANCK_TOOLS_NETWORK", network);
            let ran = run(command).await?;
            assert_eq!(ran.code, 0, "{ran:?}");
            Ok((ran.err.matches("tools.network").count(), ran.out))
        };
    assert_eq!(said("auto", "off", &["run", "hello"]).await?.0, 1);
    let (count, json) = said("auto", "off", &["run", "-o", "json", "hello"]).await?;
    assert_eq!(count, 1);
    serde_json::from_str::<Value>(&json)?;
    for arguments in [
        &["run", "-q", "hello"][..],
        &["run", "-o", "jsonl", "hello"],
        &["run", "--team", "reader.json", "hello"],
    ] {
        assert_eq!(said("auto", "off", arguments).await?.0, 0, "{arguments:?}");
    }
    assert_eq!(said("auto", "on", &["run", "hello"]).await?.0, 0);
    assert_eq!(said("off", "off", &["run", "hello"]).await?.0, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_cannot_be_meant_ends_at_once_with_the_way_out() -> Result<()> {
    let machine = machine().await?;
    for (flag, name, code, told) in [
        ("--session", "a.b", 2, "malformed id or name `a.b`"),
        ("--model", "anthropic:", 2, "write its id after the colon"),
        ("--team", "./nope", 3, "no file or folder ./nope"),
    ] {
        let ran = machine.run(&["run", flag, name, "hello"]).await?;
        assert!(
            ran.code == code && ran.err.contains(told),
            "{name}: {ran:?}"
        );
    }
    assert!(machine.model.requests().is_empty());
    Ok(())
}
