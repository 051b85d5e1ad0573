//! The `planck` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|mode| mode == "reap") {
        return planck_node::tools::reap::main(args);
    }
    planck_node::cli::main()
}
