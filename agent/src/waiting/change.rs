//! Calls that wait until a person has decided about changes of protected files: a call that made
//! such changes, and a call that did not run because changes by another one are undecided.

use std::{collections::BTreeSet, time::Duration};

use planck_common::{
    CallId,
    event::Event,
    wait::{ProtectedChange, WaitAnswer, WaitDecision, WaitKind, WaitOpened},
};
use serde::Serialize;

use super::{
    Decided,
    events::{one_line, raw},
};
use crate::{
    Agent, StepEffects, Ticket, digest,
    outcome::{ABORTED, CallEnd, ToolOutcome},
    phase::{Turn, TurnEnding},
    round::{Call, CallNames, KeptResult, OpenWait, Round, remarked},
    saves::Rows,
};

/// Why the calls of a turn are cancelled if a person does not keep its changes.
const NOT_KEPT: &str = "a person did not keep the changes of protected files";

/// The `request` of a wait about changes.
#[derive(Serialize)]
struct ChangeRequest<'a> {
    tool: &'a str,
    /// The calls that made the changes.
    calls: BTreeSet<&'a CallId>,
    changes: &'a [ProtectedChange],
    /// Absent if the call did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a KeptResult>,
}

impl Agent {
    /// Lets a running call wait whose outcome has changes of protected files.
    pub(crate) fn ask_about_changes(
        &mut self,
        (mut turn, mut round): (Box<Turn>, Round),
        ticket: Ticket,
        outcome: ToolOutcome,
        elapsed: Duration,
        step: &mut StepEffects,
    ) {
        let mut rows = Rows::at(self.place(step.now));
        outcome.events.iter().for_each(|event| rows.event(event));
        let result = (outcome.end != CallEnd::NotRun).then(|| KeptResult {
            text: outcome.text_for_model(ABORTED).into_owned(),
            error: outcome.is_error(),
            duration_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        });
        turn.responded.extend(outcome.responded);
        if let Some(call) = round.running_call(ticket) {
            let opened = self.change_question(&call.names, &outcome.changes, result.as_ref(), step);
            call.wait(&opened);
            rows.event(&Event::WaitOpened(opened));
        }
        self.run(turn, round, Vec::new(), rows, step);
    }

    fn change_question(
        &self,
        call: &CallNames,
        changes: &[ProtectedChange],
        result: Option<&KeptResult>,
        step: &StepEffects,
    ) -> WaitOpened {
        let request = raw(&ChangeRequest {
            tool: &call.name,
            calls: changes.iter().map(|change| &change.call).collect(),
            changes,
            result,
        });
        let paths: Vec<&str> = changes.iter().map(|change| &*change.path).collect();
        let (tool, paths) = (&call.name, paths.join(", "));
        let title = match result {
            Some(_) => format!("{tool} changed protected files: {paths}"),
            None => format!("{tool} has to wait, because protected files were changed: {paths}"),
        };
        WaitOpened {
            id: call.call_id.change_wait(),
            call_id: Some(call.call_id.clone()),
            kind: WaitKind::Change,
            title: one_line(&title),
            digest: digest::of_call(tool, "change", request.get()),
            request,
            options: None,
            schema: None,
            rule: None,
            expires_at: self.expiry(step.now),
        }
    }
}

/// Returns what an answer makes of a call that waits because of changes.
pub(super) fn meaning(call: &Call, wait: &OpenWait, answer: &WaitAnswer) -> Decided {
    match (answer.decision, &wait.result) {
        (WaitDecision::Allow, Some(KeptResult { text, error, .. })) => Decided::End {
            text: remarked(text.clone(), call.remark.as_deref()),
            error: *error,
        },
        (WaitDecision::Allow, None) => Decided::RunStarted,
        (_, result) => {
            let before = result.as_ref().map(|kept| format!("{}\n\n", kept.text));
            let reason = answer.reason.as_ref().map(|why| format!(": {why}"));
            let (before, reason) = (before.unwrap_or_default(), reason.unwrap_or_default());
            Decided::End {
                text: format!("{before}{NOT_KEPT}{reason}"),
                error: true,
            }
        }
    }
}

/// Returns why the calls of a turn are cancelled, and how the turn ends, if a person does not keep
/// the changes.
pub(super) fn not_kept() -> (&'static str, TurnEnding) {
    let reason = Some(NOT_KEPT.to_owned());
    (NOT_KEPT, TurnEnding::Aborted { reason })
}
