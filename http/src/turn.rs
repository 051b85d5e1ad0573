//! The turns of an agent that answer a prompt, read from the feed of the session. The wires of
//! ready-made clients are written from the parts that `planck-client` makes of the events.

mod opening;
mod source;
mod stream;

pub use opening::{Opening, opening_of};
pub use source::{Next, TurnSource};
pub use stream::{Turn, is_hidden, is_working, orchestrator, place_of, running_turn};
