//! The conformance checker against real sidecars. The examples pass it, and each of many faulty
//! ones fails the case that covers its fault.

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
