//! Secrets, which files contain only as references, addresses, whose passwords are not shown, and the
//! default place for the sessions of the folder in which planck was started.

use std::{
    ffi::OsStr,
    fmt, fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{InvalidValue, Setting, text};
use crate::config::{
    Secret,
    values::{Raw, ValueContext},
};

impl Setting for Secret {
    fn kind() -> String {
        "`env:NAME` or `file:PATH`".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let written = text(raw).unwrap_or_default();
        match (written.split_once(':'), raw) {
            (Some(("env", name)), _) => from_environment(name, world),
            (Some(("file", path)), _) => Ok(Self::new(held(path, world)?.1)),
            (_, Raw::Text(text)) if !text.is_empty() => Ok(Self::new(text.trim())),
            (_, Raw::Text(_) | Raw::Toml(_)) => Err(InvalidValue {
                what: "a secret does not stand in a file".into(),
                remedy: format!(
                    "write {}, and take the secret out of the file",
                    Self::kind()
                ),
            }),
        }
    }

    fn show(&self) -> Option<String> {
        Some("(set)".into())
    }
}

fn from_environment(name: &str, world: &ValueContext) -> Result<Secret, InvalidValue> {
    world
        .environment
        .get(name)
        .map(|text| Secret::new(text.trim()))
        .ok_or_else(|| InvalidValue {
            what: format!("the variable {name} is not set"),
            remedy: format!("set {name}, or take the key out"),
        })
}

/// Returns the path that a `file:` reference names, and the contents of that file without
/// surrounding white space. Fails if they are empty.
pub(super) fn held(path: &str, world: &ValueContext) -> Result<(PathBuf, String), InvalidValue> {
    let path = PathBuf::parse(&Raw::Text(path.into()), world)?;
    let remedy = || "put the value there, readable to you alone, or take the key out".into();
    let text = fs::read_to_string(&path).map_err(|error| InvalidValue {
        what: format!("cannot read {}: {error}", path.display()),
        remedy: remedy(),
    })?;
    match text.trim() {
        "" => Err(InvalidValue {
            what: format!("{} is empty", path.display()),
            remedy: remedy(),
        }),
        text => Ok((path, text.into())),
    }
}

/// A URL that may contain a user name and a password. `Display` and `Debug` leave both out.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredUrl(String, AddressOrigin);

/// Whether an address is the default, which depends on the folder in which planck was started.
#[derive(Clone, PartialEq, Eq)]
enum AddressOrigin {
    /// The address was configured, or its default does not depend on the folder.
    Named,
    /// The address is that of the project's own session store. The place is `None` before the
    /// configuration is read, and stays `None` if neither a data directory nor a home folder is
    /// known.
    Project(Option<ProjectPlace>),
}

impl ConfiguredUrl {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into(), AddressOrigin::Named)
    }

    /// Returns the default address: the session store of the folder in which planck was started.
    pub fn of_project() -> Self {
        Self(format!("sqlite:{PATTERN}"), AddressOrigin::Project(None))
    }

    /// Returns whether the address is the session store of the project.
    pub fn is_of_project(&self) -> bool {
        self.1 != AddressOrigin::Named
    }

    pub fn project(&self) -> Option<&ProjectPlace> {
        match &self.1 {
            AddressOrigin::Project(place) => place.as_ref(),
            AddressOrigin::Named => None,
        }
    }

    /// Returns the whole address, including the password. Only the client that connects to the
    /// address needs the password.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the scheme of the address: the text before its first colon.
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

/// Writes the addresses, which are separated by commas. Replaces the text between `//` and the last
/// `@` of each, and its query.
impl fmt::Display for ConfiguredUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, query) = match self.0.split_once('?') {
            Some((address, _)) => (address, "?…"),
            None => (self.0.as_str(), ""),
        };
        let shown: Vec<String> = servers(address)
            .iter()
            .map(|server| without_password(server))
            .collect();
        write!(f, "{}{query}", shown.join(","))
    }
}

/// Splits a list of servers. A comma may also belong to a password. A part that has an `@` but no
/// scheme is therefore joined to the parts before it, from the latest one with a scheme on, but
/// only to those after the latest complete server.
fn servers(address: &str) -> Vec<String> {
    let mut servers: Vec<String> = Vec::new();
    for part in address.split(',') {
        let latest = |mark| servers.iter().rposition(|server| server.contains(mark));
        let first = match part.contains('@') && !part.contains("//") {
            true => {
                let after_complete = latest("@").map_or(0, |at| at + 1);
                after_complete.max(latest("//").unwrap_or(0))
            }
            false => servers.len(),
        };
        let mut joined = servers.split_off(first);
        joined.push(part.to_owned());
        servers.push(joined.join(","));
    }
    servers
}

