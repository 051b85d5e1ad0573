//! The `planck` binary.

use std::process::ExitCode;

/// Gives back to the system what agents that left memory held, which glibc's does not; how soon is set in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|mode| mode == "reap") {
        return planck_node::tools::reap::main(args);
    }
    planck_node::cli::main()
}
