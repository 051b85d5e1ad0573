//! Rows of the log.

use planck_common::{Seq, envelope::EventPlace, event::EventKind};

/// A row of the log, as an agent reads it when it is restored.
#[derive(Debug, Clone)]
pub struct LogRow {
    pub seq: Seq,
    pub kind: EventKind,
    pub place: EventPlace,
    pub body: String,
}
