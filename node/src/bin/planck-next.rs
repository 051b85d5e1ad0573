//! `planck` as a stand-in for the version after this one.

use std::process::ExitCode;

fn main() -> ExitCode {
    planck_node::main()
}
