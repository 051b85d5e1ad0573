//! Secrets, which files contain only as references, and addresses, whose passwords are not shown.

use std::{fmt, fs, path::PathBuf};

use super::{InvalidValue, Setting, plain::text};
use crate::config::{
    ProjectPlace, Secret,
    project::PATTERN,
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
}
