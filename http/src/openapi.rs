//! The description of the routes, generated from the types of the protocol and of the wires.

use std::{
    iter::once,
    sync::{Arc, LazyLock},
};

use axum::{Router, http::header, response::IntoResponse, routing::get};
use bytes::Bytes;
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    front::{Front, table},
    openai::{self, ErrorReply},
    problem::Problem,
    route::Route,
};

/// The path of the description of all routes.
pub const PATH: &str = "/openapi.json";

pub fn routes() -> Router<Arc<Front>> {
    Router::new().route(PATH, get(description))
}

/// Answers with the description of all routes, which is made once, because it is large and never
/// changes.
async fn description() -> impl IntoResponse {
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| DOCUMENT.to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.clone())
}

/// A family of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteFamily {
    Planck,
    AiSdk,
    AgUi,
    OpenAi,
    Mcp,
}

impl RouteFamily {
    const ALL: [Self; 5] = [
        Self::Planck,
        Self::AiSdk,
        Self::AgUi,
        Self::OpenAi,
        Self::Mcp,
    ];

    fn of(path: &str) -> Self {
        match path {
            _ if path.starts_with("/ui/") => Self::AiSdk,
            _ if path.starts_with("/ag-ui/") => Self::AgUi,
            _ if path.starts_with(openai::PREFIX) => Self::OpenAi,
            "/mcp" => Self::Mcp,
            _ => Self::Planck,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Planck => "planck",
            Self::AiSdk => "ai-sdk",
            Self::AgUi => "ag-ui",
            Self::OpenAi => "openai",
            Self::Mcp => "mcp",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Planck => "The verbs of the protocol.",
            Self::AiSdk => "The UI message stream of the AI SDK, version 1.",
            Self::AgUi => "AG-UI, version 1.0.",
            Self::OpenAi => "The wire of OpenAI's clients. A team stands in the place of a model.",
            Self::Mcp => "The Model Context Protocol. Teams are tools.",
        }
    }

    /// Returns the content of an error.
    fn refusal(self, schemas: &mut SchemaGenerator) -> Value {
        match self {
            Self::Planck | Self::AiSdk | Self::AgUi | Self::Mcp => {
                json!({"application/problem+json": {"schema": schemas.subschema_for::<Problem>()}})
            }
            Self::OpenAi => {
                json!({"application/json": {"schema": schemas.subschema_for::<ErrorReply>()}})
            }
        }
    }
}

/// The document as it is served.
pub static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// Returns the fields of a schema, or none if the document has no such schema.
pub fn fields(schema: &str) -> Vec<&'static str> {
    let fields = DOCUMENT.pointer(&format!("/components/schemas/{schema}/properties"));
    let fields = fields.and_then(Value::as_object);
    let names = fields.into_iter().flat_map(Map::keys);
    names.map(String::as_str).collect()
}

/// Returns the parameters in the query of a route, which has this path and method.
pub fn query(path: &str, method: &str) -> Vec<&'static str> {
    let (path, method) = (path.replace("{*", "{"), method.to_ascii_lowercase());
    let parameters = || {
        let route = DOCUMENT.get("paths")?.get(path)?.get(method)?;
        route.get("parameters")?.as_array()
    };
    let in_query = |parameter: &&Value| parameter.get("in").is_some_and(|place| place == "query");
    let parameters = parameters().into_iter().flatten().filter(in_query);
    let names = parameters.filter_map(|parameter| parameter.get("name")?.as_str());
    names.collect()
}

/// Returns the document in the form of OpenAPI 3.1.
fn document() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for route in table() {
        let path = path(&route);
        let operation = operation(&route, &path, &mut schemas);
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        if let Some(methods) = entry.as_object_mut() {
            methods.insert(route.method.to_owned(), operation);
        }
    }
    let tags = RouteFamily::ALL
        .map(|wire| json!({"name": wire.name(), "description": wire.description()}));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Planck",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The protocol of Planck over HTTP, and the wires of ready-made clients.",
        },
        "tags": tags,
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.take_definitions(true),
        },
    })
}

/// Returns the path of a route as OpenAPI writes it. Its parameters have no form for the rest of a
/// path.
fn path(route: &Route) -> String {
    route.path.replace("{*", "{")
}

