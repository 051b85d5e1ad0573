//! The environment variables of tool processes. They contain what a shell needs, and no keys.

use std::ffi::OsString;

/// The variables that are passed on if the node's own environment has them.
const PASSED_ON: &[&str] = &["PATH", "HOME", "LANG", "TMPDIR"];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prefixes of the variables that are never passed on. They make the dynamic linker load code from
/// any path, and a tool may have written a file there. The reaper, which gets the same environment,
/// would run that code outside of the sandbox.
const LOADER: &[&str] = &["LD_", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"];

/// Returns `PATH`, `HOME`, `LANG` and `TMPDIR`, with defaults for all but the last, and the
/// variables named in `besides`. Variables of the dynamic linker are left out.
pub fn minimal(besides: &[String]) -> Vec<(OsString, OsString)> {
    from(besides, crate::environment::variable)
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
