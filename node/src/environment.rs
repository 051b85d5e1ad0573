//! The environment of this process. Variables that may hold a secret are not in the block that the
//! kernel shows in `/proc/<pid>/environ`; `hardening` passes them to this module instead.

use std::{collections::BTreeMap, env, ffi::OsString, sync::OnceLock};

static HANDED_OVER: OnceLock<BTreeMap<OsString, OsString>> = OnceLock::new();

/// Returns every variable.
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let kept = HANDED_OVER.get().into_iter().flatten();
    env::vars_os().chain(kept.map(|(name, value)| (name.clone(), value.clone())))
}

/// Returns one variable.
pub fn variable(name: &str) -> Option<OsString> {
    let kept = HANDED_OVER
        .get()
        .and_then(|kept| kept.get(OsString::from(name).as_os_str()));
    kept.cloned().or_else(|| env::var_os(name))
}

/// Stores variables that are no longer in the process's own block. Only the first call has an
/// effect.
pub(crate) fn keep(variables: BTreeMap<OsString, OsString>) {
    let _ = HANDED_OVER.set(variables);
}
