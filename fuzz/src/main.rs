//! Passes the bytes from libFuzzer to the target that `PLANCK_FUZZ_TARGET` names.

#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<String> = LazyLock::new(|| std::env::var("PLANCK_FUZZ_TARGET").unwrap_or_default());

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let known: Vec<&str> = planck_node::fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
    assert!(planck_node::fuzz::run(&TARGET, bytes), "PLANCK_FUZZ_TARGET is `{}`; the targets are {known:?}", *TARGET);
});