/// Returns the entry of a route in the document.
fn operation(route: &Route, path: &str, schemas: &mut SchemaGenerator) -> Value {
    let wire = RouteFamily::of(path);
    let names = words(path).filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = names.map(path_parameter).collect();
    parameters.extend(query_parameters(route));
    parameters.extend(route.parameters.iter().cloned());
    let refused = json!({"description": "Refused.", "content": wire.refusal(schemas)});
    let done = json!({"description": "Done.", "content": content(route, schemas)});
    let mut responses = Map::new();
    responses.insert(route.status.into(), done);
    responses.insert("default".into(), refused);
    if let Some(empty) = route.empty {
        responses.insert("204".into(), json!({"description": empty}));
    }
    let mut operation = json!({
        "tags": [wire.name()],
        "operationId": operation_id(route.method, path),
        "summary": route.summary,
        "description": format!("Needs the role `{}`.", route.role.name()),
        "parameters": parameters,
        "responses": responses,
    });
    if let (Some(body), Some(fields)) = (route.body, operation.as_object_mut()) {
        let body = json!({"content": {"application/json": {"schema": body(schemas)}}});
        fields.insert("requestBody".into(), body);
    }
    operation
}

/// Returns the fields of the query, each with its schema in place.
fn query_parameters(route: &Route) -> Vec<Value> {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = route
        .query
        .map(|query| query(&mut settings.into_generator()));
    let fields = schema
        .as_ref()
        .and_then(|schema| schema.get("properties")?.as_object());
    fields
        .into_iter()
        .flatten()
        .map(|(name, schema)| json!({"name": name, "in": "query", "schema": schema}))
        .collect()
}

fn words(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|word| !word.is_empty())
}

fn operation_id(method: &str, path: &str) -> String {
    let words = words(path.trim_start_matches("/v1"));
    let words = words.map(|word| word.trim_matches(['{', '}']));
    once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// Returns the contents of a reply by their media types.
fn content(route: &Route, schemas: &mut SchemaGenerator) -> Value {
    let mut content = Map::new();
    if let Some(reply) = route.reply {
        content.insert("application/json".into(), json!({"schema": reply(schemas)}));
    }
    if let Some(events) = route.stream {
        let schema = json!({"type": "string", "description": events});
        content.insert("text/event-stream".into(), json!({"schema": schema}));
    }
    Value::Object(content)
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

#[cfg(test)]
mod tests {
    use planck_common::command::{AgentVerb, SessionVerb};

    use super::*;

    #[tokio::test]
    async fn description_is_made_once() {
        let begins = async || {
            let body = description().await.into_response().into_body();
            let bytes = axum::body::to_bytes(body, usize::MAX).await;
            bytes.unwrap().as_ptr()
        };
        assert_eq!(begins().await, begins().await);
    }

    #[test]
    fn ids_of_operations_are_unique() {
        let document = document();
        let methods = document["paths"].as_object().unwrap().values();
        let operations = methods.flat_map(|methods| methods.as_object().unwrap().values());
        let ids: Vec<_> = operations
            .map(|operation| operation["operationId"].as_str().unwrap())
            .collect();
        let unique: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len());
    }

    #[test]
    fn every_verb_of_the_protocol_has_a_route() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        for verb in SessionVerb::ALL {
            let is_method = matches!(verb, SessionVerb::Info | SessionVerb::Delete);
            let is_outcome = matches!(verb, SessionVerb::Outcome);
            let end = match (is_method, is_outcome) {
                (true, _) => String::new(),
                (_, true) => "/prompts/{prompt}".into(),
                (false, false) => format!("/{}", verb.name()),
            };
            let path = format!("/v1/sessions/{{session}}{end}");
            assert!(paths.contains_key(&path), "{path}");
        }
        for verb in AgentVerb::ALL {
            let end = match matches!(verb, AgentVerb::Info) {
                true => String::new(),
                false => format!("/{}", verb.name()),
            };
            let path = format!("/v1/agents/{{agent}}{end}");
            assert!(paths.contains_key(&path), "{path}");
        }
        assert_eq!(
            paths["/v1/sessions/{session}"].as_object().unwrap().len(),
            2
        );
    }

    /// `UPDATE_SCHEMAS=1` writes the file.
    #[test]
    fn document_is_the_one_in_the_docs() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
        let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMAS").is_some() {
            std::fs::write(file, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(file).unwrap(),
            text,
            "run with UPDATE_SCHEMAS=1"
        );
    }

    #[test]
    fn every_reference_of_the_document_has_its_schema() {
        let document = document();
        let text = document.to_string();
        let known = document["components"]["schemas"].as_object().unwrap();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(known.contains_key(name), "{name}");
        }
        assert!(
            !text.contains("$defs"),
            "a reference is not below components"
        );
    }
}
