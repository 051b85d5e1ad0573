//! Configuration: defaults, three files, the environment, flags and the embedding program. Each
//! source overrides the ones before it. Every value is stored with its origin, and all mistakes are
//! reported at once.

mod environment;
mod mcp_json;
mod rules;
mod section;
mod setting;
mod values;

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use planck_toolbox::project::Admitted;
use section::ProjectPart;
use setting::Field;
use values::{
    ConfigProblem, GivenValues, KeyDescription, KeyPath, Raw, ValueContext, Values, nearest,
};

pub use environment::{is_secret_name, may_be_secret};
pub use mcp_json::described as described_servers;
pub use planck_providers::secret::Secret;
pub use section::{
    AnswerLimits, Cluster, Config, InboxLimits, McpServer, ModelEntry, PlainTool, Prices, Provider,
    Telemetry,
};
pub use setting::{
    Choice, ConfiguredUrl, HeaderText, KeyChoice, KeyEntry, LogFormat, NamedSettings, Network,
    Period, ProjectPlace, Sandbox, ServerSandbox, ServerScope, ServerVariable, Size, StoreKind,
    Synchronous, Unsandboxed,
};
pub use values::{Problems, ValueOrigin, WrittenKeys, written};

/// The sources of values. Loading a configuration reads nothing else, except for the files that
/// values name.
#[derive(Clone, Default)]
pub struct Sources {
    pub home: Option<PathBuf>,
    /// The folder in which planck was started.
    pub folder: PathBuf,
    /// The project in that folder, if the user trusts it.
    pub project: Option<Admitted>,
    /// The file that `--config FILE` names.
    pub file: Option<PathBuf>,
    pub environment: BTreeMap<String, String>,
    /// The values of flags: the key, the value, and the flag.
    pub flags: Vec<(String, String, String)>,
    /// Keys and values from a program that embeds the runtime. A later entry for the same key takes
    /// precedence.
    pub settings: Vec<(String, String)>,
}

impl Sources {
    /// Returns the sources of values for this process, without a project.
    pub fn of_process(
        file: Option<PathBuf>,
        flags: Vec<(String, String, String)>,
    ) -> io::Result<Self> {
        let utf8 = |(name, text): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, text.into_string().ok()?))
        };
        let environment: BTreeMap<_, _> = planck_host::environment::variables()
            .filter_map(utf8)
            .collect();
        let home = environment
            .get("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from);
        Ok(Self {
            home,
            folder: std::env::current_dir()?,
            project: None,
            file,
            environment,
            flags,
            settings: Vec::new(),
        })
    }

    /// Returns the path `~/.planck`, or `None` if the user has no home folder.
    pub fn user_folder(&self) -> Option<PathBuf> {
        self.home.as_ref().map(|home| home.join(".planck"))
    }

    /// Returns the default place for the sessions of `folder`, or `None` if neither a data
    /// directory nor a home folder is known.
    pub fn place(&self) -> Option<ProjectPlace> {
        ProjectPlace::of(&self.world())
    }

    fn world(&self) -> ValueContext {
        ValueContext {
            environment: self.environment.clone(),
            home: self.home.clone(),
            folder: self.folder.clone(),
        }
    }

    fn user_file(&self) -> Option<PathBuf> {
        Some(self.user_folder()?.join("config.toml"))
    }
}

/// A loaded configuration, with the origin of each value.
pub struct Loaded {
    pub config: Config,
    /// The configuration files that were read, in the order of precedence, lowest first.
    pub files: Vec<PathBuf>,
    /// The servers of the project's `.mcp.json` that cannot be used, each as a line for the user.
    pub left_out: Vec<String>,
    values: Values,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("config", &self.config)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// Returns the current value of every key, in the order of the sections. Of the keys with a name
    /// that the user chooses, only the configured ones are returned. A secret that is set is
    /// returned as `(set)`.
    pub fn shown(&self) -> Vec<ShownValue> {
        let mut shown = Vec::new();
        self.config.show(&KeyPath::default(), &mut shown);
        shown
            .into_iter()
            .map(|(key, value)| ShownValue {
                origin: self.values.origin(&key),
                key,
                value,
            })
            .collect()
    }
}

/// The current value of a key.
#[derive(Debug, Clone)]
pub struct ShownValue {
    pub key: KeyPath,
    /// The value, or `None` if it is unset.
    pub value: Option<String>,
    pub origin: ValueOrigin,
}

/// Returns the descriptions of all keys.
pub fn keys() -> Vec<KeyDescription> {
    Config::default().keys(&KeyPath::default(), "")
}

/// Reads all sources and builds the configuration. Fails with all mistakes if there are any.
pub fn load(sources: &Sources) -> Result<Loaded, Problems> {
    let world = sources.world();
    let mut loader = Loader {
        keys: keys(),
        values: Values::new(world),
        files: Vec::new(),
        left_out: Vec::new(),
    };
    if let Some(path) = sources.user_file() {
        loader.file(&path, false);
    }
    loader.project_file(sources);
    if let Some(path) = &sources.file {
        loader.file(path, true);
    }
    loader.environment(sources);
    for (key, text, flag) in &sources.flags {
        loader.text(key, text, ValueOrigin::Flag(flag.clone()));
    }
    for (key, text) in &sources.settings {
        loader.text(key, text, ValueOrigin::Program);
    }
    loader.project_servers(sources);
    loader.finish(sources)
}

