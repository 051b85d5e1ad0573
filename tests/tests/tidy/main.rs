//! The house rules that a machine can check: sizes, layers, dependencies between modules and of
//! pure crates, names in documents, and refused words.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot read the sources has failed"
)]

mod documents;
mod layers;
mod purity;
mod sizes;
mod source;
mod words;

use source::root;

/// Fails with all breaches at once.
fn none(breaches: Vec<String>) {
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}

/// The rules about parsed sources are one test, because parsing all of them takes seconds.
#[test]
fn sources_follow_the_rules() {
    let sources = source::all();
    assert!(
        sources.len() > 20,
        "the sources were not found under {}",
        root().display()
    );
    let rules = [
        layers::libraries_are_named_in_their_layer_only,
        layers::services_know_only_those_before_them,
        layers::services_are_implemented_in_their_own_modules,
        layers::modules_do_not_see_what_they_must_not,
        layers::one_module_writes_to_the_terminal,
        layers::provider_formats_are_spelled_by_providers_only,
        layers::subjects_are_spelled_in_one_place,
        purity::the_loop_names_no_clock_and_no_io,
        sizes::files_are_small,
        sizes::functions_and_structs_are_small,
    ];
    none(rules.iter().flat_map(|rule| rule(&sources)).collect());
}

/// Cargo refuses a workspace without one of its members, so an image cannot be built without them.
#[test]
fn image_is_built_from_every_member() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (manifest, copied) = (read("Cargo.toml"), read(".dockerignore"));
    let manifest: toml::Table = manifest.parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let folders = members
        .iter()
        .map(|member| member.as_str().unwrap().split('/').next().unwrap());
    let missing = folders.filter(|folder| {
        let line = format!("!{folder}");
        !copied.lines().any(|copied| copied == line)
    });
    none(
        missing
            .map(|folder| format!(".dockerignore: leaves out {folder}/, a member of the workspace"))
            .collect(),
    );
}
