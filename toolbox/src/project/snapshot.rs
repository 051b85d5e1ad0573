//! The contents of a project's `.planck/` at one time.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{CONFIG, OfferedSkill};
use planck_host::regular_file::FileContent;

/// The identity of a file or folder. The identity of a file consists of whether the file is
/// executable and the SHA-256 of its content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Print(String);

impl Print {
    pub(super) fn of(content: &FileContent) -> Self {
        let kind = if content.is_executable {
            "program"
        } else {
            "file"
        };
        let digest = Sha256::digest(&content.bytes);
        Self(digest.iter().fold(format!("{kind} "), |text, byte| {
            text + &format!("{byte:02x}")
        }))
    }

    pub(super) fn of_folder() -> Self {
        Self("folder".into())
    }

    pub fn is_folder(&self) -> bool {
        self.0 == "folder"
    }
}

impl fmt::Debug for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The contents of `.planck/` from one reading. The contents that a user sees and those that are
/// recorded as trusted come from the same reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The identities of all entries that are trusted by their content, by their path below
    /// `.planck/`.
    pub prints: BTreeMap<String, Print>,
    /// The text of `config.toml`.
    pub config: Option<String>,
    /// The texts of every TOOL.json and TEAM.json, which are shown to the user.
    pub texts: BTreeMap<String, String>,
    /// The names of the entries below `skills/` that are not regular files.
    pub skills: Vec<String>,
    /// The names of the prompt files below `teams/`.
    pub prompts: Vec<String>,
    /// The skills for other programs, by the path of their file below the project's folder.
    pub offered: BTreeMap<String, OfferedSkill>,
    /// What cannot be used of the skills for other programs, with the reasons.
    pub left_out: Vec<String>,
}

impl Snapshot {
    /// Returns whether `.planck/` contains nothing that could have an effect.
    pub fn is_empty(&self) -> bool {
        self.skills.is_empty() && self.prompts.is_empty() && self.files().next().is_none()
    }

    /// Returns whether the folder contains a `config.toml` with this text and nothing else that has
    /// an effect.
    pub fn is_only(&self, config: &str) -> bool {
        self.config.as_deref() == Some(config)
            && self.files().eq([CONFIG])
            && self.skills.is_empty()
            && self.prompts.is_empty()
    }

    /// Returns this snapshot without the skills for other programs.
    pub fn without_offered(self) -> Self {
        Self {
            offered: BTreeMap::new(),
            ..self
        }
    }

    /// Returns the names of the files that are trusted by their content.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.prints
            .iter()
            .filter(|(_, print)| !print.is_folder())
            .map(|(name, _)| name.as_str())
    }

    /// Returns a short summary of the contents, such as `config.toml, 2 tools, 1 skill`.
    pub fn summary(&self) -> String {
        let count = |file: &str| {
            self.texts
                .keys()
                .filter(|name| name.ends_with(&format!("/{file}")))
                .count()
        };
        let counted = |number: usize, what: &str| match number {
            0 => None,
            1 => Some(format!("1 {what}")),
            number => Some(format!("{number} {what}s")),
        };
        let config = self.config.as_ref().map(|_| CONFIG.to_owned());
        let known = [
            config,
            counted(count("TOOL.json"), "tool"),
            counted(count("TEAM.json"), "team"),
            counted(self.skills.len(), "skill"),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        match known.is_empty() {
            true => counted(self.files().count() + self.prompts.len(), "file").unwrap_or_default(),
            false => known.join(", "),
        }
    }
}
