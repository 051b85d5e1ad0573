//! Items for the benchmarks and process tests of this package. They are not part of the library's
//! public interface and change without notice.

/// Providers and HTTP clients for model calls.
pub mod llm {
    pub use planck_providers::secret::Secret;
    pub use planck_providers::{
        ClientOptions, Llm, LlmOptions, ProviderOptions, RequestHead, client,
    };
}

/// The session store and its SQLite implementation.
pub mod store {
    pub use planck_store::{
        Batch, BatchOutcome, Inbox, Log, NewAgent, NewInput, NewSession, SessionRecords,
        sqlite::{SqliteOptions, SqliteStore},
    };
}

/// Tools and their processes.
pub mod tools {
    pub use planck_toolbox::project::ProjectSource;
    pub use planck_toolbox::{
        CallEnd, Caps, Files, Guards, Invocation, Launcher, Roots, Runner, Sandbox, Shell,
        ToolCatalogue, ToolOutcome, Toolbox, UndoneChanges, built_in,
        cgroup::Groups,
        external,
        process::{CommandEnd, Finished, Launch, ReaperHeartbeat, heartbeat::INTERVAL},
        reap::CommandLimits,
        sandbox::SandboxSettings,
    };
}

/// Configuration and start of a whole node.
pub mod node {
    pub use crate::{
        config::{Config, Sources, load},
        node::{RunningNode, open_on},
    };
}

/// The deterministic simulation of the cluster, which a seed controls.
#[cfg(feature = "simulation")]
pub mod simulation {
    pub use crate::cluster::simulation::run_all;
}
