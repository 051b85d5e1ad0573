//! Runs the tests of the project that `planck sidecar new --lang rust` writes.

#![allow(dead_code, reason = "its `main` is not called here")]

#[path = "../../cli/src/scaffold/rust/src/main.rs"]
mod scaffold;
