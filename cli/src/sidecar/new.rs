//! `planck sidecar new`: writes a starter project for a sidecar.

use std::{fs, path::PathBuf};

use clap::{Args, ValueEnum};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use planck_common::SidecarId;
use serde_json::Value;

use super::own_sdk::{self, CopiedFile};
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
        copy: own_sdk::python,
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
        copy: own_sdk::rust,
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
        copy: own_sdk::typescript,
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
