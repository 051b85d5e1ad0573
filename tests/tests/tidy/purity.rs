//! Checks the crates that only compute: what they may depend on, and which parts of the standard
//! library they must not name.

use toml::{Table, Value};

use crate::{
    layers::{names, production},
    none,
    source::{Source, root},
};

/// The pure crates, each with all its allowed dependencies. Code cannot call a crate that is not
/// listed, so the agent loop can use no crate for waits, queries or requests. Every dependency in
/// this list may only hold, parse or write data.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    (
        "agent",
        &[
            "memchr",
            "planck-common",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
        ],
    ),
    (
        "common",
        &[
            "schemars",
            "serde",
            "serde_json",
            "strsim",
            "thiserror",
            "time",
            "uuid",
        ],
    ),
];

/// What the agent loop must not name: the parts of the standard library that have side effects or
/// read the clock and, in [`IMPURE_FUNCTIONS`], the functions of `planck-common` that read the
/// clock or draw a random number. `step` gets the time and ids as arguments, so a test can replay
/// any order of events.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::sync::mpsc",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
];
const IMPURE_FUNCTIONS: &[&str] = &["Timestamp::now", "::mint"];

#[test]
fn pure_crates_depend_on_plain_data_only() {
    let mut breaches = Vec::new();
    for (folder, allowed) in DEPENDENCIES {
        let path = format!("{folder}/Cargo.toml");
        let manifest: Table = std::fs::read_to_string(root().join(&path))
            .unwrap()
            .parse()
            .unwrap();
        let found = dependencies(&manifest);
        assert!(!found.is_empty(), "{path} has no dependencies");
        let unknown = found
            .iter()
            .filter(|name| !allowed.contains(&name.as_str()));
        breaches.extend(unknown.map(|name| {
            format!("{path}: depends on {name}; this crate computes and may use {allowed:?} only")
        }));
        let unused = allowed
            .iter()
            .filter(|name| !found.iter().any(|found| found == *name));
        breaches.extend(unused.map(|name| format!("{path}: may use {name}, but does not")));
    }
    none(breaches);
}

/// What checks the runtime and shares code with it has its mistakes, too.
#[test]
fn judges_share_no_code_with_the_runtime() {
    for (folder, allowed) in [
        ("prove", &["planck-scripted-model"][..]),
        ("scripted-model", &[]),
    ] {
        let path = format!("{folder}/Cargo.toml");
        let manifest = std::fs::read_to_string(root().join(&path)).unwrap();
        let mut found = dependencies(&manifest.parse().unwrap());
        found.retain(|name| name.starts_with("planck-") && !allowed.contains(&&**name));
        assert!(found.is_empty(), "{path}: depends on {found:?}");
    }
}

/// Returns every crate that the library or its build script may use, on any platform.
fn dependencies(manifest: &Table) -> Vec<String> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Value::Table(table) = value else { continue };
        match key.as_str() {
            "dependencies" | "build-dependencies" => found.extend(table.keys().cloned()),
            "target" => {
                let targets = table.values().filter_map(Value::as_table);
                found.extend(targets.flat_map(dependencies));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn dependencies_of_every_kind_are_found() {
    let manifest = r#"
        [dependencies]
        a.workspace = true
        [dependencies.b]
        version = "1"
        [target.'cfg(unix)'.dependencies]
        c = "1"
        [build-dependencies]
        d = "1"
        [dev-dependencies]
        e = "1"
    "#;
    let mut found = dependencies(&manifest.parse().unwrap());
    found.sort();
    assert_eq!(found, ["a", "b", "c", "d"]);
}

pub fn the_loop_names_no_clock_and_no_io(sources: &[Source]) -> Vec<String> {
    let mut breaches = Vec::new();
    for source in production(sources) {
        if !source.path.starts_with("agent/src/") {
            continue;
        }
        let impure = |path: &&String| {
            IMPURE.iter().any(|prefix| names(path, prefix))
                || IMPURE_FUNCTIONS.iter().any(|end| path.ends_with(end))
        };
        let found = source.names().paths;
        breaches.extend(
            found
                .iter()
                .filter(impure)
                .map(|path| format!("{}: names {path}, which is not pure", source.path)),
        );
    }
    breaches
}
