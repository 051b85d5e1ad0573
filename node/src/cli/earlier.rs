//! Sessions that an earlier version kept in the project's folder. They are said to be there and
//! taken over on request only, because a repository can bring such files along.

use std::path::{Path, PathBuf};

use super::output::warn;
use crate::{config::Config, store::sqlite::stray_sessions};

/// Where earlier versions kept them.
pub const FOLDER: &str = ".planck/sessions";

/// Says, in one line, that there are such sessions and what to do about them.
pub fn say_what_is_there(config: &Config) {
    if let Some(what) = what_is_there(config) {
        warn(&format!(
            "planck: {what}; `planck session adopt` takes them over, closed"
        ));
    }
}

/// What there is of such sessions, where nobody named a store.
pub fn what_is_there(config: &Config) -> Option<String> {
    config.store.project()?;
    match count(Path::new(FOLDER)) {
        0 => None,
        1 => Some(format!(
            "{FOLDER} holds a session of an earlier version, or of whoever wrote this folder"
        )),
        count => Some(format!(
            "{FOLDER} holds {count} sessions of an earlier version, or of whoever wrote this folder"
        )),
    }
}

/// How many session files are in a folder that no link leads to.
fn count(folder: &Path) -> usize {
    let is_link = |path: PathBuf| {
        path.symlink_metadata()
            .is_ok_and(|there| there.is_symlink())
    };
    match is_link(".planck".into()) {
        true => 0,
        false => stray_sessions(folder).map(|found| found.len()).unwrap_or(0),
    }
}
