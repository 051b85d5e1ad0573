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

use source::{Source, root};

/// Fails with all breaches at once.
fn none(breaches: Vec<String>) {
    assert!(breaches.is_empty(), "\n{}\n", breaches.join("\n"));
}

fn sources() -> Vec<Source> {
    let sources = source::all();
    assert!(
        sources.len() > 20,
        "the sources were not found under {}",
        root().display()
    );
    sources
}
