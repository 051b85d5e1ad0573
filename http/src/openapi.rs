//! The description of the routes under `/v1`, generated from the types of the protocol.

use planck_common::{
    command,
    command::{AgentVerb, SessionVerb},
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{key::Role, problem::Problem};

/// A route: what it does, who may use it, and the schemas of what it takes and answers.
struct Route {
    method: &'static str,
    path: String,
    summary: &'static str,
    role: Role,
    query: Option<Value>,
    body: Option<Value>,
    reply: Value,
    status: &'static str,
    streams: bool,
}

/// Returns the document in the form of OpenAPI 3.1.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut schemas = settings.into_generator();
    let mut paths = Map::new();
    for route in routes(&mut schemas) {
        let (path, method) = (route.path.clone(), route.method);
        let operation = operation(route, &mut schemas);
        let entry = paths.entry(path).or_insert_with(|| json!({}));
        if let Some(methods) = entry.as_object_mut() {
            methods.insert(method.to_owned(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Planck",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The protocol of Planck over HTTP.",
        },
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas.take_definitions(true),
        },
    })
}

fn operation(route: Route, schemas: &mut SchemaGenerator) -> Value {
    let mut parameters: Vec<Value> = route
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            let id = json!({"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"});
            json!({"name": name, "in": "path", "required": true, "schema": id})
        })
        .collect();
    parameters.extend(route.query.iter().flat_map(query_parameters));
    if route.streams {
        parameters.push(json!({
            "name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
            "description": "The id of the last event that was received.",
        }));
    }
    let problem =
        json!({"application/problem+json": {"schema": schemas.subschema_for::<Problem>()}});
    let mut content = json!({"application/json": {"schema": route.reply}});
    if route.streams {
        content = json!({"application/json": {"schema": route.reply}, "text/event-stream": {"schema": {"type": "string"}}});
    }
    let mut operation = json!({
        "operationId": operation_id(&route),
        "summary": route.summary,
        "description": format!("Needs the role `{}`.", route.role.name()),
        "parameters": parameters,
        "responses": {
            route.status: {"description": "Done.", "content": content},
            "default": {"description": "Refused.", "content": problem},
        },
    });
    if let (Some(body), Some(fields)) = (route.body, operation.as_object_mut()) {
        let body = json!({"content": {"application/json": {"schema": body}}});
        fields.insert("requestBody".into(), body);
    }
    operation
}

fn operation_id(route: &Route) -> String {
    let words = route.path.trim_start_matches("/v1/").split('/');
    let words = words.map(|word| word.trim_matches(['{', '}']));
    std::iter::once(route.method)
        .chain(words)
        .collect::<Vec<_>>()
        .join("_")
}

/// Returns the fields of a schema as parameters of a query.
fn query_parameters(schema: &Value) -> Vec<Value> {
    let fields = schema.get("properties").and_then(Value::as_object);
    let fields = fields.into_iter().flatten();
    fields
        .map(|(name, schema)| json!({"name": name, "in": "query", "schema": schema}))
        .collect()
}

/// Builds the table of routes.
struct Table<'a> {
    schemas: &'a mut SchemaGenerator,
    routes: Vec<Route>,
}

impl Table<'_> {
    fn get<R: JsonSchema>(&mut self, path: &str, summary: &'static str) -> &mut Route {
        self.add::<R>("get", path, summary, Role::Observe)
    }

    fn post<B: JsonSchema, R: JsonSchema>(
        &mut self,
        path: &str,
        summary: &'static str,
        role: Role,
    ) -> &mut Route {
        let body = self.schemas.subschema_for::<B>().to_value();
        let route = self.add::<R>("post", path, summary, role);
        route.body = Some(body);
        route
    }

    fn add<R: JsonSchema>(
        &mut self,
        method: &'static str,
        path: &str,
        summary: &'static str,
        role: Role,
    ) -> &mut Route {
        let reply = self.schemas.subschema_for::<R>().to_value();
        self.routes.push_mut(Route {
            method,
            path: path.to_owned(),
            summary,
            role,
            query: None,
            body: None,
            reply,
            status: "200",
            streams: false,
        })
    }
}

/// Returns the schema of a query's arguments, with its fields in place.
fn query<T: JsonSchema>() -> Option<Value> {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    Some(
        settings
            .into_generator()
            .into_root_schema_for::<T>()
            .to_value(),
    )
}

fn routes(schemas: &mut SchemaGenerator) -> Vec<Route> {
    let mut table = Table {
        schemas,
        routes: Vec::new(),
    };
    sessions(&mut table);
    agents(&mut table);
    cluster(&mut table);
    table.routes
}

