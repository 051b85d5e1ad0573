//! The description of the routes, generated from the types of the protocol and of the wires.

mod operation;
mod wires;

use std::sync::LazyLock;

use planck_common::{
    command,
    command::{AgentVerb, SessionVerb},
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use self::operation::operation;
use super::{
    key::Role,
    openai::ErrorReply,
    problem::Problem,
    v1::{HowLong, ReadOrFollow},
};

/// A family of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Planck,
    AiSdk,
    OpenAi,
}

impl Wire {
    const ALL: [Self; 3] = [Self::Planck, Self::AiSdk, Self::OpenAi];

    const fn name(self) -> &'static str {
        match self {
            Self::Planck => "planck",
            Self::AiSdk => "ai-sdk",
            Self::OpenAi => "openai",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Planck => "The verbs of the protocol.",
            Self::AiSdk => "The UI message stream of the AI SDK, version 1.",
            Self::OpenAi => "The wire of OpenAI's clients. A team stands in the place of a model.",
        }
    }

    /// Returns the content of an error.
    fn refusal(self, schemas: &mut SchemaGenerator) -> Value {
        match self {
            Self::Planck | Self::AiSdk => {
                json!({"application/problem+json": {"schema": schemas.subschema_for::<Problem>()}})
            }
            Self::OpenAi => {
                json!({"application/json": {"schema": schemas.subschema_for::<ErrorReply>()}})
            }
        }
    }
}

/// A route: what it does, who may use it, and the schemas of what it takes and answers.
struct Route {
    wire: Wire,
    method: &'static str,
    path: String,
    summary: &'static str,
    role: Role,
    /// The parameters outside of the path.
    parameters: Vec<Value>,
    body: Option<Value>,
    reply: Option<Value>,
    status: &'static str,
    /// The events of the stream that the route can answer with.
    stream: Option<&'static str>,
    /// The case in which the answer is empty.
    empty: Option<&'static str>,
}

impl Route {
    /// Returns the contents of a reply by their media types.
    fn content(&self) -> Value {
        let mut content = Map::new();
        if let Some(reply) = &self.reply {
            content.insert("application/json".into(), json!({"schema": reply}));
        }
        if let Some(events) = self.stream {
            let schema = json!({"type": "string", "description": events});
            content.insert("text/event-stream".into(), json!({"schema": schema}));
        }
        Value::Object(content)
    }

    fn operation_id(&self) -> String {
        let words = self.path.trim_start_matches("/v1").split('/');
        let words = words.map(|word| word.trim_matches(['{', '}']));
        let words = words.filter(|word| !word.is_empty());
        std::iter::once(self.method)
            .chain(words)
            .collect::<Vec<_>>()
            .join("_")
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

/// Returns the document in the form of OpenAPI 3.1.
fn document() -> Value {
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
    let tags =
        Wire::ALL.map(|wire| json!({"name": wire.name(), "description": wire.description()}));
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

fn header(name: &str, description: &str) -> Value {
    let schema = json!({"type": "string"});
    json!({"name": name, "in": "header", "schema": schema, "description": description})
}

/// Builds the table of routes.
struct Table<'a> {
    schemas: &'a mut SchemaGenerator,
    /// The family of the routes that are added.
    wire: Wire,
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
        let route = self.plain(method, path, summary, role);
        route.reply = Some(reply);
        route
    }

    /// Adds a route whose reply is not JSON.
    fn plain(
        &mut self,
        method: &'static str,
        path: &str,
        summary: &'static str,
        role: Role,
    ) -> &mut Route {
        self.routes.push_mut(Route {
            wire: self.wire,
            method,
            path: path.to_owned(),
            summary,
            role,
            parameters: Vec::new(),
            body: None,
            reply: None,
            status: "200",
            stream: None,
            empty: None,
        })
    }
}

/// Returns the fields of a type as parameters of a query, each with its schema in place.
fn query<T: JsonSchema>() -> Vec<Value> {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let fields = schema.get("properties").and_then(Value::as_object);
    let fields = fields.into_iter().flatten();
    fields
        .map(|(name, schema)| json!({"name": name, "in": "query", "schema": schema}))
        .collect()
}

fn routes(schemas: &mut SchemaGenerator) -> Vec<Route> {
    let mut table = Table {
        schemas,
        wire: Wire::Planck,
        routes: Vec::new(),
    };
    sessions(&mut table);
    streams(&mut table);
    agents(&mut table);
    cluster(&mut table);
    wires::ai_sdk(&mut table);
    wires::openai(&mut table);
    table.routes
}

/// The content of a stream of events.
const EVENTS: &str = "Server-sent events. The `data` of each is the envelope of an event of the protocol, and the `id` of a durable one is its place.";
/// The header with which a stream continues.
const LAST: (&str, &str) = (
    "Last-Event-ID",
    "The id of the last event that was received.",
);

fn streams(table: &mut Table<'_>) {
    let summary = "Follow up to 32 sessions in one stream";
    let events = table.plain("get", "/v1/events", summary, Role::Observe);
    let names =
        json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 32});
    let names = json!({"name": "session", "in": "query", "required": true, "schema": names});
    events.parameters = vec![names, header(LAST.0, LAST.1)];
    events.stream = Some(EVENTS);
    let summary = "Follow the decisions of the cluster";
    let decisions = table.plain("get", "/v1/decisions", summary, Role::Observe);
    decisions.stream = Some("Server-sent events. The `data` of each is a decision of the cluster.");
}

