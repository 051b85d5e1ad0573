//! Skills that a repository has for other programs.

use std::fs;

use anyhow::Result;
use planck_scripted_model::{Reply, Script, When};
use planck_tests::machine::PersonalMachine;
use serde_json::json;

use super::trust;

const RUN: [&str; 4] = ["run", "--model", "openai:m", "go"];

fn write_skill(machine: &PersonalMachine, folder: &str, description: &str) -> Result<()> {
    let text = format!(
        "---\nname: plan\ndescription: {description}\nallowed-tools: Bash\n---\nSECRET-PLAN\n"
    );
    machine.write(&format!("{folder}/SKILL.md"), &text)
}

fn last_request(machine: &PersonalMachine) -> String {
    let requests = machine.model.requests();
    requests
        .last()
        .map_or_else(String::new, |asked| asked.body.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn skill_for_another_program_has_an_effect_only_as_it_was_trusted() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    write_skill(
        &machine,
        ".claude/skills/plan",
        "\"Plans \\e[31mred\\e]0;x\\a.\"",
    )?;
    let ran = machine.run(&RUN).await?;
    assert!(
        ran.code == 0
            && ran.err.contains("1 skill for other programs")
            && ran.err.contains("planck trust "),
        "{ran:?}"
    );
    assert!(!last_request(&machine).contains("Plans"));
    let shown = machine.run(&["trust"]).await?;
    assert!(
        shown.code == 1
            && shown.out.contains("skill plan instructs agents: Plans ")
            && !shown.out.contains('\x1b')
            && !shown.out.contains('\x07'),
        "{shown:?}"
    );

    trust(&machine).await?;
    let ran = machine.run(&RUN).await?;
    assert!(
        ran.code == 0 && !ran.err.contains("planck trust"),
        "{ran:?}"
    );
    assert!(last_request(&machine).contains("Plans"));

    write_skill(&machine, ".claude/skills/plan", "Something else.")?;
    let ran = machine.run(&RUN).await?;
    assert!(
        ran.code == 0 && ran.err.contains("planck trust "),
        "{ran:?}"
    );
    assert!(!last_request(&machine).contains("Something else"));
    let doctor = machine.run(&["doctor"]).await?;
    assert!(doctor.out.contains("Something else."), "{doctor:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_loads_the_text_of_a_trusted_skill() -> Result<()> {
    let script = Script::new()
        .limited(
            1,
            When::any(),
            Reply::call("load_skill", json!({"name": "plan"})),
        )
        .always("Done.");
    let machine = PersonalMachine::start(script).await?;
    write_skill(&machine, ".agents/skills/plan", "Plans.")?;
    trust(&machine).await?;
    assert_eq!(machine.run(&RUN).await?.code, 0);
    assert!(last_request(&machine).contains("SECRET-PLAN"));
    assert!(!last_request(&machine).contains("allowed-tools"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn skill_of_a_repository_replaces_none_of_the_user() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    write_skill(&machine, "../home/.planck/skills/plan", "Mine.")?;
    write_skill(&machine, ".claude/skills/plan", "Theirs.")?;
    trust(&machine).await?;
    let ran = machine.run(&RUN).await?;
    assert!(
        ran.code == 0 && ran.err.contains("there is a skill `plan` already"),
        "{ran:?}"
    );
    let asked = last_request(&machine);
    assert!(asked.contains("Mine.") && !asked.contains("Theirs."));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_skills_do_not_stop_a_run() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    let skills = machine.work().join(".claude/skills");
    fs::create_dir_all(&skills)?;
    (0..10_000).try_for_each(|number| fs::create_dir(skills.join(number.to_string())))?;
    machine.write(".agents/skills/big/SKILL.md", &"x".repeat(10 << 20))?;
    write_skill(&machine, ".agents/skills/plan", "Plans.")?;
    let ran = machine.run(&RUN).await?;
    assert!(ran.code == 0 && ran.err.contains("1 skill for"), "{ran:?}");
    let shown = machine.run(&["trust", "--yes"]).await?;
    assert!(
        shown.code == 0
            && shown
                .out
                .contains("left out: .claude/skills: the folder holds more than 256 entries")
            && shown.out.contains("big/SKILL.md: it is larger"),
        "{shown:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn init_trusts_no_skill_that_was_not_shown() -> Result<()> {
    let machine = PersonalMachine::start(Script::new().always("Hello.")).await?;
    write_skill(&machine, ".claude/skills/plan", "Plans.")?;
    let wrote = machine.run(&["init", "--project"]).await?;
    assert_eq!(wrote.code, 0, "{wrote:?}");
    let ran = machine.run(&RUN).await?;
    assert!(
        ran.code == 0 && ran.err.contains("planck trust "),
        "{ran:?}"
    );
    assert!(!last_request(&machine).contains("Plans."));
    Ok(())
}
