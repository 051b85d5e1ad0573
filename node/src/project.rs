//! A project's `.planck/` folder: what it contains, what of it the user trusts, and how the trusted
//! part is read.
//!
//! Nothing in it has an effect before `planck trust`. Whatever executes or redirects
//! (`config.toml`, everything below `tools/`, every `TEAM.json`) is trusted by its content. Prompts
//! and skills are texts for a model and are trusted by their folder.

mod scan;
mod snapshot;

mod ledger;
mod standing;

mod admitted;
mod source;

pub use admitted::Admitted;
pub use ledger::{Ledger, LedgerLine, TrustRecord};
pub use snapshot::Snapshot;
pub use source::{NameClash, NotRead, ProjectSource, SourcePart};
pub use standing::{Difference, Project, ProjectStanding, ProjectUse};

/// The name of the folder.
pub const FOLDER: &str = ".planck";

/// The name of the configuration file in it.
pub const CONFIG: &str = "config.toml";

#[cfg(test)]
mod tests;
