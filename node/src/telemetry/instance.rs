//! Which node this process is. Traces and metrics name it from the start, so its id is older than
//! the node.

use std::sync::{
    LazyLock,
    atomic::{AtomicBool, Ordering},
};

use planck_common::NodeId;

static ID: LazyLock<NodeId> = LazyLock::new(NodeId::mint);
static TAKEN: AtomicBool = AtomicBool::new(false);

/// What telemetry calls this process.
pub fn id() -> &'static NodeId {
    &ID
}

/// The id of a node that begins: the process's own for the first, a new one for any other.
pub fn take() -> NodeId {
    if TAKEN.swap(true, Ordering::Relaxed) {
        NodeId::mint()
    } else {
        ID.clone()
    }
}
