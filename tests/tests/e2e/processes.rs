//! Tools in a real conversation, and the processes that they start.

mod calls;
mod ends;
mod files;
pub mod marker;

pub use marker::{Marker, escaping};
