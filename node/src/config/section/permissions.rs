//! The sections `[permissions]` and `[waits]`.

use std::time::Duration;

use planck_common::permission::{self, PermissionMode};

use crate::config::setting::{Period, RuleList};

section! {
    /// Which tool calls run, which wait for an approval, and which are refused.
    Permissions {
        /// What happens to the calls that no rule matches: all run (`auto`), those that may change
        /// something ask (`careful`), or those are refused (`read-only`).
        mode: PermissionMode = PermissionMode::Auto;
        /// The rules for the agents of sessions that start on this node. The first rule that
        /// matches a call decides. `docs/permissions.md` describes the fields.
        rules: RuleList = RuleList::default();
    }
}

section! {
    /// How long agents wait for a person or a client.
    Waits {
        /// How long a tool call waits for its approval before it is denied, and how long a question
        /// waits for its answer. `0s` means without end.
        expire_after: Period = Period::seconds(24 * 3_600);
    }
}

impl Permissions {
    /// Returns the layer that comes first in the permissions of every agent.
    pub fn layer(&self) -> permission::Permissions {
        permission::Permissions {
            mode: self.mode,
            rules: self.rules.0.clone(),
        }
    }
}

impl Waits {
    /// Returns how long a wait is open, or `None` if it does not expire.
    pub fn expiry(&self) -> Option<Duration> {
        Some(self.expire_after.0).filter(|period| !period.is_zero())
    }
}
