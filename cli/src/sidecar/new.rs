//! `planck sidecar new`: writes a starter project for a sidecar. The project gets a copy of an SDK
//! that this binary carries, so that it needs no package of a registry, where the names may belong
//! to other people.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use include_dir::{Dir, File, include_dir};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use planck_common::SidecarId;
use serde_json::Value;
use toml::Table;

use crate::{
    exit::{Exit, UsageError},
    output::say,
    scaffold::{Scaffold, ScaffoldFile},
};

/// Writes a project with one tool, its tests and a README with the commands to run it.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  planck sidecar new --lang python weather\n  \
                        planck sidecar new --lang rust weather --sdk ~/planck   # with the SDK of a checkout"
)]
pub struct NewSidecar {
    /// The sidecar's name
    name: String,
    /// The language of the project; there is no SDK for Go, so that project implements the protocol
    /// itself
    #[arg(long, value_enum)]
    lang: Language,
    /// The SDK to depend on: a released version such as 1.0.0, or the folder of a checkout; by
    /// default a copy of the SDK of this binary, which is written into the project
    #[arg(long, value_name = "VERSION|DIR")]
    sdk: Option<String>,
    /// The folder to write, which must be empty or missing; by default ./NAME
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Language {
    Python,
    Rust,
    Typescript,
    Go,
}

/// The template of a project in one language.
struct ProjectTemplate {
    files: &'static [ScaffoldFile],
    sdk: Option<&'static SdkPackage>,
}

/// The package of the SDK in one language, and how a project depends on it.
struct SdkPackage {
    /// The package's folder, relative to `sidecar-sdk/`.
    below: &'static str,
    /// The file by which a folder is recognised as the package.
    manifest: &'static str,
    /// Returns the dependency on this version of the package.
    of_version: fn(&str) -> String,
    /// Returns the dependency on the package in the folder with this absolute path.
    of_folder: fn(&str) -> String,
    /// A file that must be built before a project can use the package from its folder, and the
    /// command that builds it.
    built: Option<(&'static str, &'static str)>,
    /// Returns the copy of the package that this binary carries.
    copy: fn() -> Vec<CopiedFile>,
    /// The dependency on that copy.
    of_copy: &'static str,
}

/// The dependency on the SDK, as written in a project's manifest.
#[derive(Default)]
struct Dependency {
    text: String,
    /// The command that the user must run before the dependency can be used, or `None`.
    first: Option<String>,
    /// The files of the SDK that the project gets.
    files: Vec<CopiedFile>,
}

macro_rules! files {
    ($lang:literal: $($path:literal from $template:literal),+ $(,)?) => {
        &[$(($path, include_str!(concat!("../scaffold/", $lang, "/", $template)))),+]
    };
}

const PYTHON: ProjectTemplate = ProjectTemplate {
    files: files!("python":
        "README.md" from "README.md",
        "sidecar.py" from "sidecar.py",
        "test_sidecar.py" from "test_sidecar.py",
        "requirements.txt" from "requirements.txt",
        ".gitignore" from "gitignore",
    ),
    sdk: Some(&SdkPackage {
        below: "python",
        manifest: "pyproject.toml",
        of_version: |version| format!("planck-sidecar=={version}"),
        of_folder: |folder| {
            format!(
                "planck-sidecar @ file://{}",
                utf8_percent_encode(folder, IN_URL)
            )
        },
        built: None,
        copy: python_sdk,
        of_copy: "./planck-sidecar",
    }),
};

const RUST: ProjectTemplate = ProjectTemplate {
    files: files!("rust":
        "README.md" from "README.md",
        "Cargo.toml" from "Cargo.toml",
        "src/main.rs" from "src/main.rs",
        ".gitignore" from "gitignore",
    ),
    sdk: Some(&SdkPackage {
        below: "",
        manifest: "Cargo.toml",
        of_version: quoted,
        of_folder: |folder| format!("{{ path = {} }}", quoted(folder)),
        built: None,
        copy: rust_sdk,
        of_copy: r#"{ path = "planck-sidecar/sidecar-sdk" }"#,
    }),
};

const TYPESCRIPT: ProjectTemplate = ProjectTemplate {
    files: files!("typescript":
        "README.md" from "README.md",
        "package.json" from "package.json",
        "tsconfig.json" from "tsconfig.json",
        "src/main.ts" from "src/main.ts",
        "src/sidecar.ts" from "src/sidecar.ts",
        "src/sidecar.test.ts" from "src/sidecar.test.ts",
        ".gitignore" from "gitignore",
    ),
    sdk: Some(&SdkPackage {
        below: "typescript",
        manifest: "package.json",
        of_version: quoted,
        of_folder: |folder| quoted(&format!("file:{folder}")),
        built: Some(("dist", "npm ci")),
        copy: typescript_sdk,
        of_copy: r#""file:./planck-sidecar""#,
    }),
};

const GO: ProjectTemplate = ProjectTemplate {
    files: files!("go":
        "README.md" from "README.md",
        "go.mod" from "go.mod",
        "go.sum" from "go.sum",
        "main.go" from "main.go",
        "protocol.go" from "protocol.go",
        "main_test.go" from "main_test.go",
        ".gitignore" from "gitignore",
    ),
    sdk: None,
};

/// The characters that must be escaped in the path of a URL.
const IN_URL: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`');

/// Quotes a text as a JSON string, which is also valid in TOML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

impl Language {
    const fn template(self) -> ProjectTemplate {
        match self {
            Self::Python => PYTHON,
            Self::Rust => RUST,
            Self::Typescript => TYPESCRIPT,
            Self::Go => GO,
        }
    }
}

impl NewSidecar {
    pub fn perform(self) -> anyhow::Result<Exit> {
        let name = SidecarId::parse(&self.name)
            .map_err(|error| UsageError(error.to_string()))?
            .to_string();
        let ProjectTemplate { files, sdk } = self.lang.template();
        let dependency = match (sdk, &self.sdk) {
            (Some(sdk), Some(said)) => sdk.dependency(said)?,
            (Some(sdk), None) => Dependency {
                text: sdk.of_copy.into(),
                first: None,
                files: (sdk.copy)(),
            },
            (None, None) => Dependency::default(),
            (None, Some(_)) => {
                return Err(UsageError("there is no SDK for Go; leave out --sdk".into()).into());
            }
        };
        let folder = self.dir.unwrap_or_else(|| name.clone().into());
        let replacements = vec![("SIDECAR_NAME", name), ("SDK_DEPENDENCY", dependency.text)];
        let scaffold = Scaffold {
            folder,
            files,
            replacements,
            copied: dependency.files,
        };
        scaffold.write()?;
        let readme = scaffold.text("README.md");
        let commands = readme
            .split("```sh\n")
            .nth(1)
            .and_then(|rest| rest.split("```").next())
            .unwrap_or_default();
        dependency.first.iter().try_for_each(|first| {
            say(&format!(
                "first, as the SDK there is not built yet: {first}\n"
            ))
        })?;
        say(&format!(
            "in that folder:\n\n{commands}\nREADME.md has the rest\n"
        ))?;
        Ok(Exit::Done)
    }
}

