//! The id of the first node in this process. Traces and metrics contain the id from the start, so
//! the id is created before the node.

use std::sync::{
    LazyLock,
    atomic::{AtomicBool, Ordering},
};

use planck_common::NodeId;

static ID: LazyLock<NodeId> = LazyLock::new(NodeId::mint);
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the id that traces and metrics of this process contain.
pub fn id() -> &'static NodeId {
    &ID
}

/// Returns the id for a new node. The first node in a process gets the id of the process's
/// telemetry, and every other node a new id.
pub fn take() -> NodeId {
    if TAKEN.swap(true, Ordering::Relaxed) {
        NodeId::mint()
    } else {
        ID.clone()
    }
}
