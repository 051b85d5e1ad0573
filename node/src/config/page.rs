//! Generates the page `docs/configuration.md` from the sections. A test checks that the file is up
//! to date.

use std::fmt::Write as _;

use super::{
    environment::honoured,
    key::{KeyDescription, KeyPath},
    keys,
};

/// Returns the text of `docs/configuration.md`.
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

fn row(key: &KeyDescription) -> String {
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

A project's own `.planck/config.toml` may set any key except those of `[permissions]` and `[http]`, but has no effect before `planck trust` ([behaviour](behaviour.md#projects)). Secrets are never
written into a file: write `env:NAME` or `file:PATH`.

This page is generated from the code by the test `the_page_of_keys_is_current`; set `PLANCK_BLESS=1` to write it again.
";

/// Returns the variable of another program that sets a key, or `None` if there is none or the key
/// is a pattern.
fn honoured_name(key: &KeyPath) -> Option<&'static str> {
    honoured()
        .find(|variable| variable.key() == *key)
        .map(|variable| variable.name)
}
