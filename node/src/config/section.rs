//! The sections of the configuration, a file each, and the form they are written in.

/// A struct whose fields are keys: their text is the documentation, their value the default; a `guarded` key may be set by a
/// project's own file only in a trusted folder.
macro_rules! section {
    ($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $about:literal])+ $field:ident: $type:ty = $default:expr $(, $mark:ident)?;)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($(#[doc = $about])+ pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::config::setting::Field for $name {
            fn keys(
                &self,
                at: &$crate::config::key::KeyPath,
                above: $crate::config::key::About,
            ) -> Vec<$crate::config::key::Key> {
                use $crate::config::key::About;
                let mut keys = Vec::new();
                $(
                    let guarded = above.guarded || section!(@ $($mark)?);
                    let about = About { text: concat!($($about),+), guarded };
                    keys.extend(self.$field.keys(&at.then(stringify!($field)), about));
                )*
                keys
            }

            fn read(self, at: &$crate::config::key::KeyPath, values: &mut $crate::config::values::Values) -> Self {
                Self { $($field: self.$field.read(&at.then(stringify!($field)), values),)* }
            }

            fn show(
                &self,
                at: &$crate::config::key::KeyPath,
                into: &mut Vec<($crate::config::key::KeyPath, Option<String>)>,
            ) {
                $($crate::config::setting::Field::show(&self.$field, &at.then(stringify!($field)), into);)*
            }
        }
    };
    (@) => { false };
    (@ guarded) => { true };
}

mod cluster;
mod limits;
mod models;
mod nats;
mod node;
mod providers;
mod sidecars;
mod store;
mod telemetry;
mod tools;

use std::path::PathBuf;

pub use cluster::Cluster;
pub use limits::{Compaction, Limits, SessionLimits};
pub use models::{ModelEntry, Models, Prices};
pub use nats::Nats;
pub use node::Node;
pub use providers::{NAMES as PROVIDER_NAMES, Provider, Providers};
pub use sidecars::{PlainTool, Sidecars};
pub use store::Store;
pub use telemetry::Telemetry;
pub use tools::{ToolLimits, Tools};

use super::setting::Named;

section! {
    /// Everything that can be configured.
    Config {
        /// This node.
        node: Node = Node::default();
        /// A named root of working directories: the path at which this node sees it.
        workspaces: Named<PathBuf> = Named::default(), guarded;
        /// The link to NATS.
        nats: Nats = Nats::default(), guarded;
        /// Where sessions are kept.
        store: Store = Store::default();
        /// Models.
        models: Models = Models::default();
        /// Providers.
        providers: Providers = Providers::default();
        /// Limits.
        limits: Limits = Limits::default();
        /// Compaction.
        compaction: Compaction = Compaction::default();
        /// Tools.
        tools: Tools = Tools::default();
        /// Team templates.
        teams: Dirs = Dirs::planck("teams");
        /// Skills.
        skills: Dirs = Dirs::planck("skills");
        /// Sidecars.
        sidecars: Sidecars = Sidecars::default();
        /// Who is alive.
        cluster: Cluster = Cluster::default();
        /// Logs, traces, metrics.
        telemetry: Telemetry = Telemetry::default();
    }
}

section! {
    /// Folders that are searched in order.
    Dirs {
        /// Folders searched in order; the first that has a name wins.
        dirs: Vec<PathBuf> = Vec::new();
    }
}

impl Dirs {
    fn planck(kind: &str) -> Self {
        Self { dirs: vec![format!(".planck/{kind}").into(), format!("~/.planck/{kind}").into()] }
    }
}
