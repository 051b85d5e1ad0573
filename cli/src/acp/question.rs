//! Forms for the questions of agents and their tools, and what the client's answers mean. This module
//! does no I/O.

use planck_common::{
    command::Answer,
    wait::{WaitDecision, WaitKind, WaitOpened},
};
use planck_host::terminal::clean;
use serde_json::{Map, Value, json, value::RawValue};

use super::wire::{CreateElicitation, ElicitationAnswer};
use crate::waits::{own_name, value_of};

/// The field of a form for an answer that is no object.
const FIELD: &str = "answer";

/// Returns the form for a wait. Returns `None` if the wait is no question.
pub fn form<'a>(session: &'a str, wait: &WaitOpened) -> Option<CreateElicitation<'a>> {
    if wait.kind != WaitKind::Question {
        return None;
    }
    Some(CreateElicitation {
        mode: "form",
        session_id: session,
        tool_call_id: Some(wait.call().to_string()),
        message: message(wait),
        requested_schema: match schema_of(wait).filter(is_form) {
            Some(schema) => schema,
            None => {
                let field = schema_of(wait).filter(is_field);
                let field = field.unwrap_or_else(|| json!({"type": "string"}));
                json!({"type": "object", "properties": {FIELD: field}, "required": [FIELD]})
            }
        },
    })
}

/// Returns what a question asks, with the answers that it suggests.
pub fn message(wait: &WaitOpened) -> String {
    let request: Value = serde_json::from_str(wait.request.get()).unwrap_or_default();
    let question = request.pointer("/args/question").and_then(Value::as_str);
    let question = clean(question.unwrap_or(&wait.title)).into_owned();
    match wait.options.as_deref().unwrap_or_default() {
        [] => question,
        options => format!("{question}\n\nFor example: {}", clean(&options.join(" · "))),
    }
}

fn schema_of(wait: &WaitOpened) -> Option<Value> {
    serde_json::from_str(wait.schema.as_ref()?.get()).ok()
}

/// Returns whether a schema is one of a form: an object whose fields have simple types.
fn is_form(schema: &Value) -> bool {
    let fields = schema.get("properties").and_then(Value::as_object);
    schema.get("type") == Some(&json!("object"))
        && fields.is_some_and(|fields| !fields.is_empty() && fields.values().all(is_field))
}

fn is_field(schema: &Value) -> bool {
    let kind = schema.get("type").and_then(Value::as_str);
    matches!(kind, Some("string" | "number" | "integer" | "boolean"))
}

/// Returns the answer to a question that a text means.
pub fn text_answer(wait: &WaitOpened, text: &str) -> Option<Answer> {
    let value = value_of(text, wait.schema.is_some()).ok()?;
    Some(with_value(wait, value))
}

/// Returns the answer to a question that an answer of the client means. A form that was closed
/// decides nothing.
pub fn answer(wait: &WaitOpened, said: &RawValue) -> Option<Answer> {
    match serde_json::from_str(said.get()).ok()? {
        ElicitationAnswer::Accept { content } => {
            let value = content_of(wait, content)?;
            Some(with_value(wait, value))
        }
        ElicitationAnswer::Decline => Some(answered(wait, WaitDecision::Deny)),
        ElicitationAnswer::Other => None,
    }
}

fn content_of(wait: &WaitOpened, mut content: Map<String, Value>) -> Option<Box<RawValue>> {
    if schema_of(wait).is_some_and(|schema| is_form(&schema)) {
        return serde_json::value::to_raw_value(&content).ok();
    }
    let value = content.remove(FIELD)?;
    let is_text = !schema_of(wait).is_some_and(|schema| is_field(&schema));
    match value.as_str().filter(|_| is_text) {
        Some(text) => value_of(text, wait.schema.is_some()).ok(),
        None => serde_json::value::to_raw_value(&value).ok(),
    }
}

fn with_value(wait: &WaitOpened, value: Box<RawValue>) -> Answer {
    Answer {
        value: Some(value),
        ..answered(wait, WaitDecision::Answer)
    }
}

/// Returns an answer to the wait as the client was shown it.
pub fn answered(wait: &WaitOpened, decision: WaitDecision) -> Answer {
    Answer {
        wait: wait.id.clone(),
        decision,
        args: None,
        value: None,
        reason: None,
        scope: None,
        digest: Some(wait.digest.clone()),
        by: own_name(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;

    use super::*;

    fn wait(more: Value) -> WaitOpened {
        let mut wait = json!({"id": "c1", "kind": "question", "title": "Which…", "digest": "d",
            "request": {"tool": "ask_user", "args": {"question": "Which colour?"}}});
        let fields = wait.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        serde_json::from_value(wait).unwrap()
    }

    fn said(wait: &WaitOpened, said: Value) -> Option<(WaitDecision, Value)> {
        let answer = answer(wait, &to_raw_value(&said).unwrap())?;
        assert_eq!(answer.digest.as_deref(), Some("d"));
        let value = answer.value.map(|value| serde_json::from_str(value.get()));
        Some((
            answer.decision,
            value.transpose().unwrap().unwrap_or_default(),
        ))
    }

    #[test]
    fn question_is_a_form_and_its_value_is_the_answer() {
        let accept = |content: Value| json!({"action": "accept", "content": content});
        let person = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let nested = json!({"type": "object", "properties": {"a": {"type": "object"}}});
        for (schema, form_has, content, value) in [
            (
                None,
                json!({"type": "string"}),
                json!({"answer": "3"}),
                json!("3"),
            ),
            (
                Some(json!({"type": "integer"})),
                json!({"type": "integer"}),
                json!({"answer": 3}),
                json!(3),
            ),
            (
                Some(json!({"type": "string"})),
                json!({"type": "string"}),
                json!({"answer": "3"}),
                json!("3"),
            ),
            (
                Some(nested),
                json!({"type": "string"}),
                json!({"answer": "{\"a\":{}}"}),
                json!({"a": {}}),
            ),
            (
                Some(person.clone()),
                json!(null),
                json!({"name": "Ann"}),
                json!({"name": "Ann"}),
            ),
        ] {
            let wait = wait(schema.map_or(json!({}), |schema| json!({"schema": schema})));
            let form = form("s1", &wait).unwrap().requested_schema;
            let expected = match form_has.is_null() {
                true => person.clone(),
                false => {
                    json!({"type": "object", "properties": {"answer": form_has}, "required": ["answer"]})
                }
            };
            assert_eq!(form, expected);
            let expected = Some((WaitDecision::Answer, value));
            assert_eq!(said(&wait, accept(content)), expected, "{form}");
        }
    }

    #[test]
    fn form_that_was_closed_decides_nothing() {
        let wait = wait(json!({"options": ["red", "blue"]}));
        assert_eq!(message(&wait), "Which colour?\n\nFor example: red · blue");
        let denied = Some((WaitDecision::Deny, Value::Null));
        assert_eq!(said(&wait, json!({"action": "decline"})), denied);
        for nothing in [
            json!({"action": "cancel"}),
            json!({"action": "accept"}),
            json!({"action": "accept", "content": {"other": 1}}),
            json!({"action": "allow", "content": {"answer": "x"}}),
            json!({"content": {"answer": "x"}}),
            json!({}),
            json!(null),
        ] {
            assert_eq!(said(&wait, nothing.clone()), None, "{nothing}");
        }
        assert!(form("s1", &self::wait(json!({"kind": "approval"}))).is_none());
    }
}
