//! The id of the node in this process. Traces and metrics contain it from the start, so it is
//! created before the node.

use std::sync::{
    LazyLock,
    atomic::{AtomicBool, Ordering},
};

use planck_common::NodeId;

static ID: LazyLock<NodeId> = LazyLock::new(NodeId::mint);
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the id of this process in telemetry.
pub fn id() -> &'static NodeId {
    &ID
}

/// Returns the id for a node that starts: the process's own for the first one, and a new id for any
/// other.
pub fn take() -> NodeId {
    if TAKEN.swap(true, Ordering::Relaxed) {
        NodeId::mint()
    } else {
        ID.clone()
    }
}
