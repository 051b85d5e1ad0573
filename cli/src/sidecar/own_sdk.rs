//! The SDKs that this binary carries. A new project gets a copy, so that it needs no package of a
//! registry, where the names may belong to other people.

use std::path::Path;

use include_dir::{Dir, File, include_dir};
use toml::{Table, Value};

/// The folder of a project that gets the copy.
pub const FOLDER: &str = "planck-sidecar";

static PYTHON: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../sidecar-sdk/python/planck_sidecar");
static TYPESCRIPT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../sidecar-sdk/typescript/src");
static RUST: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../sidecar-sdk/src");
static COMMON: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../common/src");

/// A file of the copy: its path in the project, and its text.
pub type CopiedFile = (String, String);

macro_rules! file {
    ($path:literal) => {
        include_str!(concat!("../../../", $path)).to_owned()
    };
}

pub fn python() -> Vec<CopiedFile> {
    let beside = [
        ("pyproject.toml", file!("sidecar-sdk/python/pyproject.toml")),
        ("README.md", file!("sidecar-sdk/python/README.md")),
        ("LICENSE", file!("sidecar-sdk/python/LICENSE")),
    ];
    copied("", beside.into(), "planck_sidecar", &PYTHON)
}

pub fn typescript() -> Vec<CopiedFile> {
    let beside = [
        ("package.json", file!("sidecar-sdk/typescript/package.json")),
        (
            "package-lock.json",
            file!("sidecar-sdk/typescript/package-lock.json"),
        ),
        (
            "tsconfig.json",
            file!("sidecar-sdk/typescript/tsconfig.json"),
        ),
        ("README.md", file!("sidecar-sdk/typescript/README.md")),
        ("LICENSE", file!("sidecar-sdk/typescript/LICENSE")),
    ];
    copied("", beside.into(), "src", &TYPESCRIPT)
}

/// Returns a workspace of the two crates.
pub fn rust() -> Vec<CopiedFile> {
    let workspace = [
        ("Cargo.toml", workspace(&file!("Cargo.toml"))),
        ("LICENSE", file!("LICENSE")),
    ];
    let sdk = [
        ("Cargo.toml", of_crate(&file!("sidecar-sdk/Cargo.toml"))),
        ("README.md", file!("sidecar-sdk/README.md")),
    ];
    let common = [
        ("Cargo.toml", of_crate(&file!("common/Cargo.toml"))),
        ("README.md", file!("common/README.md")),
    ];
    [
        placed("", workspace.into()),
        copied("sidecar-sdk/", sdk.into(), "src", &RUST),
        copied("common/", common.into(), "src", &COMMON),
    ]
    .concat()
}

/// Returns files, and those of a folder beside them.
fn copied(
    below: &str,
    beside: Vec<(&str, String)>,
    folder: &str,
    sources: &Dir<'_>,
) -> Vec<CopiedFile> {
    let mut files = placed(below, beside);
    add(&mut files, &format!("{FOLDER}/{below}{folder}"), sources);
    files
}

fn placed(below: &str, files: Vec<(&str, String)>) -> Vec<CopiedFile> {
    let placed = files
        .into_iter()
        .map(|(name, text)| (format!("{FOLDER}/{below}{name}"), text));
    placed.collect()
}

/// Adds the sources of a folder. What was built there, such as Python's bytecode, is no text.
fn add(files: &mut Vec<CopiedFile>, place: &str, sources: &Dir<'_>) {
    let text = |file: &File<'_>| {
        let path: &Path = file.path();
        Some((
            format!("{place}/{}", path.display()),
            file.contents_utf8()?.to_owned(),
        ))
    };
    files.extend(sources.files().filter_map(text));
    for folder in sources.dirs() {
        add(files, place, folder);
    }
}

/// Returns the workspace's manifest for the two crates alone.
fn workspace(text: &str) -> String {
    edited(text, |manifest| {
        manifest.retain(|key, _| key == "workspace");
        if let Some(Value::Table(workspace)) = manifest.get_mut("workspace") {
            let kept = ["package", "dependencies", "resolver"];
            workspace.retain(|key, _| kept.contains(&key));
            let members = ["common", "sidecar-sdk"].map(Value::from).to_vec();
            workspace.insert("members".into(), members.into());
            let is_kept = |value: &Value| match value.get("path").and_then(Value::as_str) {
                Some(path) => ["common", "sidecar-sdk"].contains(&path),
                None => true,
            };
            if let Some(Value::Table(dependencies)) = workspace.get_mut("dependencies") {
                dependencies.retain(|_, value| is_kept(value));
            }
        }
    })
}

/// Returns a crate's manifest without its tests and examples, and without the lints of this
/// workspace, which a later compiler may violate.
fn of_crate(text: &str) -> String {
    edited(text, |manifest| {
        let left_out = ["dev-dependencies", "example", "lints"];
        manifest.retain(|key, _| !left_out.contains(&key));
    })
}

fn edited(text: &str, edit: impl FnOnce(&mut Table)) -> String {
    let mut manifest: Table = toml::from_str(text).unwrap_or_default();
    edit(&mut manifest);
    manifest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_whole_and_have_no_built_files() {
        for (files, entry) in [
            (python(), "planck-sidecar/planck_sidecar/__init__.py"),
            (typescript(), "planck-sidecar/src/index.ts"),
            (rust(), "planck-sidecar/sidecar-sdk/src/lib.rs"),
        ] {
            let names: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
            assert!(names.contains(&entry), "{names:?}");
            assert!(names.iter().all(|name| !name.contains(".pyc")), "{names:?}");
        }
    }

    #[test]
    fn manifests_of_the_copy_name_what_it_has() {
        let files = rust();
        let text = |path: &str| {
            let found = files
                .iter()
                .find(|(name, _)| *name == format!("{FOLDER}/{path}"));
            toml::from_str::<Table>(&found.unwrap().1).unwrap()
        };
        let workspace = text("Cargo.toml");
        assert_eq!(
            workspace["workspace"]["members"].as_array().unwrap().len(),
            2
        );
        let sdk = text("sidecar-sdk/Cargo.toml");
        assert!(sdk.get("dev-dependencies").is_none() && sdk.get("example").is_none());
        assert_eq!(sdk["package"]["name"].as_str(), Some("planck-sidecar"));
    }
}
