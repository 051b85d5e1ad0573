//! Checks the names in documents and other texts: every path exists, no path leads outside the
//! project, and no host of a package registry is named.

use std::path::{Component, Path, PathBuf};

use crate::{
    none,
    source::{files, root},
};

/// The names that no file may contain. Each is split in two halves, so that this file does not
/// contain it.
const NEVER_NAMED: &[(&str, &str)] = &[
    ("../", "shared"),
    ("/work/", "shared"),
    ("crates", ".io"),
    ("pypi", ".org"),
    ("pythonhosted", ".org"),
    ("npmjs", ".com"),
    ("npmjs", ".org"),
    ("proxy.golang", ".org"),
    ("docker", ".io"),
    ("ghcr", ".io"),
    ("quay", ".io"),
];

#[test]
fn nothing_outside_the_project_is_named() {
    let mut breaches = Vec::new();
    for path in files().iter().filter(|path| !path.ends_with("Cargo.lock")) {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else {
            continue;
        };
        for (one, other) in NEVER_NAMED {
            let named = text.contains(&format!("{one}{other}"));
            breaches.extend(named.then(|| format!("{path}: names {one}{other}")));
        }
    }
    none(breaches);
}

#[test]
fn paths_that_documents_name_exist() {
    let mut breaches = Vec::new();
    for document in files().iter().filter(|path| path.ends_with(".md")) {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        let beside = Path::new(document).parent().unwrap();
        let quoted = quoted(&text).map(PathBuf::from);
        let linked = linked(&text).map(|link| beside.join(link));
        let missing = quoted
            .chain(linked)
            .filter(|path| !root().join(plain(path)).exists());
        breaches
            .extend(missing.map(|path| format!("{document}: {} does not exist", path.display())));
    }
    none(breaches);
}

/// Every type that docs/architecture.md names must occur in the sources. For every `Type::method` that
/// it names, some function with the method's name must be defined there.
#[test]
fn symbols_that_the_architecture_names_exist() {
    let text = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let code: String = files()
        .iter()
        .filter(|path| path.ends_with(".rs") && path.contains("/src/"))
        .map(|path| std::fs::read_to_string(root().join(path)).unwrap())
        .collect();
    let named: Vec<&str> = spans(&text).filter_map(symbol).collect();
    assert!(named.len() > 5, "{named:?}");
    let is_missing = |symbol: &&str| {
        let mut words = symbol.split("::");
        let of = words.next().unwrap_or_default();
        !words_of(&code).any(|word| word == of)
            || words.any(|member| !code.contains(&format!("fn {member}(")))
    };
    let missing = named.into_iter().filter(is_missing);
    none(
        missing
            .map(|symbol| format!("docs/architecture.md: there is no `{symbol}`"))
            .collect(),
    );
}

/// Returns the name of a type or of a type's method in a span, without parentheses, or `None` if
/// the span is anything else.
fn symbol(span: &str) -> Option<&str> {
    let name = span.split('(').next()?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let is_type = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_name);
    is_type.then_some(name)
}

fn words_of(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[test]
fn symbols_are_distinguished_from_other_words() {
    assert_eq!(symbol("Agent::step(input, now)"), Some("Agent::step"));
    assert_eq!(symbol("JoinSet"), Some("JoinSet"));
    assert_eq!(symbol("NATS"), None);
    assert_eq!(symbol("node/src/Bus"), None);
    assert_eq!(symbol("spawn_agent"), None);
}

/// Returns the spans in backticks that name a path below a top folder of the project.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    const TOP: &[&str] = &[
        "agent/",
        "bus/",
        "cli/",
        "client/",
        "cluster/src/",
        "common/",
        "host/src/",
        "http/",
        "node/",
        "providers/src/",
        "store/src/",
        "telemetry/src/",
        "toolbox/src/",
        "sidecar-sdk/",
        "migrations/",
        "scripted-model/",
        "tests/",
        "docs/",
        "examples/",
        "deploy/",
        "tools/",
        ".ci/",
    ];
    let is_path = |span: &&str| {
        span.chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
    };
    spans(text)
        .filter(|span| TOP.iter().any(|top| span.starts_with(top)))
        .filter(is_path)
}

/// Returns the spans in backticks within a line of prose.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|prose| prose.lines())
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the targets of links, except links to the web or within the page.
fn linked(text: &str) -> impl Iterator<Item = &str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|target| !target.is_empty() && !target.contains(':'))
}

/// Returns a path with `.` and `..` resolved.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir | Component::Prefix(_) | Component::RootDir => (),
            Component::Normal(name) => plain.push(name),
        }
    }
    plain
}

#[test]
fn paths_are_found_in_prose_only() {
    let text = "see `node/src/bus.rs`, `node/src/*.rs`, [docs](docs/a.md#b) and [web](https://x.y/z)\n```\n`docs/no.md`\n```\n";
    assert_eq!(quoted(text).collect::<Vec<_>>(), ["node/src/bus.rs"]);
    assert_eq!(linked(text).collect::<Vec<_>>(), ["docs/a.md"]);
}
