//! Which sandbox a node uses, and how it reports it.

use std::{env, fs, os::unix::fs::PermissionsExt};

use anyhow::Result;
use planck_scripted_model::Script;
use planck_tests::world::{Backend, World};

use super::{NO_BUBBLEWRAP, Walled, landlock, put};

#[tokio::test(flavor = "multi_thread")]
async fn bwrap_of_a_project_is_never_run() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let (mark, program) = (world.folder().join("ran"), world.dir().join("bin/bwrap"));
    put(
        program.clone(),
        &format!("#!/bin/sh\ntouch {}\nexit 0\n", mark.display()),
    )?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let path = format!(
        "{}:bin:{}",
        world.dir().join("bin").display(),
        env::var("PATH")?
    );
    let node = world
        .node_with(&[("PATH", &path), ("PLANCK_TOOLS_SANDBOX", "required")])
        .await?;
    let doctor = world
        .planck()?
        .arg("doctor")
        .env("PATH", &path)
        .current_dir(world.dir())
        .output()
        .await?;
    let said = String::from_utf8(doctor.stdout)?;
    assert!(
        said.contains("sandbox") && !said.contains("bin/bwrap)"),
        "{said}"
    );
    assert!(!mark.exists(), "{said}");
    node.leave().await
}

/// A `bwrap` that does nothing, or that starts its command unconfined, is detected although its
/// exit status is 0.
#[tokio::test(flavor = "multi_thread")]
async fn bwrap_that_hides_nothing_is_rejected() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let program = world.folder().join("bwrap");
    let planck = planck_tests::node::planck()?;
    for lie in [
        "exit 0".to_owned(),
        format!(
            "while [ \"$1\" != -- ]; do shift; done; shift 2; exec {} \"$@\"",
            planck.display()
        ),
    ] {
        put(program.clone(), &format!("#!/bin/sh\n{lie}\n"))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let chosen = program.display().to_string();
        let doctor = world
            .planck()?
            .arg("doctor")
            .env("PLANCK_TOOLS_BUBBLEWRAP", &chosen)
            .output()
            .await?;
        let said = String::from_utf8(doctor.stdout)?;
        assert!(
            said.contains("landlock with seccomp")
                && said.contains("bubblewrap does not work here"),
            "{lie}: {said}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_which_wall_is_in_force_and_what_it_hides() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let own = world.folder().join("toolchain/bin");
    fs::create_dir_all(&own)?;
    let path = format!("{}:/usr/bin:/bin", own.display());
    let doctor = async |settings: &[(&str, &str)]| -> Result<String> {
        let mut doctor = world.planck()?;
        doctor
            .arg("doctor")
            .env("PATH", &path)
            .env("PLANCK_TOOLS_BUBBLEWRAP", NO_BUBBLEWRAP)
            .envs(settings.iter().copied());
        Ok(String::from_utf8(doctor.output().await?.stdout)?)
    };
    let said = doctor(&[]).await?;
    assert!(said.contains("landlock with seccomp: processes see the system and their workspace, and have no network"), "{said}");
    assert!(
        said.contains(&format!("tools do not see {}", own.display()))
            && said.contains("tools.readable"),
        "{said}"
    );
    let toolchain = world.folder().join("toolchain").display().to_string();
    let said = doctor(&[
        ("PLANCK_TOOLS_READABLE", &toolchain),
        ("PLANCK_TOOLS_NETWORK", "on"),
    ])
    .await?;
    assert!(
        said.contains("and have the network") && !said.contains("tools do not see"),
        "{said}"
    );
    let said = doctor(&[("PLANCK_TOOLS_SANDBOX", "off")]).await?;
    assert!(said.contains("none: `tools.sandbox` is off"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_a_wall_warns_root() -> Result<()> {
    let world = World::start(Backend::Sqlite, Script::new()).await?;
    let node = world.node_with(&[("PLANCK_TOOLS_SANDBOX", "off")]).await?;
    let warned = node
        .log()
        .contains("tool processes run as root without a sandbox");
    assert_eq!(warned, nix::unistd::geteuid().is_root());
    node.leave_despite(&["as root without a sandbox"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn readable_folder_is_read_and_not_written() -> Result<()> {
    for tier in super::tiers() {
        let world = World::start(Backend::Sqlite, Script::new()).await?;
        let folder = world.folder().join("toolchain");
        put(folder.join("data"), "data")?;
        let readable = folder.display().to_string();
        let walled =
            Walled::start_in(world, &tier, &[("PLANCK_TOOLS_READABLE", &readable)]).await?;
        let said = walled
            .bash(&format!("cat {readable}/data; echo evil > {readable}/data"))
            .await?;
        assert!(said.contains("data"), "{tier:?}: {said}");
        assert_eq!(fs::read_to_string(folder.join("data"))?, "data");
        walled.end(&[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_node_runs_tools_behind_landlock_alone() -> Result<()> {
    let walled = Walled::start(
        &landlock(),
        Backend::Sqlite,
        &[("PLANCK_TOOLS_SANDBOX", "required")],
    )
    .await?;
    assert_eq!(walled.bash("echo works").await?, "works\n");
    walled.end(&[]).await
}
