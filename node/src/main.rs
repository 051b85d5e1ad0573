//! The `planck` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    planck_node::main()
}
