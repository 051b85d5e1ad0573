//! The environment of this process. Variables that may hold a secret are not in the block that the
//! kernel shows in `/proc/<pid>/environ`; `hardening` keeps them here instead.

use std::{collections::BTreeMap, env, ffi::OsString, sync::OnceLock};

static HANDED_OVER: OnceLock<BTreeMap<OsString, OsString>> = OnceLock::new();

/// Every variable.
pub fn variables() -> impl Iterator<Item = (OsString, OsString)> {
    let kept = HANDED_OVER.get().into_iter().flatten();
    env::vars_os().chain(kept.map(|(name, value)| (name.clone(), value.clone())))
}

/// One variable.
pub fn variable(name: &str) -> Option<OsString> {
    let kept = HANDED_OVER
        .get()
        .and_then(|kept| kept.get(OsString::from(name).as_os_str()));
    kept.cloned().or_else(|| env::var_os(name))
}

/// Takes variables that are no longer in the process's own block; only the first call counts.
pub(crate) fn keep(variables: BTreeMap<OsString, OsString>) {
    let _ = HANDED_OVER.set(variables);
}
