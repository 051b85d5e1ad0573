//! The root folders of a tool: some can only be read, and an agent cannot replace its own by a
//! link.

use std::fs;

use anyhow::Result;
use planck_scripted_model::{Reply, Script};
use planck_tests::world::Backend;
use serde_json::json;

use super::{Walled, put, tiers};
use crate::teams::scene::{by, member};

#[tokio::test(flavor = "multi_thread")]
async fn skills_are_read_and_never_written() -> Result<()> {
    for tier in tiers() {
        let world = planck_tests::world::World::start(
            Backend::Sqlite,
            planck_scripted_model::Script::new(),
        )
        .await?;
        let skills = world.folder().join("skills");
        put(
            skills.join("help/SKILL.md"),
            "---\nname: help\ndescription: helps\n---\nhow",
        )?;
        put(skills.join("help/data"), "data")?;
        let folder = skills.display().to_string();
        let walled = Walled::start_in(world, &tier, &[("PLANCK_SKILLS_DIRS", &folder)]).await?;
        let said = walled
            .calls(&[
                ("read", json!({ "path": skills.join("help/data") })),
                ("bash", json!({ "command": format!("cat {folder}/help/data") })),
                ("write", json!({ "path": skills.join("evil/SKILL.md"), "content": "evil" })),
                ("edit", json!({ "path": skills.join("help/data"), "old_string": "data", "new_string": "evil" })),
                ("bash", json!({ "command": format!("echo evil > {folder}/help/data; mkdir {folder}/evil") })),
            ])
            .await?;
        assert!(
            said[0].contains("data") && said[1] == "data",
            "{tier:?}: {said:?}"
        );
        assert!(
            said[2].contains("readable only") && said[3].contains("readable only"),
            "{tier:?}: {said:?}"
        );
        assert_eq!(
            fs::read_to_string(skills.join("help/data"))?,
            "data",
            "{tier:?}"
        );
        assert!(!skills.join("evil").exists(), "{tier:?}");
        walled.end(&[]).await?;
    }
    Ok(())
}

/// A session in the parent folder replaces the folder of another session by a link to the user's
/// files.
#[tokio::test(flavor = "multi_thread")]
async fn working_directory_that_becomes_a_link_leads_nowhere() -> Result<()> {
    for tier in tiers() {
        let walled = Walled::start(&tier, Backend::Sqlite, &[]).await?;
        let keys = walled.outside("keys");
        put(keys.join("id"), "key")?;
        let work = walled.world.dir().join("work");
        fs::create_dir_all(&work)?;
        let start =
            json!({ "dir": work, "members": [member("agent", &["bash", "read", "write"])] });
        let started = walled.world.caller.start(&start).await?;
        let swap = format!("mv work work.old && ln -s {} work", keys.display());
        walled.bash(&swap).await?;
        assert!(fs::read_link(&work).is_ok(), "{tier:?}: the link was made");

        let calls = [
            Reply::call("read", json!({ "path": "id" })),
            Reply::call("bash", json!({ "command": "cat id" })),
            Reply::call("write", json!({ "path": "new", "content": "evil" })),
            Reply::text("done"),
        ];
        let script = Script::new().without_auth().rounds(by("agent"), calls);
        walled.world.model.set_script(script);
        let recorder = walled.world.record().await?;
        let accepted = walled
            .world
            .caller
            .prompt(&started.session_id, "go")
            .await?;
        recorder.answered(&accepted.prompt_id).await?;
        let log = walled.world.caller.log(&started.session_id, 1).await?;
        let log = serde_json::to_string(&log)?;
        let refused = log
            .matches("a session works in the folder in which it began")
            .count();
        assert!(refused >= 3, "{tier:?}: {log}");
        assert!(
            !log.contains("\"key\"") && !keys.join("new").exists(),
            "{tier:?}: {log}"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}
