//! Calls that wait: for a person who allows them, answers the model's question or decides about changes
//! of protected files, or for the client that runs the tool itself.

mod events;

use std::{collections::BTreeSet, time::Duration};

use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use planck_common::{
    CallId, Timestamp,
    event::{Event, ToolEffect},
    permission::RuleAction,
    sidecar::{ToolAnswer, ToolQuestion},
    wait::{ProtectedChange, WaitAnswer, WaitClosed, WaitDecision, WaitKind, WaitOpened},
};

use self::events::{one_line, raw};
use crate::{
    Agent, Effect, StepEffects, Ticket,
    answer::{DENIED, denied},
    effect::ToolRun,
    outcome::{ABORTED, CallEnd, ToolOutcome},
    permission,
    phase::{Turn, TurnActivity, TurnEnding},
    round::{Call, CallNames, KeptResult, OpenWait, Round, remarked},
    saves::Rows,
};

pub(super) use self::events::{closed, withdrawn};

/// What an answer makes of a call.
enum Decided {
    /// The call of a tool with this effect runs with these arguments.
    Run(ToolEffect, Box<RawValue>),
    /// The call, which is already in the log as started, runs now.
    RunStarted,
    /// The call, which asked a question, runs again with the answer.
    RunAnswered(ToolAnswer),
    /// The call ends with this result.
    End { text: String, error: bool },
    /// The permissions deny the arguments that a person wrote.
    Denied { why: String },
}

impl Agent {
    /// Handles the answer to a wait: the call runs, or ends with a result. If the tool has changed
    /// since a person was asked, an approval does not hold, and the wait is opened again.
    pub(super) fn decided(&mut self, id: &CallId, answer: &WaitAnswer, step: &mut StepEffects) {
        if self.decides_limit(id) {
            return self.limit_decided(answer, step);
        }
        let waits = |activity: &TurnActivity| match activity {
            TurnActivity::UsingTools(round) => round.waits().any(|(_, wait)| wait.id == *id),
            TurnActivity::Saving
            | TurnActivity::Streaming { .. }
            | TurnActivity::Retrying { .. }
            | TurnActivity::WindingDown { .. }
            | TurnActivity::Compacting { .. }
            | TurnActivity::AtLimit(_) => false,
        };
        let Some((turn, TurnActivity::UsingTools(mut round))) = self.phase.take_if(waits) else {
            return;
        };
        let mut rows = Rows::at(self.place(step.now));
        let Some((call, wait)) = round.take_wait(id) else {
            return self.run(turn, round, Vec::new(), rows, step);
        };
        let is_kept = wait.kind != WaitKind::Change || answer.decision == WaitDecision::Allow;
        let run = self.settle_wait(call, wait, answer, &mut rows, step);
        if !is_kept {
            let (why, ending) = not_kept();
            return self.wind_down(turn, round, rows, why, ending, step);
        }
        self.run(turn, round, run.into_iter().collect(), rows, step);
    }

    /// Decides about a call whose wait has ended. Returns the run to start when the rows are saved,
    /// if the call runs now.
    fn settle_wait(
        &mut self,
        call: &mut Call,
        wait: OpenWait,
        answer: &WaitAnswer,
        rows: &mut Rows,
        step: &StepEffects,
    ) -> Option<ToolRun> {
        if let Some(opened) = self.asked_again(call, &wait, answer, step) {
            call.wait(&opened);
            rows.event(&Event::WaitOpened(opened));
            return None;
        }
        let decided = self.meaning(call, &wait, answer);
        let closed = match &decided {
            Decided::Denied { why } => Event::WaitClosed(WaitClosed {
                id: wait.id.clone(),
                call_id: None,
                decision: WaitDecision::Deny,
                by: answer.by.clone(),
                reason: Some(why.clone()),
                scope: None,
            }),
            Decided::Run(..)
            | Decided::RunStarted
            | Decided::RunAnswered(_)
            | Decided::End { .. } => closed(wait.id.clone(), Some(&call.names), answer),
        };
        rows.event(&closed);
        let (text, error) = match decided {
            Decided::Run(effect, args) => {
                call.args = args;
                return Some(self.start(call, effect, rows, step));
            }
            Decided::RunStarted => {
                return Some(self.run_call(call, true, step));
            }
            Decided::RunAnswered(answer) => {
                let run = self.run_call(call, false, step);
                return Some(ToolRun {
                    answer: Some(answer),
                    ..run
                });
            }
            Decided::End { text, error } => (text, error),
            Decided::Denied { why } => (denied(Some(&why)), true),
        };
        let duration_ms = wait.result.as_ref().map_or(0, |kept| kept.duration_ms);
        rows.event(&Event::ToolEnd(call.end(text, error, duration_ms)));
        None
    }

