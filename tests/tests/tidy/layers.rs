//! Checks the layers: which folders may name NATS, SQL and providers' JSON, where subjects are
//! spelled, and which module may import which.

use crate::source::Source;

/// The libraries that are restricted, each with the folders that may name it.
const LIBRARIES: &[(&str, &[&str])] = &[
    // The benchmark compares calls through the runtime with bare requests and a bare client, and a
    // proof shares no code with what it checks.
    (
        "async_nats",
        &["bus/", "bench/", "prove/", "sidecar-sdk/", "tests/"],
    ),
    ("sqlx", &["store/src", "prove/", "tests/", "migrations/"]),
    ("axum", &["http/", "scripted-model/"]),
    ("rmcp", &["bench/", "http/", "mcp/"]),
];

/// The modules of the node that are restricted, and the crate of the cluster, each with what it must
/// not see: other modules as `crate::…`, or crates. Which crate may see which stands in their
/// manifests.
const NEVER_SEES: &[(&str, &[&str])] = &[
    ("actor", &["planck_cluster"]),
    (
        "cluster",
        &["planck_store::sqlite", "planck_store::postgres"],
    ),
    ("team", &["crate::bus", "planck_bus"]),
    ("sidecar", &["crate::agent", "planck_agent"]),
    ("gateway", &["planck_providers", "planck_toolbox"]),
];

/// The modules of other crates that a module may import although it may not import their crate. An
/// actor asks only whether its node may begin new work.
const STILL_SEES: &[(&str, &str)] = &[("actor", "planck_cluster::permit")];

/// The services of a node, and the modules that they build on or that build on them, in order. Each
/// may see only those before it.
const SERVICES: &[&str] = &[
    "peers",
    "handles",
    "team_registry",
    "placement",
    "takeover",
    "sessions",
    "services",
    "team_tools",
    "gateway",
    "node",
];

/// Words of the providers' formats: fields, values, a method and a header.
const PROVIDER_WORDS: &[&str] = &[
    "tool_use_id",
    "tool_calls",
    "functionCall",
    "content_block",
    "chat.completion",
    "generateContent",
    "x-api-key",
];

/// First words of subjects.
const SUBJECTS: &[&str] = &["agent", "session", "node", "cluster", "sidecar", "cancel"];

pub fn production(sources: &[Source]) -> impl Iterator<Item = &Source> {
    sources.iter().filter(|source| !source.is_test())
}

/// Returns whether a file is part of the runtime: of the node, or of the crates that it uses.
fn is_runtime(path: &str) -> bool {
    [
        "agent/src/",
        "bus/src/",
        "cli/src/",
        "client/src/",
        "cluster/src/",
        "host/src/",
        "http/src/",
        "mcp/src/",
        "node/src/",
        "providers/src/",
        "store/src/",
        "telemetry/src/",
        "toolbox/src/",
    ]
    .iter()
    .any(|folder| path.starts_with(folder))
}

