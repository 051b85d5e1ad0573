//! The sections of the configuration, and the macro that defines them.

/// Defines a struct whose fields are keys of the configuration. The doc comment of a field becomes
/// the documentation of its key, and the expression after `=` is the default.
macro_rules! section {
    ($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $about:literal])+ $field:ident: $type:ty = $default:expr;)*
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
                at: &$crate::config::values::KeyPath,
                _: &'static str,
            ) -> Vec<$crate::config::values::KeyDescription> {
                let mut keys = Vec::new();
                $(keys.extend(self.$field.keys(&at.then(stringify!($field)), concat!($($about),+)));)*
                keys
            }

            fn read(self, at: &$crate::config::values::KeyPath, values: &mut $crate::config::values::Values) -> Self {
                Self { $($field: self.$field.read(&at.then(stringify!($field)), values),)* }
            }

            fn show(
                &self,
                at: &$crate::config::values::KeyPath,
                into: &mut Vec<($crate::config::values::KeyPath, Option<String>)>,
            ) {
                $($crate::config::setting::Field::show(&self.$field, &at.then(stringify!($field)), into);)*
            }
        }
    };
}

mod agents;
mod node;

use std::{collections::BTreeSet, path::PathBuf};

pub use agents::{
    AnswerLimits, Compaction, InboxLimits, Limits, ModelEntry, Models, Permissions, Prices,
    Provider, Providers, Waits,
};
pub use node::{
    Cluster, Http, McpServer, Nats, Node, PlainTool, Sidecars, Store, Telemetry, Tools,
};

use super::{
    setting::{Field, NamedSettings},
    values::{KeyDescription, KeyPath, Values},
};
use planck_toolbox::project::{Admitted, ProjectSource, SourcePart};

section! {
    /// Everything that can be configured.
    Config {
        /// The settings of this node.
        node: Node = Node::default();
        /// A named root of working directories: its path on this node.
        workspaces: NamedSettings<PathBuf> = NamedSettings::default();
        /// The connection to NATS.
        nats: Nats = Nats::default();
        /// The store of the sessions.
        store: Store = Store::default();
        /// The models.
        models: Models = Models::default();
        /// The providers of models.
        providers: Providers = Providers::default();
        /// The limits of turns, agents and sessions.
        limits: Limits = Limits::default();
        /// The compaction of conversations.
        compaction: Compaction = Compaction::default();
        /// The tools.
        tools: Tools = Tools::default();
        /// The permissions of agents.
        permissions: Permissions = Permissions::default();
        /// The waits of agents for people and clients.
        waits: Waits = Waits::default();
        /// The folders of team templates.
        teams: Dirs = Dirs::planck("teams");
        /// The folders of skills.
        skills: Dirs = Dirs::planck("skills");
        /// The sidecars.
        sidecars: Sidecars = Sidecars::default();
        /// The MCP servers of this node.
        mcp: NamedSettings<McpServer> = NamedSettings::default();
        /// Failure detection in the cluster.
        cluster: Cluster = Cluster::default();
        /// The HTTP front.
        http: Http = Http::default();
        /// Logs, traces and metrics.
        telemetry: Telemetry = Telemetry::default();
        /// The project whose folders of tools, teams and skills are used in addition to the
        /// configured ones. No key sets it.
        project: ProjectPart = ProjectPart::default();
    }
}

section! {
    /// Folders that are searched in order.
    Dirs {
        /// Folders that are searched in order; the first one with a name wins. A trusted project's
        /// own folder is searched too, and a name that is in both is an error.
        dirs: Vec<PathBuf> = Vec::new();
    }
}

impl Dirs {
    fn planck(kind: &str) -> Self {
        Self {
            dirs: vec![format!("~/.planck/{kind}").into()],
        }
    }
}

/// The project that the user trusts, if planck was started in one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProjectPart(pub Option<Admitted>);

impl Field for ProjectPart {
    fn keys(&self, _: &KeyPath, _: &'static str) -> Vec<KeyDescription> {
        Vec::new()
    }

    fn read(self, _: &KeyPath, _: &mut Values) -> Self {
        self
    }

    fn show(&self, _: &KeyPath, _: &mut Vec<(KeyPath, Option<String>)>) {}
}

impl Config {
    /// Returns the folders for one part: the configured ones, then the project's if it is in use,
    /// without duplicates.
    pub fn sources(&self, part: SourcePart) -> Vec<ProjectSource> {
        let dirs = match part {
            SourcePart::Tools => &self.tools.dirs,
            SourcePart::Teams => &self.teams.dirs,
            SourcePart::Skills => &self.skills.dirs,
        };
        let admitted = self
            .project
            .0
            .iter()
            .filter(|admitted| admitted.has_folders());
        let project = admitted.flat_map(|admitted| {
            let offered = (part == SourcePart::Skills).then(|| ProjectSource::offered(admitted));
            std::iter::once(ProjectSource::of_project(admitted, part))
                .chain(offered.into_iter().flatten())
        });
        let mut known = BTreeSet::new();
        dirs.iter()
            .map(|dir| ProjectSource::named(dir))
            .chain(project)
            .filter(|source| known.insert(source.dir()))
            .collect()
    }
}
