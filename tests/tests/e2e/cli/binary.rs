//! Properties of the binary that do not depend on how it was built.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use planck_scripted_model::Script;
use planck_tests::machine::{PersonalMachine, run};

fn of_repository(path: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn version_is_printed() -> Result<()> {
    let machine = PersonalMachine::start(Script::new()).await?;
    let ran = run(machine.planck(&["--version"])?).await?;
    assert!(
        ran.out
            .starts_with(concat!("planck ", env!("CARGO_PKG_VERSION"))),
        "{}",
        ran.out
    );
    Ok(())
}

/// SQLite's flags are passed to its compiler, so every build of Planck must see the file that holds
/// them.
#[test]
fn an_image_is_built_with_the_flags_of_the_checkout() -> Result<()> {
    assert!(of_repository(".cargo/config.toml")?.contains("LIBSQLITE3_FLAGS"));
    let ignored = of_repository(".dockerignore")?;
    assert!(ignored.lines().any(|line| line == "!.cargo"), "{ignored}");
    let last = ignored.lines().rfind(|line| line.contains(".cargo"));
    assert_eq!(last, Some("!.cargo"));
    Ok(())
}
