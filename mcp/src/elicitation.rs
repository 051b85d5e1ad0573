//! The questions that a server asks a person during a call. A newer server ends the call with its questions and wants
//! it again with the answers. An older one asks in a request of its own, and holds the call meanwhile.
//! This module does no I/O.

use std::mem;

use planck_common::wait::WaitDecision;
use planck_host::terminal::clean;
use planck_sidecar::{ToolAnswer, ToolQuestion};
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, InputRequest, InputRequests,
    InputRequiredResult, InputResponses, JsonObject,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The state of a question, which comes back with its answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// The server holds the call.
    Held(Form),
    /// The server wants the call again.
    Again(Form, Inputs),
}

/// A form that a person fills in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Form {
    message: String,
    schema: JsonObject,
}

/// The requests with which a server ended a call, and the responses so far.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Inputs {
    requests: InputRequests,
    responses: InputResponses,
    state: Option<String>,
    /// The key of the request whose form a person has.
    asked: String,
}

impl Asked {
    /// Returns the question for a person.
    pub fn question(self) -> ToolQuestion {
        let (Self::Held(form) | Self::Again(form, _)) = &self;
        ToolQuestion {
            message: clean(&form.message).into_owned(),
            schema: form.answer_schema(),
            state: serde_json::to_value(&self).ok(),
        }
    }

    /// Returns what was asked.
    ///
    /// # Errors
    /// Returns an error if the answer belongs to no question of a server.
    pub fn of(answer: &ToolAnswer) -> Result<Self, String> {
        let state = answer.state.clone().unwrap_or_default();
        serde_json::from_value(state)
            .map_err(|why| format!("the answer belongs to no question of this MCP server: {why}"))
    }
}

impl Form {
    /// Returns the form of a request, or `None` if it is none: a person would have to open an address.
    pub fn of(request: ElicitRequestParams) -> Option<Self> {
        if let ElicitRequestParams::FormElicitationParams {
            message,
            requested_schema,
            ..
        } = request
        {
            let schema = serde_json::to_value(requested_schema).ok()?;
            let schema = schema.as_object()?.clone();
            Some(Self { message, schema })
        } else {
            None
        }
    }

    /// Returns the schema of a person's answer. A form with one field is answered by its value, and one
    /// without fields by anything. Fields with a default may be left out.
    fn answer_schema(&self) -> Option<Value> {
        if let Some((_, field)) = self.only_field() {
            return Some(field.clone());
        }
        self.fields().next()?;
        let mut schema = self.schema.clone();
        let has_default = |name: &Value| {
            let field = self.field(name.as_str().unwrap_or_default());
            field.is_some_and(|field| field.get("default").is_some())
        };
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| !has_default(name));
        }
        Some(schema.into())
    }

    /// Returns the result for the server.
    pub fn result(&self, answer: &ToolAnswer) -> ElicitResult {
        let action = match answer.decision {
            WaitDecision::Answer => ElicitationAction::Accept,
            WaitDecision::Deny | WaitDecision::Error => ElicitationAction::Decline,
            WaitDecision::Allow | WaitDecision::Expired | WaitDecision::Withdrawn => {
                ElicitationAction::Cancel
            }
        };
        let is_accepted = action == ElicitationAction::Accept;
        let result = ElicitResult::new(action);
        match is_accepted {
            true => result.with_content(self.content(answer.value.clone())),
            false => result,
        }
    }

    fn content(&self, value: Option<Value>) -> Value {
        let value = value.unwrap_or_default();
        let mut content = match (self.only_field(), value) {
            (Some((name, _)), value) => JsonObject::from_iter([(name.clone(), value)]),
            (None, Value::Object(content)) => content,
            (None, _) => JsonObject::new(),
        };
        for (name, field) in self.fields() {
            if let Some(default) = field.get("default") {
                content.entry(name).or_insert_with(|| default.clone());
            }
        }
        content.into()
    }

    fn fields(&self) -> impl Iterator<Item = (&String, &Value)> {
        let fields = self.schema.get("properties").and_then(Value::as_object);
        fields.into_iter().flatten()
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.schema.get("properties")?.get(name)
    }

    /// Returns the only field, if it has to be filled in.
    fn only_field(&self) -> Option<(&String, &Value)> {
        let mut fields = self.fields();
        let only = fields.next().filter(|_| fields.next().is_none());
        only.filter(|(_, field)| field.get("default").is_none())
    }
}

impl Inputs {
    pub fn of(result: InputRequiredResult) -> Self {
        Self {
            requests: result.input_requests.unwrap_or_default(),
            state: result.request_state,
            ..Self::default()
        }
    }

