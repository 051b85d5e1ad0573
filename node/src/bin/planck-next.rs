//! The `planck` command, built as if it were the next version.

use std::process::ExitCode;

fn main() -> ExitCode {
    planck_node::main()
}
