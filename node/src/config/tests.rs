mod permissions;

use std::{fmt::Write as _, fs, path::Path};

use super::{keys, load, *};
use planck_toolbox::project::{Admitted, Ledger, Project, ProjectSource, SourcePart};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for folder in ["home/.planck", "project/.planck"] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn with(self, file: &str, text: &str) -> Self {
        fs::write(self.path(file), text).unwrap();
        self
    }

    fn sources(&self, environment: &[(&str, &str)]) -> Sources {
        Sources {
            settings: Vec::new(),
            home: Some(self.path("home")),
            folder: self.path("project"),
            project: None,
            file: None,
            environment: environment
                .iter()
                .map(|(name, text)| ((*name).into(), (*text).into()))
                .collect(),
            flags: Vec::new(),
        }
    }

    /// Records the current contents of the project as trusted.
    fn trusted(&self) -> Admitted {
        let user_folder = self.path("home/.planck");
        let project = Project::find(&self.path("project"), Some(&user_folder))
            .unwrap()
            .unwrap();
        project
            .trust(&Ledger::at(&user_folder), project.read().unwrap())
            .unwrap()
    }

    fn load(&self, environment: &[(&str, &str)]) -> Result<Loaded, Problems> {
        load(&self.sources(environment))
    }

    /// Returns the mistakes as text, without the path of the test's folder.
    fn problems(&self, environment: &[(&str, &str)]) -> String {
        let problems = self.load(environment).unwrap_err().to_string();
        problems.replace(self.folder.path().to_str().unwrap(), "")
    }
}

fn origin_of(loaded: &Loaded, key: &str) -> String {
    let shown = loaded.shown();
    let value = shown.iter().find(|value| value.key.to_string() == key);
    value.unwrap().origin.to_string()
}

const USER: &str = "home/.planck/config.toml";
const PROJECT: &str = "project/.planck/config.toml";

#[test]
fn later_sources_win() {
    let place = Place::new()
        .with(USER, "node.capacity = 1\nnode.name = 'user'\n")
        .with(PROJECT, "[node]\ncapacity = 2\n");
    let place = place.with("named.toml", "[node]\ncapacity = 3");
    let capacity = |sources: &Sources| {
        let loaded = load(sources).unwrap();
        (
            loaded.config.node.capacity,
            origin_of(&loaded, "node.capacity"),
        )
    };
    let mut sources = place.sources(&[]);
    assert_eq!(capacity(&sources).0, 1, "a project that nobody trusts");
    sources.project = Some(place.trusted());
    let file = place
        .path("project")
        .canonicalize()
        .unwrap()
        .join(".planck/config.toml");
    assert_eq!(capacity(&sources), (2, format!("{}:2", file.display())));
    assert_eq!(
        load(&sources).unwrap().config.node.name.as_deref(),
        Some("user")
    );
    sources.file = Some(place.path("named.toml"));
    assert_eq!(capacity(&sources).0, 3);
    sources
        .environment
        .insert("PLANCK_NODE_CAPACITY".into(), "4".into());
    assert_eq!(
        capacity(&sources),
        (4, "environment PLANCK_NODE_CAPACITY".into())
    );
    sources.flags = vec![("node.capacity".into(), "5".into(), "--capacity".into())];
    assert_eq!(capacity(&sources), (5, "flag --capacity".into()));
}