struct Loader {
    keys: Vec<KeyDescription>,
    values: Values,
    files: Vec<PathBuf>,
    left_out: Vec<String>,
}

impl Loader {
    /// Adds the values from a trusted project's configuration. Takes the text that was hashed and
    /// compared with the trusted state, because the file could have changed since. A project cannot
    /// set the sections of the user, because its values would replace those of the user.
    fn project_file(&mut self, sources: &Sources) {
        let Some((path, text)) = sources.project.as_ref().and_then(Admitted::config) else {
            return;
        };
        for (key, given) in self.parse(&path, text) {
            if USER_SECTIONS.contains(&key.section()) {
                self.values.problems.push(of_user(key, given.origin));
            } else {
                self.take(key, given);
            }
        }
    }

    /// Adds the MCP servers that a trusted project has for other programs. An entry with the same name
    /// from any other source replaces the whole server: its user decides what is run, and where.
    fn project_servers(&mut self, sources: &Sources) {
        let Some((path, text)) = sources.project.as_ref().and_then(Admitted::servers) else {
            return;
        };
        let taken = self.values.children(&KeyPath::of("mcp"));
        let world = sources.world();
        let read = mcp_json::values(&path, text, &world, |name| taken.contains(name));
        for (key, given) in read.values.into_values().flatten() {
            self.take(key, given);
        }
        self.left_out = read.left_out;
        self.files.push(path);
    }

    fn file(&mut self, path: &Path, must_exist: bool) {
        match fs::read_to_string(path) {
            Ok(text) => {
                for (key, given) in self.parse(path, &text) {
                    self.take(key, given);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && !must_exist => {}
            Err(error) => self.values.problems.push(unreadable(path, &error)),
        }
    }

    fn parse(&mut self, path: &Path, text: &str) -> Vec<(KeyPath, GivenValues)> {
        let (values, problems) = values::parse_document(path.into(), text);
        self.values.problems.extend(problems);
        self.files.push(path.into());
        values
    }

    fn environment(&mut self, sources: &Sources) {
        let (values, problems) = environment::read(&sources.environment, &self.keys);
        self.values.problems.extend(problems);
        values
            .into_iter()
            .for_each(|(key, given)| self.take(key, given));
    }

    fn text(&mut self, key: &str, text: &str, origin: ValueOrigin) {
        let raw = Raw::Text(text.into());
        self.take(KeyPath::of(key), GivenValues { raw, origin });
    }

    fn take(&mut self, path: KeyPath, given: GivenValues) {
        if self.keys.iter().any(|key| key.pattern.matches(&path)) {
            return self.values.put(path, given);
        }
        let below = self.keys.iter().any(|key| key.pattern.is_below(&path));
        match &given.raw {
            Raw::Toml(toml::Value::Table(table)) if below && table.is_empty() => {}
            Raw::Toml(_) | Raw::Text(_) => {
                self.values
                    .problems
                    .push(unknown(&self.keys, path, given.origin, below))
            }
        }
    }

    fn finish(mut self, sources: &Sources) -> Result<Loaded, Problems> {
        let mut config = Config::default().read(&KeyPath::default(), &mut self.values);
        config.project = ProjectPart(sources.project.clone());
        rules::check(&config, &mut self.values);
        match self.values.problems.is_empty() {
            true => Ok(Loaded {
                config,
                files: self.files,
                left_out: self.left_out,
                values: self.values,
            }),
            false => Err(Problems(self.values.problems)),
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigProblem {
    ConfigProblem {
        origin: ValueOrigin::File {
            path: path.to_path_buf().into(),
            line: 0,
        },
        key: None,
        what: format!("cannot read it: {error}"),
        remedy: "name a file that you can read".into(),
    }
}

/// The sections that only the user's own files, the environment and flags set: what agents may do,
/// and who may reach them.
const USER_SECTIONS: &[&str] = &["permissions", "http"];

fn of_user(key: KeyPath, origin: ValueOrigin) -> ConfigProblem {
    ConfigProblem {
        origin,
        key: Some(key),
        what: "a project cannot set permissions or the HTTP front".into(),
        remedy: "set them in ~/.planck/config.toml; members of a TEAM.json have permissions too"
            .into(),
    }
}

fn unknown(
    keys: &[KeyDescription],
    path: KeyPath,
    origin: ValueOrigin,
    below: bool,
) -> ConfigProblem {
    let (what, remedy) = match (below, nearest(keys, &path)) {
        (true, _) => (
            "this is a section, not a value",
            format!("write `[{path}]` and its keys below it"),
        ),
        (false, Some(known)) => ("unknown key", format!("did you mean `{known}`?")),
        (false, None) => (
            "unknown key",
            "take it out; `planck config show` lists every key".into(),
        ),
    };
    ConfigProblem {
        origin,
        key: Some(path),
        what: what.into(),
        remedy,
    }
}

#[cfg(test)]
mod tests;
