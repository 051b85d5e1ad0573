//! The `planck` command with the feature `next`. Tests run it as a stand-in for the next version.

use std::process::ExitCode;

fn main() -> ExitCode {
    planck_node::main()
}