    /// Returns a new opening of the wait if an approval was given for another description of the
    /// tool than the present one.
    fn asked_again(
        &self,
        call: &Call,
        wait: &OpenWait,
        answer: &WaitAnswer,
        step: &StepEffects,
    ) -> Option<WaitOpened> {
        let tool = self.config.tool(&call.names.name)?;
        let is_allowed = wait.kind == WaitKind::Approval && answer.decision == WaitDecision::Allow;
        let now = digest_of_call(&tool.name, &tool.description, call.args.get());
        if !is_allowed || now == wait.digest {
            return None;
        }
        let why = Some("the tool's description has changed since this call was allowed");
        self.opening(wait.kind, tool, &call.names, &call.args, why, step)
            .ok()
    }

    fn meaning(&self, call: &Call, wait: &OpenWait, answer: &WaitAnswer) -> Decided {
        let error = |text: String| Decided::End { text, error: true };
        if wait.kind == WaitKind::Change {
            return meaning_of_change(call, wait, answer);
        }
        if wait.is_of_run {
            return Decided::RunAnswered(answer_of(wait, answer));
        }
        match answer.decision {
            WaitDecision::Allow if wait.kind == WaitKind::Approval => {
                let Some(tool) = self.config.tool(&call.names.name) else {
                    return error(self.no_such_tool(&call.names.name));
                };
                let args = answer.args.as_ref().unwrap_or(&call.args).clone();
                let leaves = |args: &RawValue| permission::leaves_sandbox(tool, args.get());
                if leaves(&args) && !leaves(&call.args) {
                    let why = "a call that was to run in the sandbox does not leave it";
                    return Decided::Denied { why: why.into() };
                }
                let verdict = self.permits(tool, &args);
                if verdict.action == RuleAction::Deny {
                    let why = verdict.why.unwrap_or_else(|| DENIED.into());
                    return Decided::Denied { why };
                }
                Decided::Run(tool.effect, args)
            }
            WaitDecision::Answer if wait.kind != WaitKind::Approval => Decided::End {
                text: text_of(answer.value.as_deref()),
                error: false,
            },
            WaitDecision::Error if wait.kind == WaitKind::ClientTool => error(
                answer
                    .reason
                    .clone()
                    .unwrap_or_else(|| "the client's tool failed".into()),
            ),
            WaitDecision::Deny => {
                let by = answer.by.as_deref().unwrap_or("a person");
                error(match answer.reason.as_deref() {
                    Some(reason) => format!("not run: {by} denied it: {reason}"),
                    None => format!("not run: {by} denied it, without a reason"),
                })
            }
            WaitDecision::Expired => {
                let why = answer.reason.as_deref();
                error(format!(
                    "not run: {}",
                    why.unwrap_or("nobody answered in time")
                ))
            }
            // The gateway refuses an answer that does not fit the kind of the wait. What is unclear
            // never runs a call.
            WaitDecision::Allow
            | WaitDecision::Answer
            | WaitDecision::Error
            | WaitDecision::Withdrawn => {
                error("not run: the answer does not fit the question".into())
            }
        }
    }

