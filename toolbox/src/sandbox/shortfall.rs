//! Why a node has no better sandbox, and what its user can do about it.

use std::{env, path::Path};

/// The reason why the sandbox is not a better one, and what makes it better. Both are empty for the
/// best sandbox.
#[derive(Debug, Clone, Default)]
pub(super) struct Shortfall {
    pub why: String,
    pub remedy: String,
}

/// A call that bubblewrap makes and that machines or container engines refuse.
struct RefusedCall {
    /// Parts of the messages of `bwrap` when the call fails.
    said: &'static [&'static str],
    call: &'static str,
    /// The advice for a user whose node runs in a container, and for one whose node does not.
    in_container: &'static str,
    on_machine: &'static str,
}

const REFUSED_CALLS: &[RefusedCall] = &[
    RefusedCall {
        said: &["new namespace"],
        call: "`clone` with `CLONE_NEWUSER`",
        in_container: "run the container with deploy/seccomp.json: `security_opt` in docker-compose.yml, \
                       `sandbox.seccompProfile` of the Helm chart",
        on_machine: "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1`, and \
                     `user.max_user_namespaces` above 0",
    },
    RefusedCall {
        said: &["uid map", "gid map", "loopback"],
        call: "the use of a new user namespace",
        in_container: "AppArmor of the host restricts user namespaces: `sysctl \
                       kernel.apparmor_restrict_unprivileged_userns=0` there",
        on_machine: "AppArmor restricts user namespaces: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or \
                     a profile for bwrap with `userns`",
    },
    RefusedCall {
        said: &["make / slave", "mount tmpfs", "pivot_root"],
        call: "`mount`",
        in_container: "run the container without the AppArmor profile of its engine: `apparmor` in `security_opt` of \
                       docker-compose.yml, `sandbox.appArmorProfile` of the Helm chart; with SELinux `label=disable`",
        on_machine: "AppArmor or SELinux refuses mounts: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or \
                     a profile for bwrap",
    },
];

impl Shortfall {
    pub fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns what keeps an installed bubblewrap from working, by the message of a trial that
    /// failed.
    pub fn of_trial(said: &str) -> Self {
        Self::of_trial_in(said, is_container())
    }

    fn of_trial_in(said: &str, is_container: bool) -> Self {
        let refused = REFUSED_CALLS
            .iter()
            .find(|refused| refused.said.iter().any(|part| said.contains(part)));
        // What `bwrap` then advises concerns machines only.
        let failed = said.split(", likely").next().unwrap_or(said);
        match refused {
            Some(refused) => Self::new(
                format!(
                    "bubblewrap does not work here, because {} is refused: {failed}",
                    refused.call
                ),
                match is_container {
                    true => refused.in_container,
                    false => refused.on_machine,
                },
            ),
            None => Self::new(
                format!("bubblewrap does not work here: {said}"),
                "`bwrap --unshare-all --ro-bind / / true` shows what is refused here",
            ),
        }
    }
}

/// Returns whether this process runs in a container of Docker, Podman or Kubernetes.
fn is_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists())
        || env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_call_is_named_with_what_allows_it() {
        for (said, call, container, machine) in [
            (
                "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
                "CLONE_NEWUSER",
                "deploy/seccomp.json",
                "unprivileged_userns_clone",
            ),
            (
                "bwrap: Failed to make / slave: Permission denied",
                "`mount`",
                "appArmorProfile",
                "AppArmor",
            ),
            (
                "bwrap: setting up uid map: Permission denied",
                "user namespace",
                "apparmor_restrict",
                "apparmor_restrict",
            ),
        ] {
            for (is_container, wanted) in [(true, container), (false, machine)] {
                let told = Shortfall::of_trial_in(said, is_container);
                assert!(
                    told.why.contains(call) && told.why.contains("bwrap: "),
                    "{told:?}"
                );
                assert!(
                    told.remedy.contains(wanted) && !told.why.contains("likely"),
                    "{told:?}"
                );
            }
        }
        let told = Shortfall::of_trial_in("a trial does not end within 5s", false);
        assert!(
            told.why.ends_with("a trial does not end within 5s") && told.remedy.contains("bwrap")
        );
    }
}
