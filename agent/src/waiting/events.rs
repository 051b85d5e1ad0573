//! The events of waits: the one that opens a wait, with what a person or a client is asked, and
//! those that end it.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use planck_common::{
    CallId,
    event::{Event, ToolEffect},
    wait::{WaitAnswer, WaitClosed, WaitDecision, WaitKind, WaitOpened},
};

use super::digest_of_call;
use crate::{Agent, StepEffects, model::ToolSpec, permission, round::CallNames};

/// The maximum length of a wait's title in characters.
const TITLE: usize = 160;

/// The arguments of a tool that asks a person.
#[derive(Deserialize)]
struct Question {
    question: String,
    #[serde(default)]
    options: Option<Vec<String>>,
    #[serde(default)]
    schema: Option<Box<RawValue>>,
}

/// The `request` of a wait about a call.
#[derive(Serialize)]
struct AskedCall<'a> {
    tool: &'a str,
    args: &'a RawValue,
    effect: ToolEffect,
    /// The rule or the mode that asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
}

impl Agent {
    /// Returns the data of the event that opens a wait, or why the call cannot be asked about.
    pub(crate) fn opening(
        &self,
        kind: WaitKind,
        tool: &ToolSpec,
        call: &CallNames,
        args: &RawValue,
        why: Option<&str>,
        step: &StepEffects,
    ) -> Result<WaitOpened, String> {
        let leaves_sandbox = permission::leaves_sandbox(tool, args.get());
        let name = match leaves_sandbox {
            true => format!("{} OUTSIDE of the sandbox", tool.name),
            false => tool.name.clone(),
        };
        let opened = WaitOpened {
            id: call.call_id.clone(),
            call_id: None,
            kind,
            title: title(&name, args),
            request: raw(&AskedCall {
                tool: &tool.name,
                args,
                effect: tool.effect,
                why,
            }),
            digest: digest_of_call(&tool.name, &tool.description, args.get()),
            options: None,
            schema: None,
            rule: None,
            state: None,
            expires_at: self.expiry(step.now),
        };
        Ok(match kind {
            WaitKind::Approval => WaitOpened {
                schema: Some((*tool.parameters).to_owned()),
                rule: permission::rule_for(&self.facts(tool, args)).filter(|_| !leaves_sandbox),
                ..opened
            },
            WaitKind::Question => {
                let Question {
                    question,
                    options,
                    schema,
                } = serde_json::from_str(args.get())
                    .map_err(|error| format!("not asked: the arguments are wrong: {error}"))?;
                WaitOpened {
                    title: one_line(&question),
                    options,
                    schema,
                    ..opened
                }
            }
            WaitKind::ClientTool | WaitKind::Budget | WaitKind::Change => opened,
        })
    }
}

/// Returns one line that names the tool, the directory in which it would run, and the argument that
/// says most.
fn title(tool: &str, args: &RawValue) -> String {
    let told: Telling<'_> = serde_json::from_str(args.get()).unwrap_or_default();
    let text = |value: &RawValue| serde_json::from_str::<String>(value.get()).ok();
    let telling = [told.command, told.path, told.url, told.query]
        .into_iter()
        .flatten()
        .find_map(text);
    let dir = told.cwd.and_then(text);
    let place = dir.map(|dir| format!(" in {dir}")).unwrap_or_default();
    let telling = telling.as_deref().unwrap_or(args.get());
    one_line(&format!("{tool}{place}: {telling}"))
}

/// The arguments that say most about a call. Other values are not parsed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Telling<'a> {
    #[serde(borrow)]
    command: Option<&'a RawValue>,
    #[serde(borrow)]
    path: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
    #[serde(borrow)]
    query: Option<&'a RawValue>,
    #[serde(borrow)]
    cwd: Option<&'a RawValue>,
}

pub(super) fn one_line(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(TITLE + 1)
        .collect();
    if let Some((end, _)) = line.char_indices().nth(TITLE) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Returns the JSON of a value whose serialisation cannot fail.
pub(super) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

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
