//! `planck` as a stand-in for the next version.

use std::process::ExitCode;

fn main() -> ExitCode {
    planck_node::main()
}
