//! Has systemd check the unit that runs a node.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use planck_tests::node::planck;
use tempfile::TempDir;

#[test]
fn systemd_accepts_the_unit() -> Result<()> {
    let unit =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/planck.service"))?;
    let binary = planck()?;
    let own = unit.replace("/usr/local/bin/planck", binary.to_str().context("a path")?);
    assert_ne!(unit, own, "the unit starts no planck");
    let folder = TempDir::new()?;
    let file = folder.path().join("planck.service");
    fs::write(&file, own)?;
    let verified = match Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&file)
        .output()
    {
        Ok(verified) => verified,
        Err(error) => {
            eprintln!(
                "NOT TESTED: the systemd unit, because systemd-analyze cannot be run: {error}"
            );
            return Ok(());
        }
    };
    let said = String::from_utf8(verified.stderr)?;
    // systemd supports this setting from version 254 on.
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("planck") && !line.contains("'DelegateSubgroup'"))
        .collect();
    assert!(verified.status.success() && complaints.is_empty(), "{said}");
    Ok(())
}
