//! The root folders of a tool: some can only be read, and an agent cannot replace its own by a
//! link.

use std::fs;

use anyhow::Result;
use planck_tests::world::Backend;
use serde_json::json;

use super::{Walled, put, tiers};

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

/// The agent works in a folder below its workspace, and replaces that folder by a link to the
/// user's files.
#[tokio::test(flavor = "multi_thread")]
async fn working_directory_that_becomes_a_link_leads_nowhere() -> Result<()> {
    for tier in tiers() {
        let world = planck_tests::world::World::start(
            Backend::Sqlite,
            planck_scripted_model::Script::new(),
        )
        .await?;
        let (top, dir) = (world.folder().join("top"), world.dir());
        put(world.folder().join("keys/id"), "key")?;
        fs::create_dir_all(&top)?;
        fs::rename(&dir, top.join("work"))?;
        std::os::unix::fs::symlink("top/work", &dir)?;
        let roots = top.display().to_string();
        let workspaces = format!("[workspaces]\ntop = {roots:?}\n");
        put(world.folder().join(".planck/config.toml"), &workspaces)?;
        let walled = Walled::start_in(world, &tier, &[]).await?;
        let keys = walled.outside("keys");
        let swap = format!(
            "mv {0} {0}.old && ln -s {1} {0}",
            top.join("work").display(),
            keys.display()
        );
        let recorder = walled.world.record().await?;
        let calls = [
            planck_scripted_model::Reply::call("bash", json!({ "command": swap })),
            planck_scripted_model::Reply::call("read", json!({ "path": "id" })),
            planck_scripted_model::Reply::call("bash", json!({ "command": "cat id" })),
            planck_scripted_model::Reply::call(
                "write",
                json!({ "path": "new", "content": "evil" }),
            ),
            planck_scripted_model::Reply::text("done"),
        ];
        let script = planck_scripted_model::Script::new()
            .without_auth()
            .rounds(crate::teams::scene::by("agent"), calls);
        walled.world.model.set_script(script);
        let agent = crate::teams::scene::member("agent", &["bash", "read", "write"]);
        let start = json!({ "dir": top.join("work"), "members": [agent], "prompt": "go" });
        let started = walled.world.caller.start(&start).await?;
        recorder
            .answered(started.prompt_id.as_ref().unwrap())
            .await?;
        let log = walled.world.caller.log(&started.session_id, 1).await?;
        let log = serde_json::to_string(&log)?;
        assert!(
            fs::read_link(top.join("work")).is_ok(),
            "{tier:?}: the link was made"
        );
        assert!(
            log.contains("a link in it leads out of there"),
            "{tier:?}: {log}"
        );
        assert!(
            !log.contains("\"key\"") && !keys.join("new").exists(),
            "{tier:?}: {log}"
        );
        walled.end(&[]).await?;
    }
    Ok(())
}
