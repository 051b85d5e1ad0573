//! Tools at work for a real conversation, and what becomes of the processes they start.

mod calls;
mod ends;
mod files;
pub mod marker;

pub use marker::{Marker, escaping};