    /// Answers the requests that need no person, up to the first one that does. Returns that one's form,
    /// or `None` if all are answered. Without `may_ask` every form is declined.
    ///
    /// # Errors
    /// Returns an error if the server asks for something that it does not get.
    pub fn next_form(&mut self, may_ask: bool) -> Result<Option<Form>, String> {
        while let Some((key, request)) = self.requests.pop_first() {
            let response = if let InputRequest::Elicitation(request) = request {
                match Form::of(request.params).filter(|_| may_ask) {
                    Some(form) => {
                        self.asked = key;
                        return Ok(Some(form));
                    }
                    None => json!(ElicitResult::new(ElicitationAction::Decline)),
                }
            } else if let InputRequest::ListRoots(_) = request {
                json!({"roots": []})
            } else {
                return Err("asks for an answer of a model, which it does not get".into());
            };
            self.responses.insert(key, response);
        }
        Ok(None)
    }

    /// Records the answer to the form that a person has.
    pub fn answered(&mut self, result: &ElicitResult) {
        let key = mem::take(&mut self.asked);
        self.responses.insert(key, json!(result));
    }

    /// Returns the responses and the server's state for the next try of the call.
    pub fn into_parts(self) -> (InputResponses, Option<String>) {
        (self.responses, self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(schema: Value) -> Form {
        Form {
            message: "Who?".into(),
            schema: schema.as_object().unwrap().clone(),
        }
    }

    fn answer(value: Value) -> ToolAnswer {
        ToolAnswer {
            decision: WaitDecision::Answer,
            value: Some(value),
            reason: None,
            state: None,
        }
    }

    #[test]
    fn form_with_one_field_is_answered_by_its_value() {
        let field = json!({"type": "string", "enum": ["red", "blue"]});
        let form = form(
            json!({"type": "object", "properties": {"colour": field}, "required": ["colour"]}),
        );
        assert_eq!(form.answer_schema(), Some(field));
        let result = form.result(&answer(json!("red")));
        assert_eq!(result.content, Some(json!({"colour": "red"})));
        let denied = ToolAnswer {
            decision: WaitDecision::Deny,
            ..answer(json!("red"))
        };
        assert_eq!(json!(form.result(&denied)), json!({"action": "decline"}));
    }

    #[test]
    fn fields_with_a_default_may_be_left_out() {
        let form = form(json!({
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 30}},
            "required": ["name", "age"],
        }));
        assert_eq!(form.answer_schema().unwrap()["required"], json!(["name"]));
        let result = form.result(&answer(json!({"name": "Ann"})));
        assert_eq!(result.content, Some(json!({"name": "Ann", "age": 30})));
    }

    #[test]
    fn form_without_fields_is_answered_by_anything() {
        let form = form(json!({"type": "object", "properties": {}}));
        assert_eq!(form.answer_schema(), None);
        let result = form.result(&answer(json!("yes")));
        assert_eq!(json!(result), json!({"action": "accept", "content": {}}));
    }

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let elicit = |field: &str| {
            json!({"method": "elicitation/create", "params": {"mode": "form", "message": "Who?\u{1b}",
                "requestedSchema": {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}}})
        };
        let result = json!({"resultType": "input_required", "requestState": "s1",
            "inputRequests": {"a": elicit("name"), "b": {"method": "roots/list"}, "c": elicit("town")}});
        let mut inputs = Inputs::of(serde_json::from_value(result).unwrap());
        for value in ["Ann", "Rome"] {
            let form = inputs.next_form(true).unwrap().unwrap();
            let question = Asked::Again(form, inputs).question();
            assert_eq!(question.message, "Who?␛");
            let answer = ToolAnswer {
                state: question.state,
                ..answer(json!(value))
            };
            let Asked::Again(form, asked) = Asked::of(&answer).unwrap() else {
                panic!("not held");
            };
            inputs = asked;
            inputs.answered(&form.result(&answer));
        }
        assert_eq!(inputs.next_form(true), Ok(None));
        let (responses, state) = inputs.into_parts();
        assert_eq!(state.as_deref(), Some("s1"));
        assert_eq!(
            json!(responses),
            json!({
                "a": {"action": "accept", "content": {"name": "Ann"}},
                "b": {"roots": []},
                "c": {"action": "accept", "content": {"town": "Rome"}},
            })
        );
    }

    #[test]
    fn no_person_is_asked_where_none_can_be_and_no_model_ever() {
        let requests = |request: Value| {
            let result = json!({"resultType": "input_required", "inputRequests": {"a": request}});
            Inputs::of(serde_json::from_value(result).unwrap())
        };
        let form = json!({"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}});
        let mut inputs = requests(form);
        assert_eq!(inputs.next_form(false), Ok(None));
        assert_eq!(
            json!(inputs.into_parts().0),
            json!({"a": {"action": "decline"}})
        );
        let sampling =
            json!({"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}});
        assert!(requests(sampling).next_form(true).is_err());
    }
}
