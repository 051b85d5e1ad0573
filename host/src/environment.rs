//! The environment variables of this process. The kernel shows a process's original environment in
//! `/proc/<pid>/environ`. `hardening` therefore executes `planck` again without the variables that
//! may hold a secret, and passes these variables to this module.

use std::{collections::BTreeMap, env, ffi::OsString, sync::OnceLock};

static HANDED_OVER: OnceLock<BTreeMap<OsString, OsString>> = OnceLock::new();

/// Returns all variables with their values.
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let kept = HANDED_OVER.get().into_iter().flatten();
    env::vars_os().chain(kept.map(|(name, value)| (name.clone(), value.clone())))
}

/// Returns the value of a variable, or `None` if it is not set.
pub fn variable(name: &str) -> Option<OsString> {
    let kept = HANDED_OVER
        .get()
        .and_then(|kept| kept.get(OsString::from(name).as_os_str()));
    kept.cloned().or_else(|| env::var_os(name))
}

/// Stores the variables that are no longer in the process's own environment. Only the first call
/// has an effect.
pub fn keep(variables: BTreeMap<OsString, OsString>) {
    let _ = HANDED_OVER.set(variables);
}
