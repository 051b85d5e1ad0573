//! What `planck sidecar new --lang rust` writes passes its own tests.

#![allow(dead_code, reason = "its `main` is not called here")]

#[path = "../../node/src/cli/scaffold/rust/src/main.rs"]
mod scaffold;
