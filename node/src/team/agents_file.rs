//! `AGENTS.md` contains the instructions of a project for every agent that works in it.
//!
//! The author of a repository controls this file and its name, so it is not trusted. It must be a
//! regular file inside the repository, and no link is followed. A link to another file in the
//! folder is refused too, because the folder also contains files that are not part of the
//! repository's content, such as `.env` and `.git/config`.

use std::{ffi::OsStr, path::Path};

use crate::regular_file::{FileRefused, OpenFolder};

const FILE: &str = "AGENTS.md";

/// The maximum number of bytes of the file that agents receive.
const LIMIT: u64 = 64 * 1024;

/// The instructions for agents, and a warning about their file.
#[derive(Debug, Default)]
pub struct Instructions {
    pub text: Option<String>,
    /// The reason why the file, or the part of it beyond the limit, is not used.
    pub warning: Option<String>,
}

/// Loads the nearest AGENTS.md in a directory or the directories above it, up to the root of the
/// repository. Outside a repository, only the directory itself is searched.
pub fn load(dir: &Path) -> Instructions {
    let Ok(dir) = dir.canonicalize() else {
        return Instructions::default();
    };
    let root = dir
        .ancestors()
        .find(|folder| folder.join(".git").symlink_metadata().is_ok())
        .unwrap_or(&dir)
        .to_owned();
    for folder in dir
        .ancestors()
        .take_while(|folder| folder.starts_with(&root))
    {
        match read(folder) {
            Ok(Some((text, is_whole))) => {
                return Instructions::of(&folder.join(FILE), &text, is_whole);
            }
            Ok(None) => {}
            Err(why) => {
                return Instructions {
                    text: None,
                    warning: Some(left_out(&folder.join(FILE), &why)),
                };
            }
        }
    }
    Instructions::default()
}

/// Returns the instructions for agents that work in a directory. Logs a warning if AGENTS.md is not
/// used or is cut at the limit.
pub fn of(dir: &Path) -> Option<String> {
    load(dir).logged().text
}

fn read(folder: &Path) -> Result<Option<(String, bool)>, FileRefused> {
    let content = OpenFolder::open(folder)?.head(OsStr::new(FILE), LIMIT)?;
    Ok(content.map(|content| {
        (
            String::from_utf8_lossy(&content.bytes).trim().to_owned(),
            content.is_whole,
        )
    }))
}

fn left_out(path: &Path, why: &FileRefused) -> String {
    format!("agents go without {}: {why}", path.display())
}

impl Instructions {
    /// Logs the warning if there is one, and returns `self`.
    #[must_use]
    pub fn logged(self) -> Self {
        if let Some(warning) = &self.warning {
            tracing::warn!("{warning}");
        }
        self
    }

    fn of(path: &Path, text: &str, is_whole: bool) -> Self {
        let cut = || {
            format!(
                "agents are shown the first {} KiB of {}; make it shorter",
                LIMIT / 1024,
                path.display()
            )
        };
        Self {
            text: Some(text.to_owned()).filter(|text| !text.is_empty()),
            warning: (!is_whole).then(cut),
        }
    }
}
