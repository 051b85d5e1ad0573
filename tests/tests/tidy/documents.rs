//! What documents and other texts name: paths that exist, nothing outside the project, no host of a
//! registry.

use std::path::{Component, Path, PathBuf};

use crate::{
    none,
    source::{files, root},
};

/// Spelled in two halves, so that this file does not name them.
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

/// What stands in backticks, lies in a top folder of the project and is a path to the last letter.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    const TOP: &[&str] = &[
        "agent/",
        "bus/",
        "client/",
        "common/",
        "node/",
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
    let prose = text.split("```").step_by(2);
    let spans = prose
        .flat_map(|prose| prose.lines())
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |span: &&str| {
        span.chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
    };
    spans
        .filter(|span| TOP.iter().any(|top| span.starts_with(top)))
        .filter(is_path)
}

/// The targets of links, but those elsewhere on the web or within the page.
fn linked(text: &str) -> impl Iterator<Item = &str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|target| !target.is_empty() && !target.contains(':'))
}

/// Without `.` and `..`.
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