impl SdkPackage {
    /// Returns the dependency on a version of the SDK or on a local folder.
    fn dependency(&self, said: &str) -> Result<Dependency, UsageError> {
        let numbers: Vec<&str> = said.split('.').collect();
        if numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok()) {
            return Ok(Dependency {
                text: (self.of_version)(said),
                ..Dependency::default()
            });
        }
        let folder = self.folder(said).ok_or_else(|| {
            let wanted = PathBuf::from("sidecar-sdk")
                .join(self.below)
                .join(self.manifest);
            UsageError(format!(
                "--sdk {said}: it is neither a version as in 1.0.0 nor a checkout with {}",
                wanted.display()
            ))
        })?;
        let text = folder
            .to_str()
            .ok_or_else(|| UsageError(format!("--sdk {said}: its path is not UTF-8")))?;
        let missing = self.built.filter(|(made, _)| !folder.join(made).exists());
        let first = missing.map(|(_, command)| format!("cd {text} && {command}"));
        Ok(Dependency {
            text: (self.of_folder)(text),
            first,
            files: Vec::new(),
        })
    }

    /// Finds the package in the given folder: in the `sidecar-sdk/` of a checkout, in a
    /// `sidecar-sdk/` folder, or in the folder itself.
    fn folder(&self, said: &str) -> Option<PathBuf> {
        let said = fs::canonicalize(said).ok()?;
        let candidates = [
            said.join("sidecar-sdk").join(self.below),
            said.join(self.below),
            said,
        ];
        let is_package = |folder: &PathBuf| {
            fs::read_to_string(folder.join(self.manifest))
                .is_ok_and(|manifest| manifest.contains("\"planck-sidecar\""))
        };
        // Collecting the components removes a slash at the end of the path.
        candidates
            .into_iter()
            .find(is_package)
            .map(|folder| folder.components().collect())
    }
}

