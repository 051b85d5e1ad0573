//! The environment variables of tool processes: the few that a shell needs and those that the
//! configuration names. No other variable of the node, such as a key, reaches a tool.

use std::ffi::OsString;

/// The variables of the node's own environment that every tool process gets. The function `default`
/// has values for some of them, in case the node does not have them.
const PASSED_ON: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prefixes of the variables that are never passed on. They can make the dynamic linker or the C
/// library load code from any path, including a file that a tool has written. The reaper gets the
/// same environment and would run that code outside of the sandbox.
const LOADER: &[&str] = &["LD_", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"];

/// Returns `PATH`, `HOME`, `LANG` and `TMPDIR`, with defaults for all but `TMPDIR`, and those
/// variables named in `besides` that the node has. Leaves out variables whose names begin with a
/// prefix in `LOADER`.
pub fn minimal(besides: &[String]) -> Vec<(OsString, OsString)> {
    from(besides, planck_host::environment::variable)
}

fn from(
    besides: &[String],
    of_node: impl Fn(&str) -> Option<OsString>,
) -> Vec<(OsString, OsString)> {
    let is_safe = |name: &&str| !LOADER.iter().any(|loader| name.starts_with(loader));
    let names = PASSED_ON
        .iter()
        .copied()
        .chain(besides.iter().map(String::as_str).filter(is_safe));
    names
        .filter_map(|name| Some((name.into(), of_node(name).or_else(|| default(name))?)))
        .collect()
}

fn default(name: &str) -> Option<OsString> {
    match name {
        "PATH" => Some(PATH.into()),
        "HOME" => Some("/".into()),
        "LANG" => Some("C.UTF-8".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_passed_on() {
        let node = |name: &str| match name {
            "PATH" => Some("/bin".into()),
            "OPENAI_API_KEY" | "CARGO_HOME" | "LD_PRELOAD" => Some("set".into()),
            _ => None,
        };
        let pairs = |names: &[(&str, &str)]| {
            names
                .iter()
                .map(|(n, v)| (n.into(), v.into()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            from(&[], node),
            pairs(&[("PATH", "/bin"), ("HOME", "/"), ("LANG", "C.UTF-8")])
        );
        assert_eq!(
            from(
                &["CARGO_HOME".into(), "NONE".into(), "LD_PRELOAD".into()],
                node
            )
            .last(),
            pairs(&[("CARGO_HOME", "set")]).last()
        );
    }
}