    /// Cancels the timer that ends the turn after its maximum duration.
    pub(super) fn stop_clock(&self, turn: &mut Turn, step: &mut StepEffects) {
        if let Some(ticket) = turn.deadline.take() {
            step.act(Effect::CancelTimer { ticket });
        }
    }

    /// Returns when a wait that is opened now expires.
    pub(super) fn expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let after = self.settings.wait_expires?;
        let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
        Some(Timestamp::from_millis(now.millis().saturating_add(after)))
    }

    /// Stops the turn's clock while a call waits, and starts it again when none does.
    pub(super) fn set_clock(&mut self, turn: &mut Turn, round: &Round, step: &mut StepEffects) {
        if round.waits().next().is_some() {
            turn.pause(step.now);
            self.stop_clock(turn, step);
        } else if turn.resume(step.now) {
            self.set_deadline(turn, step);
        }
    }
}

/// Ends the calls that wait, because the turn ends.
pub(super) fn withdraw_waits(round: &mut Round, why: &str, rows: &mut Rows) {
    for call in round.calls() {
        if let Some(wait) = call.take_wait() {
            withdraw(call, wait, why, rows);
        }
    }
}

/// Ends a call whose wait is withdrawn.
pub(super) fn withdraw(call: &mut Call, wait: OpenWait, why: &str, rows: &mut Rows) {
    rows.event(&withdrawn(wait.id, Some(&call.names), why));
    let why = match wait.is_of_run {
        true => NOT_ANSWERED,
        false => why,
    };
    let KeptResult {
        text,
        error,
        duration_ms,
    } = wait.result.unwrap_or_else(|| KeptResult {
        text: why.into(),
        error: true,
        duration_ms: 0,
    });
    rows.event(&Event::ToolEnd(call.end(text, error, duration_ms)));
}

/// Returns the text of an answer: a JSON string is taken as it is meant, anything else as JSON.
fn text_of(value: Option<&RawValue>) -> String {
    let value = value.map_or("", RawValue::get);
    serde_json::from_str(value).unwrap_or_else(|_| value.to_owned())
}

// Calls that have run and wait until a person has answered: a call whose tool asks a question, a call
// that changed protected files, and a call that did not run because changes by another one are
// undecided.

/// The result of a call that asked a question, if the turn ends before the answer.
const NOT_ANSWERED: &str = "the tool asked a question, and the turn ended before it was answered; the call may or may not have taken effect";

/// Why the calls of a turn are cancelled if a person does not keep its changes.
const NOT_KEPT: &str = "a person did not keep the changes of protected files";

/// The `request` of a wait about changes.
#[derive(Serialize)]
struct AskedChanges<'a> {
    tool: &'a str,
    /// The calls that made the changes.
    calls: BTreeSet<&'a CallId>,
    changes: &'a [ProtectedChange],
    /// Absent if the call did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a KeptResult>,
}

