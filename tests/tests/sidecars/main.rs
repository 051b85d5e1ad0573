//! The conformance checker against real sidecars: the examples pass it, and each of many wrong ones
//! fails in the case that is about what is wrong with it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

mod checking;
mod command;
mod examples;
mod mutants;
mod scaffolds;
mod secured;
