//! The HTTP front: a client of the protocol that offers it as JSON, server-sent events and a page
//! for the browser. It keeps no state, so any number of fronts can serve one cluster, and a stream
//! that breaks continues at any of them.

mod body;
mod guard;
mod key;
mod problem;
mod route;

mod feed;
mod front;
mod server;

mod ag_ui;
mod console;
mod health;
mod mcp;
mod openai;
mod openapi;
mod sse;
mod turn;
mod ui;
mod v1;

#[doc(hidden)]
pub mod fuzz;

pub use front::{Front, FrontOptions, MetricsText, StartDefaults};
pub use guard::AllowedNames;
pub use key::{Key, KeyHash, Keys, MalformedHash, Role};
