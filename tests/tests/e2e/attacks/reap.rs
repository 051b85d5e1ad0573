//! Tool processes that try to outlive their call, use up the machine, or read the node's secrets.

mod escapes;
mod groups;
mod limits;
mod secrets;