#[test]
fn every_mistake_is_reported_at_once_with_its_place_and_the_way_out() {
    let text = "[node]\ncapasity = 3\ncapacity = 'many'\n\n[cluster]\nsuspicion = '1s'\n[stor]\n[nats]\nnkey = 'SUAB'\n\n[tools]\nsandbox = 'maybe'\n";
    let place = Place::new().with(USER, text);
    let environment = [
        ("PLANCK_NODE_NAMES", "x"),
        ("PLANCK_ELSEWHERE", "x"),
        ("PLANCK_LIMITS_MAX_TOKENS", "-1"),
    ];
    insta::assert_snapshot!(place.problems(&environment), @r#"
    the configuration has 8 problems
      /home/.planck/config.toml:2: `node.capasity`: unknown key; did you mean `node.capacity`?
      /home/.planck/config.toml:7: `stor`: unknown key; did you mean `store.url`?
      environment PLANCK_NODE_NAMES: no key has this name; did you mean PLANCK_NODE_NAME?
      /home/.planck/config.toml:3: `node.capacity`: "many" is not a whole number; write a whole number
      /home/.planck/config.toml:9: `nats.nkey`: a secret does not stand in a file; write `env:NAME` or `file:PATH`, and take the secret out of the file
      environment PLANCK_LIMITS_MAX_TOKENS: `limits.max_tokens`: "-1" is not a whole number; write a whole number
      /home/.planck/config.toml:12: `tools.sandbox`: "maybe" is not auto, required or off; write auto, required or off
      /home/.planck/config.toml:6: `cluster.suspicion`: 1s is out of range; write 2500ms to 10s
    "#);
}

#[test]
fn sizes_of_limits_fit_each_other() {
    let text = "[limits]\nmax_prompt = '65MiB'\n[limits.inbox]\nmax_session_bytes = '1KiB'\nmax_inputs = 0\n[limits.answer]\nmax_bytes = 0\n";
    insta::assert_snapshot!(Place::new().with(USER, text).problems(&[]), @r"
    the configuration has 5 problems
      /home/.planck/config.toml:5: `limits.inbox.max_inputs`: 0 would let nothing happen; write 1 or more
      /home/.planck/config.toml:2: `limits.max_prompt`: out of range; write at least 1 and at most 64MiB
      /home/.planck/config.toml:7: `limits.answer.max_bytes`: out of range; write at least 1 and at most 64MiB
      default: `limits.inbox.max_bytes`: 64MiB is less than `limits.max_prompt`; write 65MiB or more
      /home/.planck/config.toml:4: `limits.inbox.max_session_bytes`: 1KiB is less than `limits.inbox.max_bytes`; write 64MiB or more
    ");
    let text = "[limits]\nmax_prompt = '64MiB'\n[limits.answer]\nmax_bytes = 1\nmax_calls = 1\n";
    assert_eq!(
        Place::new()
            .with(USER, text)
            .load(&[])
            .unwrap()
            .config
            .limits
            .answer
            .max_calls,
        1
    );
}

#[test]
fn an_error_in_a_file_names_the_line() {
    let place = Place::new().with(USER, "[node]\nname = \n");
    assert!(
        place.problems(&[]).contains("config.toml:2: not TOML"),
        "{}",
        place.problems(&[])
    );
}

#[test]
fn a_named_file_must_exist() {
    let place = Place::new();
    let sources = Sources {
        file: Some(place.path("none.toml")),
        ..place.sources(&[])
    };
    assert!(
        load(&sources)
            .unwrap_err()
            .to_string()
            .contains("cannot read it")
    );
}

#[test]
fn variables_of_other_programs_are_honoured() {
    let environment = [
        ("NATS_URL", "nats://n:4222"),
        ("DATABASE_URL", "postgres://me:pw@db/planck"),
        ("ANTHROPIC_API_KEY", "sk-secret"),
        ("OLLAMA_HOST", "0.0.0.0:11434"),
        ("RUST_LOG", "debug"),
        ("OPENAI_API_KEY", ""),
    ];
    let config = Place::new().load(&environment).unwrap().config;
    assert_eq!(
        config.nats.url.as_ref().map(ConfiguredUrl::reveal),
        Some("nats://n:4222")
    );
    assert_eq!(config.store.kind(), Some(StoreKind::Postgres));
    assert_eq!(
        config.providers.by_name["anthropic"]
            .api_key
            .as_ref()
            .map(Secret::reveal),
        Some("sk-secret")
    );
    assert_eq!(
        config.providers.by_name["ollama"]
            .base_url
            .as_ref()
            .map(ConfiguredUrl::reveal),
        Some("http://127.0.0.1:11434")
    );
    assert_eq!(config.telemetry.log, "debug");
    assert!(config.providers.is_ready("anthropic") && !config.providers.is_ready("openai"));

    let own = [
        ("NATS_URL", "nats://theirs"),
        ("PLANCK_NATS_URL", "nats://ours"),
    ];
    assert_eq!(
        Place::new()
            .load(&own)
            .unwrap()
            .config
            .nats
            .url
            .unwrap()
            .reveal(),
        "nats://ours"
    );
}

#[test]
fn secrets_are_referred_to_and_never_shown() {
    let place = Place::new().with("home/key", " from-file \n");
    let place = place.with(
        USER,
        "[providers.openai]\napi_key = 'env:MY_KEY'\n[providers.google]\napi_key = 'file:~/key'\n",
    );
    let environment = [
        ("MY_KEY", "from-env"),
        ("DATABASE_URL", "postgres://me:from-url@db/x"),
    ];
    let loaded = place.load(&environment).unwrap();
    assert_eq!(
        loaded.config.providers.by_name["openai"]
            .api_key
            .as_ref()
            .unwrap()
            .reveal(),
        "from-env"
    );
    assert_eq!(
        loaded.config.providers.by_name["google"]
            .api_key
            .as_ref()
            .unwrap()
            .reveal(),
        "from-file"
    );
    let shown = format!("{:?}\n{:?}", loaded, loaded.shown());
    for secret in ["from-env", "from-file", "from-url"] {
        assert!(!shown.contains(secret), "{secret} is shown");
    }
    assert!(
        place
            .problems(&[])
            .contains("the variable MY_KEY is not set; set MY_KEY")
    );
}

#[test]
fn the_folders_of_a_trusted_project_follow_the_users() {
    let place = Place::new();
    for folder in ["project/.planck/tools/x", "home/.planck/tools"] {
        fs::create_dir_all(place.path(folder)).unwrap();
    }
    let place = place.with("project/.planck/tools/x/TOOL.json", "{}");
    let dirs = |project: Option<Admitted>| {
        let config = load(&Sources {
            project,
            ..place.sources(&[])
        })
        .unwrap()
        .config;
        config
            .sources(SourcePart::Tools)
            .iter()
            .map(ProjectSource::dir)
            .collect::<Vec<_>>()
    };
    let (user, project) = (
        place.path("home/.planck/tools"),
        place.path("project/.planck/tools"),
    );
    let [user, project] = [user, project].map(|dir| dir.canonicalize().unwrap());
    assert_eq!(dirs(None), std::slice::from_ref(&user));
    assert_eq!(dirs(Some(place.trusted())), [user, project]);
}

#[test]
fn names_of_choice_come_from_files_and_the_environment() {
    let place = Place::new()
        .with(USER, "[workspaces]\nsrc = '~/src'\n[models.entries.\"gpt-4.1\"]\nprovider = 'openai'\nprices.input = 2\n");
    let config = place
        .load(&[
            ("PLANCK_WORKSPACES_DOCS", "/docs"),
            ("PLANCK_NODE_LABELS_ZONE", "a"),
        ])
        .unwrap()
        .config;
    assert_eq!(
        config.workspaces.0.get("src"),
        Some(&place.path("home/src"))
    );
    assert!(config.workspaces.0.contains_key("docs"));
    assert_eq!(
        config.node.labels.0.get("zone").map(String::as_str),
        Some("a")
    );
    assert_eq!(
        config.models.entries.0.get("gpt-4.1").unwrap().prices.input,
        Some(2.0)
    );
}

#[test]
fn the_defaults_satisfy_the_rules() {
    let loaded = Place::new().load(&[]).unwrap();
    let mut values = values::Values::new(values::ValueContext::default());
    rules::check(&Config::default(), &mut values);
    assert!(values.problems.is_empty());
    assert!(
        loaded
            .config
            .teams
            .dirs
            .iter()
            .any(|dir| dir.ends_with("home/.planck/teams")),
        "{:?}",
        loaded.config.teams
    );
}

#[test]
fn unsafe_times_are_refused() {
    let problems = |key: &str, time: &str| {
        let name = format!("PLANCK_CLUSTER_{key}");
        Place::new()
            .load(&[(&name, time)])
            .map_err(|error| error.to_string())
    };
    for (key, time, remedy) in [
        ("SUSPICION", "2499ms", "write 2500ms to 10s"),
        ("SUSPICION", "10001ms", "write 2500ms to 10s"),
        ("SWEEP", "999ms", "write 1s or more"),
        ("HEARTBEAT", "500ms", "did you mean PLANCK_CLUSTER_S"),
        ("TOOL_GRACE", "9s", "did you mean PLANCK_CLUSTER_S"),
    ] {
        let problems = problems(key, time).unwrap_err();
        assert!(problems.contains(remedy), "{key} = {time}: {problems}");
    }
    for (key, time) in [
        ("SUSPICION", "2500ms"),
        ("SUSPICION", "10s"),
        ("SWEEP", "1s"),
    ] {
        assert!(problems(key, time).is_ok(), "{key} = {time}");
    }
}

#[test]
fn a_server_at_an_address_has_no_process_for_each_session() {
    let entry = "[mcp.a]\nper = \"session\"\nurl = \"http://a\"\n";
    let problems = Place::new().with(USER, entry);
    let problems = problems.problems(&[]);
    assert!(
        problems.contains("`mcp.a.per`: a server at an address has no process for each session"),
        "{problems}"
    );
}

#[test]
fn every_key_has_a_description_and_a_unique_variable() {
    let keys = keys();
    let names: std::collections::BTreeSet<_> =
        keys.iter().map(|key| key.pattern.variable()).collect();
    assert_eq!(names.len(), keys.len());
    for key in &keys {
        assert!(
            key.about.ends_with('.'),
            "{} says {:?}",
            key.pattern,
            key.about
        );
    }
    for (_, key) in environment::honoured() {
        assert!(
            keys.iter().any(|known| known.pattern.matches(&key)),
            "{key}"
        );
    }
}

#[test]
fn the_page_of_keys_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    if std::env::var_os("PLANCK_BLESS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/configuration.md is not current; run this test with PLANCK_BLESS=1"
    );
}

#[test]
fn the_key_of_every_preset_has_the_usual_variable() {
    for preset in planck_providers::PRESETS
        .iter()
        .filter(|preset| preset.needs_key)
    {
        let usual = format!("{}_API_KEY", preset.name.to_uppercase());
        assert_eq!(preset.key_variable, Some(usual.as_str()));
    }
}

#[test]
fn an_endpoint_may_have_any_name() {
    let place = Place::new().with("home/ca.pem", "no certificate").with(
        USER,
        "[providers.house]\nwire = 'chat'\nbase_url = 'https://llm.example/v1?a=b'\nproxy = 'env'\n\
         headers.x-team = 'blue'\nheaders.authorization = 'env:TOKEN'\n\
         [models]\ndefault = 'house:m'\n[models.entries.mine]\nprovider = 'house'\n",
    );
    let environment = [
        ("TOKEN", "t-0123456789"),
        ("HTTPS_PROXY", "proxy:3128"),
        ("NO_PROXY", ".example"),
    ];
    let config = place.load(&environment).unwrap().config;
    let house = &config.providers.by_name["house"];
    assert_eq!(house.wire, Some(planck_providers::WireKind::Chat));
    let headers: Vec<_> = house
        .headers
        .0
        .iter()
        .map(|(name, text)| (name.as_str(), text.value.reveal()))
        .collect();
    assert_eq!(
        headers,
        [("authorization", "t-0123456789"), ("x-team", "blue")]
    );
    let proxy = &house.proxy.as_ref().unwrap().proxy;
    assert_eq!(
        (
            proxy.https.as_ref().unwrap().reveal(),
            proxy.http.as_ref(),
            proxy.except.as_str()
        ),
        ("http://proxy:3128", None, ".example")
    );
    assert!(config.providers.has("house") && config.providers.is_ready("house"));
    for (text, problem) in [
        (
            "[providers.house]\nbase_url = 'http://x'\n",
            "`house` is no preset, so nothing is assumed; set `wire` and `base_url`",
        ),
        (
            "[providers.house]\nwire = 'chat'\n",
            "set `wire` and `base_url`, or `preset` to one of anthropic, openai",
        ),
        (
            "[providers.house]\npreset = 'gpt'\n",
            "unknown preset `gpt`; write one of anthropic",
        ),
        (
            "[providers.house]\nwire = 'soap'\n",
            "is not chat, responses, anthropic, google or ollama",
        ),
        (
            "[providers.openai]\nproxy = 'no address'\n",
            "is not an address like http://host:port, or `env`",
        ),
        (
            "[providers.openai]\nca = '~/ca.pem'\n",
            "holds no certificate in PEM; name a file with certificates",
        ),
        (
            "[providers.openai]\nheaders.x = \"a\\nb\"\n",
            "a header cannot hold control characters",
        ),
        (
            "[providers.azure]\napi_key = 'env:TOKEN'\n",
            "`azure` has no usual address; set `base_url`",
        ),
        (
            "[providers.\"a b\"]\npreset = 'openai'\n",
            "`a b` cannot stand before a colon",
        ),
    ] {
        let place = Place::new()
            .with("home/ca.pem", "no certificate")
            .with(USER, text);
        let problems = place.problems(&[("TOKEN", "t-0123456789")]);
        assert!(problems.contains(problem), "{text}: {problems}");
    }
}

/// Returns the text of `docs/configuration.md`.
fn page() -> String {
    let mut page = String::from(PREFACE);
    let mut section = String::new();
    for key in keys() {
        if key.pattern.section() != section {
            section = key.pattern.section().into();
            let _ = write!(
                page,
                "\n## `[{section}]`\n\n| key | value | default | what |\n|---|---|---|---|\n"
            );
        }
        page.push_str(&row(&key));
    }
    page
}

fn row(key: &values::KeyDescription) -> String {
    let default = key
        .default
        .as_ref()
        .map_or("–".into(), |text| format!("`{text}`"));
    let variable =
        honoured_name(&key.pattern).map_or(String::new(), |name| format!(" Also `{name}`."));
    format!(
        "| `{}` | {} | {default} | {}{variable} |\n",
        key.pattern, key.kind, key.about
    )
}

const PREFACE: &str = "# Configuration

Defaults < `~/.planck/config.toml` < a trusted project's `.planck/config.toml` < `--config FILE` < environment < flags. `planck config show --origin`
prints each value and its origin. Every key has an environment name, `PLANCK_<SECTION>_<KEY>`: `PLANCK_NODE_CAPACITY` is `node.capacity`,
`PLANCK_PROVIDERS_OPENAI_MAX_ATTEMPTS` is `providers.openai.max_attempts`, `PLANCK_WORKSPACES_SRC` is `workspaces.src`; lists are separated by commas.
`*` is a name of your choice. Relative paths start where planck was started; `~/` is your home.

A project's own `.planck/config.toml` may set any key except those of `[permissions]` and `[http]`, but has no effect before `planck trust` ([behaviour](behaviour.md#projects)). Secrets are never
written into a file: write `env:NAME` or `file:PATH`.

This page is generated from the code by the test `the_page_of_keys_is_current`; set `PLANCK_BLESS=1` to write it again.
";

/// Returns the variable of another program that sets a key, or `None` if there is none or the key
/// is a pattern.
fn honoured_name(key: &values::KeyPath) -> Option<&'static str> {
    environment::honoured()
        .find(|(_, sets)| sets == key)
        .map(|(name, _)| name)
}
