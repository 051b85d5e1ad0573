//! The configuration as text: every value with its origin, and the table of all keys for the
//! documentation.

use std::fmt::Write as _;

use super::{
    environment::honoured_name,
    key::{Key, KeyPath},
    load::{Loaded, keys},
    origin::Origin,
    setting::Field as _,
};

/// A value that is in force.
#[derive(Debug, Clone)]
pub struct Shown {
    pub key: KeyPath,
    /// The value, or `None` if it is unset.
    pub value: Option<String>,
    pub origin: Origin,
}

/// Returns every value in force, in the order of the sections. Of a secret, only the fact that it
/// is set is shown.
pub fn values(loaded: &Loaded) -> Vec<Shown> {
    let mut shown = Vec::new();
    loaded.config.show(&KeyPath::default(), &mut shown);
    shown
        .into_iter()
        .map(|(key, value)| Shown {
            origin: loaded.origin(&key),
            key,
            value,
        })
        .collect()
}

/// Returns the page `docs/configuration.md`.
pub fn page() -> String {
    let mut page = String::from(PREFACE);
    let mut section = String::new();
    for key in keys() {
        if key.pattern.section() != section {
            section = key.pattern.section().into();
            let _ = write!(
                page,
                "\n## `[{section}]`\n\n| key | value | default | what |\n|---|---|---|---|\n"
            );
        }
        page.push_str(&row(&key));
    }
    page
}

fn row(key: &Key) -> String {
    let default = key
        .default
        .as_ref()
        .map_or("–".into(), |text| format!("`{text}`"));
    let variable =
        honoured_name(&key.pattern).map_or(String::new(), |name| format!(" Also `{name}`."));
    format!(
        "| `{}` | {} | {default} | {}{variable} |\n",
        key.pattern, key.kind, key.about
    )
}

const PREFACE: &str = "# Configuration

Defaults < `~/.planck/config.toml` < a trusted project's `.planck/config.toml` < `--config FILE` < environment < flags. `planck config show --origin`
prints each value and its origin. Every key has an environment name, `PLANCK_<SECTION>_<KEY>`: `PLANCK_NODE_CAPACITY` is `node.capacity`,
`PLANCK_PROVIDERS_OPENAI_MAX_ATTEMPTS` is `providers.openai.max_attempts`, `PLANCK_WORKSPACES_SRC` is `workspaces.src`; lists are separated by commas.
`*` is a name of your choice. Relative paths start where planck was started; `~/` is your home.

A project's own `.planck/config.toml` may set any key, but has no effect before `planck trust` ([behaviour](behaviour.md#projects)). Secrets are never
written into a file: write `env:NAME` or `file:PATH`.

This page is generated from the code by the test `the_page_of_keys_is_current`; set `PLANCK_BLESS=1` to write it again.
";
