//! The events that end waits.

use planck_common::{
    CallId,
    event::Event,
    wait::{WaitAnswer, WaitClosed, WaitDecision},
};

use crate::round::CallNames;

/// Returns the event that ends a wait with this answer. `call` is the call that waited, if there is
/// one.
pub fn closed(id: CallId, call: Option<&CallNames>, answer: &WaitAnswer) -> Event {
    Event::WaitClosed(WaitClosed {
        call_id: other_than(&id, call),
        id,
        decision: answer.decision,
        by: answer.by.clone(),
        reason: answer.reason.clone(),
        scope: answer.scope,
    })
}

/// Returns the event that withdraws a wait.
pub fn withdrawn(id: CallId, call: Option<&CallNames>, why: &str) -> Event {
    Event::WaitClosed(WaitClosed {
        call_id: other_than(&id, call),
        id,
        decision: WaitDecision::Withdrawn,
        by: None,
        reason: Some(why.into()),
        scope: None,
    })
}

/// Returns the id of a call if its wait has another one.
fn other_than(wait: &CallId, call: Option<&CallNames>) -> Option<CallId> {
    let call = call.map(|call| &call.call_id);
    call.filter(|call| *call != wait).cloned()
}
