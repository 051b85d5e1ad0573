//! Finds sessions that an earlier version stored in the project's folder. They are reported but
//! adopted only on request, because anyone can put such files into a repository.

use std::path::{Path, PathBuf};

use super::output::warn;
use planck_node::config::Config;
use planck_store::sqlite::stray_sessions;

/// The folder in which earlier versions stored sessions.
pub const FOLDER: &str = ".planck/sessions";

/// Prints a warning that names the folder and says how to adopt the sessions, if there are any.
pub fn say_what_is_there(config: &Config) {
    if let Some(what) = what_is_there(config) {
        warn(&format!(
            "planck: {what}; `planck session adopt` takes them over, closed"
        ));
    }
}

/// Describes the sessions in [`FOLDER`]. Returns `None` if there are none, or if the project does
/// not use its default store.
pub fn what_is_there(config: &Config) -> Option<String> {
    config.store.project()?;
    match count(Path::new(FOLDER)) {
        0 => None,
        1 => Some(format!(
            "{FOLDER} holds a session of an earlier version, or of the author of this folder"
        )),
        count => Some(format!(
            "{FOLDER} holds {count} sessions of an earlier version, or of the author of this folder"
        )),
    }
}

/// Returns the number of session files in a folder, or 0 if `.planck` is a symbolic link or the
/// folder cannot be read.
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