pub fn names(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

pub fn libraries_are_named_in_their_layer_only(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in sources {
        for (library, folders) in LIBRARIES {
            let outside = !folders.iter().any(|folder| source.path.starts_with(folder));
            if outside && source.names().paths.iter().any(|path| names(path, library)) {
                breaches.push(format!(
                    "{}: names {library}, which belongs to {folders:?}",
                    source.path
                ));
            }
        }
    }
    breaches
}

/// Returns the module of the node to which a file belongs, or `cluster` for a file of that crate.
fn module(path: &str) -> &str {
    if path.starts_with("cluster/src/") {
        return "cluster";
    }
    let inside = path.strip_prefix("node/src/").unwrap_or_default();
    inside.split(['/', '.']).next().unwrap_or_default()
}

/// No module in [`SERVICES`] may import a later one, and no module in `BELOW` may import any of
/// them.
pub fn services_know_only_those_before_them(sources: &[Source]) -> Vec<String> {
    const BELOW: &[&str] = &["actor", "compact", "lookup", "sidecar", "team", "workspace"];
    let mut breaches = Vec::new();
    for source in production(sources) {
        let module = module(&source.path);
        let place = SERVICES.iter().position(|service| *service == module);
        let hidden = match place {
            Some(place) => SERVICES.get(place + 1..).unwrap_or_default(),
            None if BELOW.contains(&module) => SERVICES,
            None => continue,
        };
        for service in hidden {
            let hidden = format!("crate::{service}");
            let paths = source.names().paths;
            if let Some(path) = paths.iter().find(|path| names(path, &hidden)) {
                breaches.push(format!(
                    "{}: {module} sees {path}, which is built on it",
                    source.path
                ));
            }
        }
    }
    breaches
}

/// A method of a service that is defined in another module would be a dependency that no import
/// shows.
pub fn services_are_implemented_in_their_own_modules(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    let sources: Vec<&Source> = production(sources).collect();
    for source in &sources {
        let of_this = module(&source.path);
        if of_this != "actor" && !SERVICES.contains(&of_this) {
            continue;
        }
        let folder = source.path.trim_end_matches(".rs");
        for (item, of) in implemented(&source.file) {
            let is_inside = sources.iter().any(|other| {
                let home = other.path.trim_end_matches(".rs");
                let is_around = folder == home || folder.starts_with(&format!("{home}/"));
                is_around && other.file.items.iter().any(|item| defines(item, &of))
            });
            if !is_inside {
                let line = item.impl_token.span.start().line;
                breaches.push(format!(
                    "{}:{line}: `{of}` is implemented outside its module",
                    source.path
                ));
            }
        }
    }
    breaches
}

/// Returns the inherent `impl` blocks of a file, with the names of their types.
fn implemented(file: &syn::File) -> Vec<(&syn::ItemImpl, String)> {
    let named = file.items.iter().filter_map(|item| {
        let syn::Item::Impl(block) = item else {
            return None;
        };
        let syn::Type::Path(of) = &*block.self_ty else {
            return None;
        };
        let name = of.path.segments.last()?.ident.to_string();
        block.trait_.is_none().then_some((block, name))
    });
    named.collect()
}

fn defines(item: &syn::Item, name: &str) -> bool {
    if let syn::Item::Struct(item) = item {
        return item.ident == name;
    }
    matches!(item, syn::Item::Enum(item) if item.ident == name)
}

pub fn modules_do_not_see_what_they_must_not(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in production(sources) {
        let module = module(&source.path);
        let unseen = NEVER_SEES
            .iter()
            .filter(|(name, _)| *name == module)
            .flat_map(|(_, unseen)| *unseen);
        let paths = source.names().paths;
        for hidden in unseen {
            let may_see = |path: &str| {
                STILL_SEES
                    .iter()
                    .any(|(name, seen)| *name == module && names(path, seen))
            };
            let is_hidden = |path: &&String| names(path, hidden) && !may_see(path);
            if let Some(path) = paths.iter().find(is_hidden) {
                breaches.push(format!(
                    "{}: sees {path}, which {module} never does",
                    source.path
                ));
            }
        }
    }
    breaches
}

/// The files that may name the process's standard output and error, and why.
const WRITERS: &[(&str, &str)] = &[
    ("cli/src/output.rs", "cleans what it writes"),
    ("host/src/terminal/log.rs", "cleans what it writes"),
    (
        "telemetry/src/lib.rs",
        "asks whether standard error is a terminal",
    ),
    ("toolbox/src/reap.rs", "runs behind a pipe of the node"),
];

pub fn one_module_writes_to_the_terminal(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    let writes = |path: &str| {
        let last = path.rsplit("::").next().unwrap_or_default();
        let handle =
            ["stdout", "stderr"].contains(&last) && (path.contains("io::") || path == last);
        handle || ["print", "println", "eprint", "eprintln", "dbg"].contains(&last)
    };
    let outside =
        |path: &str| is_runtime(path) && !WRITERS.iter().any(|(writer, _)| path == *writer);
    for source in production(sources).filter(|source| outside(&source.path)) {
        let found = source.names().calls.into_iter().find(|path| writes(path));
        breaches.extend(
            found.map(|path| format!("{}: {path}; write through cli/src/output.rs", source.path)),
        );
    }
    breaches
}

pub fn provider_formats_are_spelled_by_providers_only(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    let speaks = |path: &str| {
        // The name of a metric contains a field name of a format.
        let metrics = path == "telemetry/src/metrics/families.rs";
        // The front serves a provider's format to clients.
        let served = path.starts_with("http/src/openai");
        !is_runtime(path) || path.starts_with("providers/src") || metrics || served
    };
    for source in production(sources).filter(|source| !speaks(&source.path)) {
        for text in source.names().texts {
            let word = PROVIDER_WORDS.iter().find(|word| text.contains(*word));
            breaches.extend(word.map(|word| format!("{}: {text:?} spells {word:?}", source.path)));
        }
    }
    breaches
}

pub fn subjects_are_spelled_in_one_place(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    // The configuration has sections with the same names as first words of subjects.
    let spellers = |path: &str| is_runtime(path) && !path.starts_with("node/src/config");
    for source in production(sources).filter(|source| spellers(&source.path)) {
        let texts = source.names().texts;
        let spelled = texts.iter().filter(|text| is_subject(text));
        breaches.extend(
            spelled
                .map(|text| format!("{}: {text:?} belongs in common/src/subject.rs", source.path)),
        );
    }
    breaches
}

/// Returns whether a text is the beginning of a subject, or a subject with placeholders.
fn is_subject(text: &str) -> bool {
    let whole_word = !text.contains(char::is_whitespace);
    let begins = |first: &str| {
        let rest = text
            .strip_prefix(first)
            .and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', '*', '>']))
    };
    whole_word && (text.starts_with("cmd.") || SUBJECTS.iter().any(|first| begins(first)))
}

#[test]
fn subjects_are_recognised() {
    let cases = [
        ("agent.{id}", true),
        ("cmd.session.new", true),
        ("node.*", true),
        ("session.", true),
        ("node.name", false),
        ("the agent.{}", false),
    ];
    for (text, expected) in cases {
        assert_eq!(is_subject(text), expected, "{text}");
    }
}