impl Agent {
    /// Lets a running call wait whose outcome has changes of protected files or a question.
    pub(crate) fn ask_about(
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
            let opened = match outcome.question {
                Some(question) if outcome.changes.is_empty() => {
                    self.tool_question(call, &question, step)
                }
                Some(_) | None => {
                    self.change_question(&call.names, &outcome.changes, result.as_ref(), step)
                }
            };
            call.wait(&opened);
            rows.event(&Event::WaitOpened(opened));
        }
        self.run(turn, round, Vec::new(), rows, step);
    }

    /// Returns the opening of a wait for the answer to a question of a tool. Clients show it as one of
    /// the model, which names the tool.
    fn tool_question(
        &self,
        call: &Call,
        question: &ToolQuestion,
        step: &StepEffects,
    ) -> WaitOpened {
        let CallNames { call_id, name, .. } = &call.names;
        let text = format!("{name} asks: {}", question.message);
        let request = raw(&json!({"tool": name, "args": {"question": text}}));
        WaitOpened {
            id: call_id.question_wait(call.questions),
            call_id: Some(call_id.clone()),
            kind: WaitKind::Question,
            title: one_line(&text),
            digest: digest_of_call(name, "question", request.get()),
            request,
            options: None,
            schema: question.schema.as_ref().map(raw),
            rule: None,
            state: question.state.as_ref().map(raw),
            expires_at: self.expiry(step.now),
        }
    }

    fn change_question(
        &self,
        call: &CallNames,
        changes: &[ProtectedChange],
        result: Option<&KeptResult>,
        step: &StepEffects,
    ) -> WaitOpened {
        let request = raw(&AskedChanges {
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
            digest: digest_of_call(tool, "change", request.get()),
            request,
            options: None,
            schema: None,
            rule: None,
            state: None,
            expires_at: self.expiry(step.now),
        }
    }
}

/// Returns the answer to a question of a tool.
fn answer_of(wait: &OpenWait, answer: &WaitAnswer) -> ToolAnswer {
    let json = |raw: &RawValue| serde_json::from_str(raw.get()).ok();
    ToolAnswer {
        decision: answer.decision,
        value: answer.value.as_deref().and_then(json),
        reason: answer.reason.clone(),
        state: wait.state.as_deref().and_then(json),
    }
}

/// Returns what an answer makes of a call that waits because of changes.
fn meaning_of_change(call: &Call, wait: &OpenWait, answer: &WaitAnswer) -> Decided {
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
fn not_kept() -> (&'static str, TurnEnding) {
    let reason = Some(NOT_KEPT.to_owned());
    (NOT_KEPT, TurnEnding::Aborted { reason })
}

// The digest of what a person is asked about: the same request has the same digest, whatever the
// order of the keys in its arguments.

/// Returns the SHA-256 hash of a call and of its tool's description, in hexadecimal.
pub(super) fn digest_of_call(tool: &str, description: &str, args: &str) -> String {
    let mut hash = Sha256::new();
    hash_text(tool, &mut hash);
    hash_text(description, &mut hash);
    match serde_json::from_str(args) {
        Ok(args) => hash_value(&args, &mut hash),
        Err(_) => hash_text(args, &mut hash),
    }
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes a text with its length, so that no two lists of texts give the same bytes.
fn hash_text(text: &str, hash: &mut Sha256) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn hash_value(of: &Value, hash: &mut Sha256) {
    match of {
        Value::Null | Value::Bool(_) | Value::Number(_) => hash_text(&of.to_string(), hash),
        Value::String(string) => {
            hash.update(b"\"");
            hash_text(string, hash);
        }
        Value::Array(items) => {
            hash.update(b"[");
            hash_text(&items.len().to_string(), hash);
            items.iter().for_each(|item| hash_value(item, hash));
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            hash.update(b"{");
            hash_text(&sorted.len().to_string(), hash);
            for (key, item) in sorted {
                hash_text(key, hash);
                hash_value(item, hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_keys_does_not_matter_and_everything_else_does() {
        let digest = digest_of_call(
            "edit",
            "Edits a file.",
            r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
        );
        assert_eq!(digest.len(), 64);
        assert_eq!(
            digest,
            digest_of_call(
                "edit",
                "Edits a file.",
                r#"{ "b": {"d":"x","c":[1,2]}, "a": 1 }"#
            )
        );
        for (tool, description, args) in [
            (
                "edits",
                "Edits a file.",
                r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file!",
                r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":2,"b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":1,"b":{"c":[2,1],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":"1","b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":1,"b":{"c":[1,2],"d":"x"},"e":null}"#,
            ),
            ("edit", "Edits a file.", "{broken"),
        ] {
            assert_ne!(
                digest,
                digest_of_call(tool, description, args),
                "{tool} {args}"
            );
        }
    }
}
