//! Teams: the templates that users write, and the resolution of their members into specs that any
//! node can start.

pub mod tool_names;

pub mod mistake;

pub mod agents_file;
pub mod template;

pub mod context;
pub mod grant;
mod permissions;
pub mod resolve;
pub mod spawn;

pub mod library;
pub mod roster;

pub use context::{KnownModels, TeamContext};
pub use library::TeamLibrary;
pub use mistake::{TemplateError, TemplateErrors};
pub use resolve::resolve;
pub use spawn::{Spawned, spawn};
pub use template::{TeamTemplate, TemplateFile, find, inspect, list, load};

#[cfg(test)]
mod tests;
