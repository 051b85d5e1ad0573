//! The entry of a route in the document.

use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

use super::Route;

/// Returns the entry of a route in the document.
pub(super) fn operation(route: Route, schemas: &mut SchemaGenerator) -> Value {
    let parts = route.path.split('/');
    let names = parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = names.map(path_parameter).collect();
    parameters.extend(route.parameters.iter().cloned());
    let refused = json!({"description": "Refused.", "content": route.wire.refusal(schemas)});
    let done = json!({"description": "Done.", "content": route.content()});
    let mut responses = Map::new();
    responses.insert(route.status.into(), done);
    responses.insert("default".into(), refused);
    if let Some(empty) = route.empty {
        responses.insert("204".into(), json!({"description": empty}));
    }
    let mut operation = json!({
        "tags": [route.wire.name()],
        "operationId": route.operation_id(),
        "summary": route.summary,
        "description": format!("Needs the role `{}`.", route.role.name()),
        "parameters": parameters,
        "responses": responses,
    });
    if let (Some(body), Some(fields)) = (route.body, operation.as_object_mut()) {
        let body = json!({"content": {"application/json": {"schema": body}}});
        fields.insert("requestBody".into(), body);
    }
    operation
}

fn path_parameter(name: &str) -> Value {
    let schema = match name {
        "model" => json!({"type": "string"}),
        "response" => {
            json!({"type": "string", "pattern": r"^resp_[A-Za-z0-9_-]{1,64}_[0-9]+(\.[0-9]+)?$"})
        }
        _ => json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}),
    };
    json!({"name": name, "in": "path", "required": true, "schema": schema})
}
