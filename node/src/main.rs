//! The `planck` binary.

use std::process::ExitCode;

/// Gives back to the system what agents that left memory held, which glibc's does not; how soon is set in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    planck_node::main()
}