/// The folder of a project that gets the copy.
pub const FOLDER: &str = "planck-sidecar";

static PYTHON_SDK: Dir<'_> =
    include_dir!("$CARGO_MANIFEST_DIR/../sidecar-sdk/python/planck_sidecar");
static TYPESCRIPT_SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../sidecar-sdk/typescript/src");
static RUST_SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../sidecar-sdk/src");
static COMMON: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../common/src");

/// A file of the copy: its path in the project, and its text.
pub type CopiedFile = (String, String);

macro_rules! file {
    ($path:literal) => {
        include_str!(concat!("../../../", $path)).to_owned()
    };
}

fn python_sdk() -> Vec<CopiedFile> {
    let beside = [
        ("pyproject.toml", file!("sidecar-sdk/python/pyproject.toml")),
        ("README.md", file!("sidecar-sdk/python/README.md")),
        ("LICENSE", file!("sidecar-sdk/python/LICENSE")),
    ];
    copied("", beside.into(), "planck_sidecar", &PYTHON_SDK)
}

fn typescript_sdk() -> Vec<CopiedFile> {
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
    copied("", beside.into(), "src", &TYPESCRIPT_SDK)
}

/// Returns a workspace of the two crates.
fn rust_sdk() -> Vec<CopiedFile> {
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
        copied("sidecar-sdk/", sdk.into(), "src", &RUST_SDK),
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
        if let Some(toml::Value::Table(workspace)) = manifest.get_mut("workspace") {
            let kept = ["package", "dependencies", "resolver"];
            workspace.retain(|key, _| kept.contains(&key));
            let members = ["common", "sidecar-sdk"].map(toml::Value::from).to_vec();
            workspace.insert("members".into(), members.into());
            let is_kept =
                |value: &toml::Value| match value.get("path").and_then(toml::Value::as_str) {
                    Some(path) => ["common", "sidecar-sdk"].contains(&path),
                    None => true,
                };
            if let Some(toml::Value::Table(dependencies)) = workspace.get_mut("dependencies") {
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
            (python_sdk(), "planck-sidecar/planck_sidecar/__init__.py"),
            (typescript_sdk(), "planck-sidecar/src/index.ts"),
            (rust_sdk(), "planck-sidecar/sidecar-sdk/src/lib.rs"),
        ] {
            let names: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
            assert!(names.contains(&entry), "{names:?}");
            assert!(names.iter().all(|name| !name.contains(".pyc")), "{names:?}");
        }
    }

    #[test]
    fn manifests_of_the_copy_name_what_it_has() {
        let files = rust_sdk();
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
