//! The `.planck/` folder of a project and its skills for other programs: what they contain, which
//! part of them the user trusts, and how the trusted part is read.
//!
//! Nothing in the folder has an effect before the user trusts the project. `config.toml`,
//! everything below `tools/` and every `TEAM.json` can execute or redirect something, so these
//! files are trusted by their content. A changed file has no effect until the user trusts the
//! project again. Prompts and skills are texts for a model. They are trusted together with the
//! folder and may change.

mod scan;
mod snapshot;

mod ledger;
mod standing;

mod admitted;
mod offered;
mod source;

pub use admitted::Admitted;
pub use ledger::{Ledger, LedgerLine, TrustRecord};
pub use offered::{OfferedSkill, SKILL_FOLDERS};
pub use snapshot::Snapshot;
pub use source::{NameClash, NotRead, ProjectSource, SourcePart};
pub use standing::{Difference, OfferedSkills, Project, ProjectStanding, ProjectUse};

/// The name of a project's folder for Planck.
pub const FOLDER: &str = ".planck";

/// The name of the configuration file in that folder.
pub const CONFIG: &str = "config.toml";

#[cfg(test)]
mod tests;