fn sessions(table: &mut Table<'_>) {
    use command::*;
    let list = table.get::<Sessions>("/v1/sessions", "List sessions");
    list.parameters = query::<ListSessions>();
    let start = table.post::<Start, Started>("/v1/sessions", "Start a session", Role::Use);
    start.status = "201";
    table.get::<SessionInfo>("/v1/sessions/{session}", "Describe a session");
    let path = "/v1/sessions/{session}";
    table.add::<Removed>("delete", path, "Close and delete a session", Role::Operate);
    let events = table.get::<Events>(
        "/v1/sessions/{session}/events",
        "Read a page of the log, or follow it as a stream",
    );
    (events.parameters, events.stream) = (query::<ReadOrFollow>(), Some(EVENTS));
    events.parameters.push(header(LAST.0, LAST.1));
    let messages = table.get::<Messages>("/v1/sessions/{session}/messages", "Read messages");
    messages.parameters = query::<ReadMessages>();
    let waits = table.get::<Waits>("/v1/waits", "List what agents wait for");
    waits.parameters = query::<ListWaits>();
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
            prompt.parameters = query::<HowLong>();
            prompt.status = "202";
        }
        SessionVerb::Abort => {
            table.post::<AbortSession, Aborted>(&path, "Abort the running work", Role::Use);
        }
        SessionVerb::Rewind => {
            table.post::<Rewind, HeadAt>(&path, "Hide a message and all later ones", Role::Use);
        }
        SessionVerb::Rename => {
            let summary = "Give a session a title, or remove it";
            table.post::<Rename, Renamed>(&path, summary, Role::Use);
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
        SessionVerb::Outcome => {
            let path = "/v1/sessions/{session}/prompts/{prompt}";
            table.get::<Outcome>(path, "Describe a prompt").parameters = query::<HowLong>();
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
            prompt.parameters = query::<HowLong>();
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
    fn every_route_is_described() {
        let document = document();
        let routes = [
            include_str!("v1.rs"),
            include_str!("ui.rs"),
            include_str!("openai.rs"),
        ];
        let literals = routes
            .iter()
            .flat_map(|text| text.split('"').skip(1).step_by(2));
        let known = document["paths"].as_object().unwrap();
        let paths = literals.filter(|path| path.starts_with('/') && !path.ends_with('/'));
        for path in paths.filter(|path| !path.contains("{*rest}")) {
            let path = path.replace("{*", "{");
            let is_described = path == super::super::v1::OPENAPI || known.contains_key(&path);
            assert!(is_described, "{path} is not in the description");
        }
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
