//! The HTTP front: a client of the protocol that offers it as JSON, server-sent events and a page
//! for the browser. It keeps no state, so any number of fronts can serve one cluster, and a stream
//! that breaks continues at any of them.

mod body;
mod guard;
mod key;
mod problem;

mod front;
mod server;

mod console;
mod health;
mod meter;
mod openai;
mod openapi;
mod sse;
#[allow(dead_code, unused_imports, reason = "the wires that use it follow")]
mod turn;
mod v1;

pub use front::{Front, FrontOptions, MetricsText, StartDefaults};
pub use guard::AllowedNames;
pub use key::{Key, KeyHash, MalformedHash, Role};

/// The decoders of bodies, for the fuzzer.
#[doc(hidden)]
pub use openai::fuzz;