fn without_password(server: &str) -> String {
    let Some((user, host)) = server.rsplit_once('@') else {
        return server.to_owned();
    };
    match user.split_once("//") {
        Some((scheme, _)) => format!("{scheme}//***@{host}"),
        None => format!("***@{host}"),
    }
}

impl fmt::Debug for ConfiguredUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Setting for ConfiguredUrl {
    fn kind() -> String {
        "an address like scheme://host:port, or `file:PATH`".into()
    }

    /// Parses an address. An address may contain a password, so the value may be `file:PATH`, which
    /// names a file with the address.
    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let written = text(raw).unwrap_or_default();
        let (place, address) = match written.strip_prefix("file:") {
            Some(path) => held(path, world)
                .map(|(path, text)| (format!("what {} holds", path.display()), text))?,
            None => ("this".into(), written.into()),
        };
        if address.trim().is_empty() || address.chars().any(char::is_whitespace) {
            return Err(InvalidValue {
                what: format!("{place} is not an address"),
                remedy: format!("write {}", Self::kind()),
            });
        }
        Ok(Self::new(address).at_home(world))
    }

    /// Expands `~` in the path of a folder of session files. The default address becomes the
    /// project's place.
    fn at_home(self, world: &ValueContext) -> Self {
        if let AddressOrigin::Project(None) = self.1 {
            let place = ProjectPlace::of(world);
            let text = place.as_ref().map_or(self.0, |place| {
                format!("sqlite:{}", place.folder().display())
            });
            return Self(text, AddressOrigin::Project(place));
        }
        let folder = self
            .0
            .strip_prefix("sqlite:")
            .map(|rest| rest.strip_prefix("//").unwrap_or(rest));
        match folder.filter(|folder| folder.starts_with('~')) {
            Some(folder) => Self::new(format!(
                "sqlite:{}",
                PathBuf::from(folder).at_home(world).display()
            )),
            None => self,
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// The default place as it is shown to users. It is in the user's data directory, because other people
/// may have created the contents of a project's folder.
const PATTERN: &str = "$XDG_DATA_HOME/planck/projects/<folder>-<hash>/sessions";

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
/// as the XDG ServiceHandles Directory Specification requires. Returns `None` if the home folder is unknown
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

    #[test]
    fn an_address_hides_its_password() {
        for (address, shown) in [
            (
                "postgres://me:pw@db:5432/x?password=pw",
                "postgres://***@db:5432/x?…",
            ),
            (
                "nats://a:b@one:4222,nats://two:4222",
                "nats://***@one:4222,nats://two:4222",
            ),
            ("postgres://me:p@w@db/x", "postgres://***@db/x"),
            ("postgres://me:a,b@db/x", "postgres://***@db/x"),
            (
                "postgres://me:a,b,c@db/x?password=a,b",
                "postgres://***@db/x?…",
            ),
            ("me:pw@nats:4222", "***@nats:4222"),
            (
                "nats://a:x,y@one:4222,nats://b:z@two:4222,three:4222",
                "nats://***@one:4222,nats://***@two:4222,three:4222",
            ),
            ("sqlite:.planck/sessions", "sqlite:.planck/sessions"),
        ] {
            assert_eq!(ConfiguredUrl::new(address).to_string(), shown);
            assert_eq!(format!("{:?}", ConfiguredUrl::new(address)), shown);
        }
    }

    #[test]
    fn an_address_is_read_from_a_file_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("url").display().to_string();
        let named = |path: &str| {
            ConfiguredUrl::parse(&Raw::Text(format!("file:{path}")), &ValueContext::default())
                .map_err(|wrong| wrong.what)
        };
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            named(&path)
        };
        assert_eq!(
            read("nats://node:pw@nats:4222\n").unwrap().reveal(),
            "nats://node:pw@nats:4222"
        );
        assert_eq!(read(" \n").unwrap_err(), format!("{path} is empty"));
        let wrong = read("my secret").unwrap_err();
        assert_eq!(wrong, format!("what {path} holds is not an address"));
        let missing = named("/nowhere/url").unwrap_err();
        assert!(
            missing.starts_with("cannot read /nowhere/url: "),
            "{missing}"
        );
    }

    #[test]
    fn a_folder_below_the_home_is_expanded() {
        let world = ValueContext {
            home: Some("/home/me".into()),
            ..ValueContext::default()
        };
        for (written, read) in [
            ("sqlite:~/sessions", "sqlite:/home/me/sessions"),
            ("sqlite://~/sessions", "sqlite:/home/me/sessions"),
            ("sqlite:~me/sessions", "sqlite:~me/sessions"),
            ("sqlite:///var/lib/planck", "sqlite:///var/lib/planck"),
            ("postgres://~/x", "postgres://~/x"),
        ] {
            assert_eq!(
                ConfiguredUrl::parse(&Raw::Text(written.into()), &world)
                    .unwrap()
                    .reveal(),
                read
            );
        }
    }

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
