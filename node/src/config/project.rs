//! The default place for the sessions of the folder in which planck was started. Sessions are
//! stored in this place if the user configures no store. The place is in the user's data directory,
//! because other people may have created the contents of a project's folder.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::values::ValueContext;

/// The default place as it is shown to users.
pub const PATTERN: &str = "$XDG_DATA_HOME/planck/projects/<folder>-<hash>/sessions";

/// The maximum number of characters of a project's name that become part of the place's name.
const LONGEST_NAME: usize = 40;

/// The place of one project's sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectPlace {
    /// The user's data directory. The place is in a subfolder that only Planck uses.
    pub data: PathBuf,
    /// The folder in which planck was started, with symbolic links resolved if that is possible.
    pub project: PathBuf,
}

impl ProjectPlace {
    /// Returns the place, or `None` if neither the data directory nor the home folder is known.
    pub fn of(world: &ValueContext) -> Option<Self> {
        let project = fs::canonicalize(&world.folder).unwrap_or_else(|_| world.folder.clone());
        Some(Self {
            data: data_directory(world)?,
            project,
        })
    }

    /// Returns the folder for session files.
    pub fn folder(&self) -> PathBuf {
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_URL, self.project.as_os_str().as_bytes())
            .simple()
            .to_string();
        let name = readable(self.project.file_name());
        let hash = hash.get(..16).unwrap_or(&hash);
        self.data
            .join("planck/projects")
            .join(format!("{name}-{hash}"))
            .join("sessions")
    }

    /// Returns the path of the file that stores the prompts which the user typed in chats of this
    /// project.
    pub fn history(&self) -> PathBuf {
        self.folder().with_file_name("history")
    }
}

/// Returns `$XDG_DATA_HOME`, or else `~/.local/share`. An empty or relative value counts as unset,
/// as the XDG Base Directory Specification requires. Returns `None` if the home folder is unknown
/// or relative too.
fn data_directory(world: &ValueContext) -> Option<PathBuf> {
    let named = world
        .environment
        .get("XDG_DATA_HOME")
        .map(Path::new)
        .filter(|path| path.is_absolute());
    let of_home = || {
        world
            .home
            .as_ref()
            .filter(|home| home.is_absolute())
            .map(|home| home.join(".local/share"))
    };
    named.map(Path::to_path_buf).or_else(of_home)
}

/// Returns a readable name of a folder, or `root` if it has none: at most [`LONGEST_NAME`]
/// characters, with `_` instead of a leading dot and of all characters except ASCII letters, digits
/// and `-_.`.
fn readable(name: Option<&OsStr>) -> String {
    let name = name.map(OsStr::to_string_lossy).unwrap_or("root".into());
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let name: String = name
        .chars()
        .take(LONGEST_NAME)
        .map(|letter| if plain(letter) { letter } else { '_' })
        .collect();
    name.replacen('.', "_", usize::from(name.starts_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(home: Option<&str>, xdg: Option<&str>, folder: &str) -> ValueContext {
        let environment = xdg.map(|xdg| ("XDG_DATA_HOME".to_owned(), xdg.to_owned()));
        ValueContext {
            environment: environment.into_iter().collect(),
            home: home.map(PathBuf::from),
            folder: folder.into(),
        }
    }

    #[test]
    fn the_data_directory_follows_the_xdg_specification() {
        for (home, xdg, data) in [
            (Some("/home/me"), None, Some("/home/me/.local/share")),
            (Some("/home/me"), Some(""), Some("/home/me/.local/share")),
            (
                Some("/home/me"),
                Some("share"),
                Some("/home/me/.local/share"),
            ),
            (Some("/home/me"), Some("/data"), Some("/data")),
            (None, Some("/data"), Some("/data")),
            (None, Some("data"), None),
            (None, None, None),
            (Some("home"), None, None),
        ] {
            let place = ProjectPlace::of(&world(home, xdg, "/src/repo"));
            assert_eq!(
                place.map(|place| place.data),
                data.map(PathBuf::from),
                "{home:?} {xdg:?}"
            );
        }
    }

    #[test]
    fn each_folder_has_a_place_of_its_own() {
        let place = |folder: &str| {
            ProjectPlace::of(&world(Some("/h"), None, folder))
                .unwrap()
                .folder()
                .display()
                .to_string()
        };
        let one = place("/nowhere/one/repo");
        assert!(
            one.starts_with("/h/.local/share/planck/projects/repo-") && one.ends_with("/sessions"),
            "{one}"
        );
        assert_eq!(one, place("/nowhere/one/repo"));
        assert_ne!(one, place("/nowhere/two/repo"));
        assert!(place("/nowhere/.hidden folder;x").contains("/_hidden_folder_x-"));
        assert!(place("/").contains("/root-"));
    }
}
