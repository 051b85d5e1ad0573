//! `[node]`

use std::path::PathBuf;

use crate::config::setting::{Named, Period};

section! {
    /// What this node is called, and how much it takes on.
    Node {
        /// What people call it; the host's name unless said.
        name: Option<String> = None;
        /// What it is good for; a team's member may ask for such labels.
        labels: Named<String> = Named::default();
        /// How many agents it hosts at most.
        capacity: u32 = 1_000;
        /// Threads that agents run on; one for each core unless said.
        threads: Option<u32> = None;
        /// An agent idle for so long leaves memory, until something comes for it.
        park_after: Period = Period::seconds(60);
        /// Whether a session over NATS may work in any directory of this machine, named by an
        /// absolute path, rather than in the workspaces alone. Unset: only where NATS is on this
        /// machine.
        absolute_dirs: Option<bool> = None;
        /// What this node keeps for itself.
        data_dir: PathBuf = "~/.planck".into();
        /// How long a drain waits for running turns before it hands them over as they are.
        drain_timeout: Period = Period::seconds(120);
    }
}