fn sessions(table: &mut Table<'_>) {
    use command::*;
    let list = table.get::<Sessions>("/v1/sessions", "List sessions");
    list.query = query::<ListSessions>();
    let start = table.post::<Start, Started>("/v1/sessions", "Start a session", Role::Use);
    start.status = "201";
    table.get::<SessionInfo>("/v1/sessions/{session}", "Describe a session");
    let path = "/v1/sessions/{session}";
    table.add::<Removed>("delete", path, "Close and delete a session", Role::Operate);
    let events = table.get::<Events>(
        "/v1/sessions/{session}/events",
        "Read a page of the log, or follow it as a stream",
    );
    (events.query, events.streams) = (query::<ReadEvents>(), true);
    let messages = table.get::<Messages>("/v1/sessions/{session}/messages", "Read messages");
    messages.query = query::<ReadMessages>();
    let waits = table.get::<Waits>("/v1/waits", "List what agents wait for");
    waits.query = query::<ListWaits>();
    for verb in SessionVerb::ALL {
        session_verb(table, *verb);
    }
}

fn session_verb(table: &mut Table<'_>, verb: SessionVerb) {
    use command::*;
    let path = format!("/v1/sessions/{{session}}/{}", verb.name());
    match verb {
        SessionVerb::Prompt => {
            let prompt = table.post::<Prompt, Accepted>(&path, "Send a prompt", Role::Use);
            prompt.status = "202";
        }
        SessionVerb::Abort => {
            table.post::<Because, Aborted>(&path, "Abort the running turns", Role::Use);
        }
        SessionVerb::Rewind => {
            table.post::<Rewind, HeadAt>(&path, "Hide a message and all later ones", Role::Use);
        }
        SessionVerb::Resume => {
            table.post::<Because, Started>(&path, "Resume a session", Role::Use);
        }
        SessionVerb::Close => {
            table.post::<Because, SessionStateNow>(&path, "Close a session", Role::Operate);
        }
        SessionVerb::Answer => {
            table.post::<Answer, Answered>(&path, "Answer a wait", Role::Use);
        }
        // These have other methods.
        SessionVerb::Events | SessionVerb::Messages | SessionVerb::Info | SessionVerb::Delete => {}
    }
}

fn agents(table: &mut Table<'_>) {
    for verb in AgentVerb::ALL {
        agent_verb(table, *verb);
    }
}

fn agent_verb(table: &mut Table<'_>, verb: AgentVerb) {
    use command::*;
    let path = format!("/v1/agents/{{agent}}/{}", verb.name());
    match verb {
        AgentVerb::Info => {
            table.get::<AgentInfo>("/v1/agents/{agent}", "Describe an agent");
        }
        AgentVerb::Snapshot => {
            table.get::<Snapshot>(&path, "Read the running work of an agent");
        }
        AgentVerb::Prompt => {
            let prompt = table.post::<Prompt, Accepted>(&path, "Send a prompt", Role::Use);
            prompt.status = "202";
        }
        AgentVerb::Abort => {
            table.post::<Because, AgentStateNow>(&path, "Abort the running turn", Role::Use);
        }
        AgentVerb::Stop => {
            table.post::<Because, AgentStateNow>(&path, "Stop an agent for good", Role::Operate);
        }
        AgentVerb::Nudge => {
            table.post::<Because, AgentStateNow>(&path, "Open a turn without input", Role::Use);
        }
        AgentVerb::Checkpoint => {
            table.post::<SetCheckpoint, SavedAt>(&path, "Save a summary", Role::Operate);
        }
        AgentVerb::AddTool => {
            table.post::<ToolName, Tools>(&path, "Add a tool", Role::Operate);
        }
        AgentVerb::RemoveTool => {
            table.post::<ToolName, Tools>(&path, "Remove a tool", Role::Operate);
        }
        AgentVerb::ChangeModel => {
            table.post::<ChangeModel, Model>(&path, "Change the model", Role::Operate);
        }
    }
}

fn cluster(table: &mut Table<'_>) {
    use command::*;
    table.get::<Nodes>("/v1/nodes", "List the nodes");
    table.get::<NodeInfo>("/v1/nodes/{node}", "Describe a node");
    table.post::<Drain, Draining>("/v1/nodes/{node}/drain", "Drain a node", Role::Operate);
    table.get::<Teams>("/v1/teams", "List the templates of teams");
    table.get::<Models>("/v1/models", "List the models");
    table.get::<Sidecars>("/v1/sidecars", "List the sidecars");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_of_the_protocol_has_a_route() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        for verb in SessionVerb::ALL {
            let is_method = matches!(verb, SessionVerb::Info | SessionVerb::Delete);
            let end = if is_method {
                String::new()
            } else {
                format!("/{}", verb.name())
            };
            let path = format!("/v1/sessions/{{session}}{end}");
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
