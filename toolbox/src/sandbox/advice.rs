//! Tells from the output of a failed command what the sandbox hid from it, and which setting admits
//! that. Without this, a model takes a hidden program for one that is not installed.

use std::{collections::BTreeSet, path::PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::Toolchain;

/// How shells and other programs end the line which says that a program is missing.
const MISSING: &[&str] = &[
    "command not found",
    "not found",
    "No such file or directory",
];

/// Parts of the messages of programs that cannot open a connection.
const UNREACHED: &[&str] = &[
    "Could not resolve host",
    "Temporary failure in name resolution",
    "Name or service not known",
    "failed to lookup address",
    "Network is unreachable",
    "EAI_AGAIN",
    "ENOTFOUND",
    "no such host",
    "Failed to establish a new connection",
    "socket: permission denied",
    "socket: operation not permitted",
];

/// The maximum number of lines that are read from the end of an output.
const LINES: usize = 200;

/// Returns the reasons that the sandbox explains. `hidden` are the folders of `PATH` that processes
/// may not read.
pub(super) fn of(output: &str, hidden: &[PathBuf], network: bool) -> Option<String> {
    let lines = || output.lines().rev().take(LINES);
    let programs: BTreeSet<&str> = lines().filter_map(missing).collect();
    let of_programs = programs
        .into_iter()
        .filter_map(|program| of_program(program, hidden));
    let is_unreached = |line: &str| UNREACHED.iter().any(|part| line.contains(part));
    let of_network = (!network && lines().any(is_unreached)).then(|| {
        "tools have no network; the user can allow it with the setting `tools.network = \"on\"`"
            .to_owned()
    });
    let reasons: Vec<String> = of_programs.chain(of_network).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Returns the name of a program that a line calls missing, such as `cargo` in `bash: line 1:
/// cargo: command not found`.
fn missing(line: &str) -> Option<&str> {
    let line = line.trim_end();
    let before = MISSING.iter().find_map(|end| line.strip_suffix(end))?;
    let before = before.trim_end().strip_suffix(':')?;
    let name = before
        .rsplit(": ")
        .next()?
        .trim_matches(['\'', '"', '‘', '’', '`']);
    let is_name = !name.is_empty() && !name.contains(['/', ' ']);
    is_name.then_some(name)
}

/// Returns which setting admits a program that lies in a hidden folder.
fn of_program(program: &str, hidden: &[PathBuf]) -> Option<String> {
    let is_there = |folder: &&PathBuf| access(&folder.join(program), AccessFlags::X_OK).is_ok();
    let folder = hidden.iter().find(is_there)?;
    let setting = match Toolchain::of_folder(folder) {
        Some(toolchain) => format!("tools.toolchains = [\"{}\"]", toolchain.name),
        None => format!("tools.readable = [\"{}\"]", folder.display()),
    };
    Some(format!(
        "{program} is in {}, which tools do not see; the user can admit it with the setting `{setting}`",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn missing_programs_are_found_in_messages_of_shells_and_others() {
        for (line, name) in [
            ("bash: line 1: cargo: command not found", Some("cargo")),
            ("/bin/sh: 1: cargo: not found", Some("cargo")),
            ("make: cargo: No such file or directory", Some("cargo")),
            ("env: ‘node’: No such file or directory", Some("node")),
            ("cat: a/b: No such file or directory", None),
            ("error: the thing was not found", None),
            ("command not found", None),
        ] {
            assert_eq!(missing(line), name, "{line}");
        }
    }

    #[test]
    fn only_what_the_sandbox_hides_is_explained() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("cargo");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let hidden = [home.path().to_owned()];
        let output = "building\nbash: line 1: cargo: command not found\n";
        let advice = of(output, &hidden, false).unwrap();
        assert!(advice.contains("tools.readable = ["), "{advice}");
        assert_eq!(of(output, &[], false), None);
        assert_eq!(
            of("bash: line 1: gcc: command not found", &hidden, true),
            None
        );

        let unreached = "curl: (6) Could not resolve host: example.org";
        assert!(of(unreached, &[], false).unwrap().contains("tools.network"));
        assert_eq!(of(unreached, &[], true), None);
    }
}
