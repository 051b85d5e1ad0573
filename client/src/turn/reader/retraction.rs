//! Ends a turn if one of its events turns out not to be in the log.

use planck_common::event::EventKind;

use super::{TurnPhase, TurnReader};
use crate::{Retracted, turn::TurnEvent};

impl TurnReader {
    /// Takes that an event is not in the log. Another program published it in the agent's name, and
    /// what followed from it cannot be taken back, so a turn in which it was shown fails.
    pub(super) fn retract(&mut self, retracted: &Retracted, out: &mut Vec<TurnEvent>) {
        self.last = self.last.min(retracted.seq - 1);
        let (TurnPhase::Running { first, .. } | TurnPhase::Between { first }) = self.phase else {
            return;
        };
        if retracted.agent_id != self.agent || retracted.seq < first || !shows(&retracted.kind) {
            return;
        }
        let reason = "another program published an event in the agent's name; read the turn again";
        self.fail("retracted", reason, out);
    }
}

/// Returns whether an event of this kind has a part of a turn.
fn shows(kind: &str) -> bool {
    use EventKind::{
        Message, ToolEnd, TurnStart, WaitClosed, WaitOpened, Warning, WorkerExit, WorkerSpawned,
    };
    EventKind::find(kind).is_some_and(|kind| {
        matches!(
            kind,
            TurnStart
                | Message
                | ToolEnd
                | WaitOpened
                | WaitClosed
                | Warning
                | WorkerSpawned
                | WorkerExit
        )
    })
}
