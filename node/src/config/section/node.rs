//! The section `[node]`.

use std::path::PathBuf;

use crate::config::setting::{NamedSettings, Period};

section! {
    /// The name of this node, and how much it takes on.
    Node {
        /// The name for people. Unset: the name of the host.
        name: Option<String> = None;
        /// Properties of the node, which a team's member may require.
        labels: NamedSettings<String> = NamedSettings::default();
        /// The maximum number of agents that the node hosts.
        capacity: u32 = 1_000;
        /// The number of threads that agents run on. Unset: one for each core.
        threads: Option<u32> = None;
        /// How long an agent must be idle before it leaves memory. The next message for it loads it
        /// again.
        park_after: Period = Period::seconds(60);
        /// Whether a session over NATS may work in any directory of this machine, named by an
        /// absolute path, rather than only in the workspaces. Unset: only if NATS is on this
        /// machine.
        absolute_dirs: Option<bool> = None;
        /// The folder for the node's own files.
        data_dir: PathBuf = "~/.planck".into();
        /// How long a drain waits for running turns before it hands them over unfinished.
        drain_timeout: Period = Period::seconds(120);
    }
}
