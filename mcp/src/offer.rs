//! What a sidecar offers for a server: the tools that a node would accept, under names that a node
//! would accept, each with its effect. A tool that does not fit is left out with a reason.

use std::collections::BTreeSet;

use planck_common::{id::is_id, json_schema, sidecar::unknown_required};
use planck_host::terminal::clean;
use planck_sidecar::ToolEffect;
use planck_toolbox::schema::CompiledSchema;
use rmcp::model::{JsonObject, Tool};
use serde_json::Value;

use crate::{pins::PinnedTools, server::ToolRules};

/// The maximum size of the descriptions of all tools in bytes. A sidecar describes all its tools in
/// one message, and NATS carries 1 MiB by default. Quotes in schemas are escaped in the message.
pub const MOST_BYTES: usize = 600 << 10;

/// The maximum size of the description of one tool in bytes. Each request to a model repeats it.
pub const LONGEST_DESCRIPTION: usize = 16 << 10;

/// The tools that a sidecar offers for a server.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// The version of the server, as three numbers.
    pub version: String,
    pub tools: Vec<OfferedTool>,
    /// A line for each tool that is left out, with the reason.
    pub left_out: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct OfferedTool {
    /// The name under which the sidecar offers the tool.
    pub name: String,
    /// The name that the server knows.
    pub server_name: String,
    pub description: String,
    pub parameters: JsonObject,
    /// The schema of the structured content of a result.
    pub output: Option<JsonObject>,
    pub effect: ToolEffect,
}

impl Offer {
    /// Returns what is offered for a server. If `pinned` is set, only the tools that are pinned as they
    /// are. The tools that the rules exclude are not mentioned.
    pub fn of(
        version: &str,
        tools: Vec<Tool>,
        rules: &ToolRules,
        pinned: Option<&PinnedTools>,
    ) -> Self {
        let (mut offered, mut left_out) = (Vec::new(), Vec::new());
        let (mut names, mut bytes) = (BTreeSet::new(), 0);
        for tool in tools.into_iter().filter(|tool| rules.admit(&tool.name)) {
            let name = tool.name.clone();
            if let Some(why) = pinned.and_then(|pinned| pinned.refusal(&tool)) {
                left_out.push(format!(
                    "`{name}` is left out: {why}; `planck mcp allow` shows and allows it"
                ));
                continue;
            }
            let checked = OfferedTool::of(tool, rules).and_then(|tool| {
                let size = tool.size();
                if bytes + size > MOST_BYTES {
                    return Err(format!(
                        "the tools before it take {bytes} of {MOST_BYTES} bytes, which one description of a sidecar may have"
                    ));
                }
                if !names.insert(tool.name.clone()) {
                    return Err(format!("another tool is offered as `{}`", tool.name));
                }
                bytes += size;
                Ok(tool)
            });
            match checked {
                Ok(tool) => offered.push(tool),
                Err(why) => left_out.push(format!("`{name}` is left out: {why}")),
            }
        }
        Self {
            version: three_numbers(version),
            tools: offered,
            left_out,
        }
    }
}

impl OfferedTool {
    fn of(tool: Tool, rules: &ToolRules) -> Result<Self, String> {
        let name = sidecar_name(&tool.name)?;
        check(&tool.input_schema)?;
        let effect = rules.effect(&tool);
        let Tool {
            name: server_name,
            title,
            description,
            input_schema,
            output_schema,
            ..
        } = tool;
        let description = [
            description.map(String::from),
            title,
            Some(server_name.to_string()),
        ]
        .into_iter()
        .flatten()
        .find(|text| !text.trim().is_empty())
        .ok_or("it has neither a description nor a name")?;
        if description.len() > LONGEST_DESCRIPTION {
            return Err(format!(
                "its description has {} bytes, and may have {LONGEST_DESCRIPTION}",
                description.len()
            ));
        }
        let mut parameters = JsonObject::clone(&input_schema);
        show_hidden(&mut parameters);
        Ok(Self {
            name,
            server_name: server_name.into_owned(),
            description: clean(&description).into_owned(),
            parameters,
            output: output_schema.map(|schema| JsonObject::clone(&schema)),
            effect,
        })
    }

    fn size(&self) -> usize {
        self.name.len() + self.description.len() + text(&self.parameters).len()
    }
}

/// Returns a tool's name with `_` in place of characters that names of sidecars' tools lack. MCP
/// allows dots, and servers use slashes too.
fn sidecar_name(name: &str) -> Result<String, String> {
    let fits = |one: char| one.is_ascii_alphanumeric() || "_-".contains(one);
    let name: String = name
        .chars()
        .map(|one| if fits(one) { one } else { '_' })
        .collect();
    match is_id(&name) {
        true => Ok(name),
        false => Err("its name must have 1 to 64 characters".into()),
    }
}

/// Checks the schema of a tool's arguments as a node does, so that the server's user reads the reason
/// where the server runs.
fn check(schema: &JsonObject) -> Result<(), String> {
    let text = text(schema);
    let wrong = |why: &dyn std::fmt::Display| format!("its `inputSchema` is wrong: {why}");
    let (schema, _) = json_schema::parse(&text).map_err(|why| wrong(&why))?;
    CompiledSchema::compile(&text).map_err(|why| wrong(&why))?;
    match unknown_required(&schema) {
        Some(name) => Err(format!(
            "its `inputSchema` requires `{name}`, which is none of its `properties`"
        )),
        None => Ok(()),
    }
}

/// Makes characters visible in the texts of a schema that a person would not see and a model would
/// read.
fn show_hidden(schema: &mut JsonObject) {
    for (key, value) in schema {
        match value {
            Value::String(text) if ["description", "title"].contains(&key.as_str()) => {
                *text = clean(text).into_owned();
            }
            Value::Object(object) => show_hidden(object),
            Value::Array(values) => {
                let objects = values.iter_mut().filter_map(Value::as_object_mut);
                objects.for_each(show_hidden);
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn text(schema: &JsonObject) -> String {
    serde_json::to_string(schema).unwrap_or_else(|_| Value::Null.to_string())
}

impl ToolRules {
    fn admit(&self, tool: &str) -> bool {
        let names = |list: &[String]| list.iter().any(|name| name == tool);
        self.allow.as_deref().is_none_or(names) && !names(&self.deny)
    }

    /// Returns the effect of a tool. A hint of the server counts only if it is trusted, because a
    /// server that calls a tool read-only could otherwise have it called twice.
    fn effect(&self, tool: &Tool) -> ToolEffect {
        match (self.effects.get(&*tool.name), self.trusts_hints) {
            (Some(effect), _) => *effect,
            (None, true) => hinted(tool),
            (None, false) => ToolEffect::Mutating,
        }
    }
}

fn hinted(tool: &Tool) -> ToolEffect {
    let hint = |hint: fn(&rmcp::model::ToolAnnotations) -> Option<bool>| {
        tool.annotations.as_ref().and_then(hint).unwrap_or(false)
    };
    if hint(|hints| hints.read_only_hint) {
        ToolEffect::Pure
    } else if hint(|hints| hints.idempotent_hint) {
        ToolEffect::Idempotent
    } else {
        ToolEffect::Mutating
    }
}

/// Returns the first three numbers of a version, because a sidecar's version has three.
fn three_numbers(version: &str) -> String {
    let core = version
        .trim_start_matches('v')
        .split(|one: char| !one.is_ascii_digit() && one != '.')
        .next()
        .unwrap_or_default();
    let numbers = core.split('.').filter_map(|part| part.parse::<u64>().ok());
    let numbers: Vec<String> = numbers
        .chain(std::iter::repeat(0))
        .take(3)
        .map(|number| number.to_string())
        .collect();
    numbers.join(".")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(value: Value) -> Tool {
        serde_json::from_value(value).unwrap()
    }

    fn offered(tools: &[Value], trusts_hints: bool) -> (Vec<OfferedTool>, Vec<String>) {
        let tools = tools.iter().cloned().map(tool).collect();
        let rules = ToolRules {
            trusts_hints,
            ..ToolRules::default()
        };
        let offer = Offer::of("1.2", tools, &rules, None);
        (offer.tools, offer.left_out)
    }

    #[test]
    fn a_version_has_three_numbers() {
        for (version, wanted) in [
            ("2026.8.31", "2026.8.31"),
            ("v1.4", "1.4.0"),
            ("3.2.1-rc.7", "3.2.1"),
            ("1.2.3.4", "1.2.3"),
            ("nightly", "0.0.0"),
            ("", "0.0.0"),
        ] {
            assert_eq!(three_numbers(version), wanted, "{version:?}");
        }
    }

    #[test]
    fn names_are_mapped_and_the_second_of_two_alike_is_left_out() {
        let named = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
        let long = "x".repeat(65);
        let tools = [
            named("files.read"),
            named("files/read"),
            named(&long),
            named(""),
        ];
        let (tools, left_out) = offered(&tools, false);
        assert_eq!(tools.len(), 1);
        assert_eq!(
            (tools[0].name.as_str(), tools[0].server_name.as_str()),
            ("files_read", "files.read")
        );
        assert_eq!(tools[0].description, "files.read");
        assert_eq!(left_out.len(), 3, "{left_out:?}");
    }

    #[test]
    fn hints_lower_an_effect_only_if_they_are_trusted() {
        let hinted = |name: &str, hints: Value| json!({"name": name, "description": "d", "inputSchema": {"type": "object"}, "annotations": hints});
        let tools = [
            hinted("a", json!({"readOnlyHint": true})),
            hinted("b", json!({"idempotentHint": true})),
            hinted("c", json!({"destructiveHint": false})),
            json!({"name": "d", "inputSchema": {"type": "object"}}),
        ];
        let effects = |trusts_hints| -> Vec<ToolEffect> {
            let (tools, _) = offered(&tools, trusts_hints);
            tools.iter().map(|tool| tool.effect).collect()
        };
        assert_eq!(effects(false), [ToolEffect::Mutating; 4]);
        assert_eq!(
            effects(true),
            [
                ToolEffect::Pure,
                ToolEffect::Idempotent,
                ToolEffect::Mutating,
                ToolEffect::Mutating
            ]
        );
    }

    #[test]
    fn rules_choose_tools_and_their_effects() {
        let named = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}});
        let tools = || ["a", "b", "c", "d"].map(|name| tool(named(name))).to_vec();
        let rules = ToolRules {
            allow: Some(vec!["a".into(), "b".into(), "c".into()]),
            deny: vec!["b".into()],
            effects: [("c".to_owned(), ToolEffect::Idempotent)].into(),
            trusts_hints: true,
        };
        let offer = Offer::of("1", tools(), &rules, None);
        let offered: Vec<(&str, ToolEffect)> = offer
            .tools
            .iter()
            .map(|tool| (&*tool.name, tool.effect))
            .collect();
        assert_eq!(
            offered,
            [("a", ToolEffect::Pure), ("c", ToolEffect::Idempotent)]
        );
        assert!(offer.left_out.is_empty());
        let pinned = PinnedTools {
            version: "1".into(),
            tools: vec![tool(named("a"))],
        };
        let offer = Offer::of("1", tools(), &rules, Some(&pinned));
        assert_eq!(
            (offer.tools.len(), offer.left_out.len()),
            (1, 1),
            "{offer:?}"
        );
    }

    #[test]
    fn a_schema_that_a_node_would_refuse_leaves_its_tool_out() {
        let with = |schema: Value| json!({"name": "t", "description": "d", "inputSchema": schema});
        let text = "x".repeat(70_000);
        for schema in [
            json!({"type": "string"}),
            json!({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}),
            json!({"type": "object", "properties": {"a": {"type": "nonsense"}}}),
            json!({"type": "object", "required": ["a"]}),
            json!({"type": "object", "description": text}),
        ] {
            let good = json!({"name": "good", "inputSchema": {"type": "object"}});
            let (tools, left_out) = offered(&[with(schema.clone()), good], false);
            assert_eq!(tools.len(), 1, "{schema}");
            assert_eq!(left_out.len(), 1, "{schema}");
        }
    }

    #[test]
    fn tools_beyond_one_message_are_left_out() {
        let large = |number: usize| json!({"name": format!("t{number}"), "description": "d".repeat(15_000), "inputSchema": {"type": "object"}});
        let tools: Vec<Value> = (0..50).map(large).collect();
        let (tools, left_out) = offered(&tools, false);
        assert_eq!((tools.len(), left_out.len()), (40, 10));
    }

    #[test]
    fn hidden_characters_are_shown_and_a_long_description_is_refused() {
        let hidden = "Adds.\u{1b}[2J\u{e0041}";
        let schema = json!({"type": "object", "properties": {"a": {"description": hidden, "enum": [hidden]}}});
        let tools = [
            json!({"name": "add", "description": hidden, "inputSchema": schema}),
            json!({"name": "long", "description": "d".repeat(20_000), "inputSchema": {"type": "object"}}),
        ];
        let (tools, left_out) = offered(&tools, false);
        assert_eq!((tools.len(), left_out.len()), (1, 1));
        let shown = r"Adds.␛[2J\u{e0041}";
        assert_eq!(tools[0].description, shown);
        let argument = &tools[0].parameters["properties"]["a"];
        assert_eq!(argument["description"], shown);
        assert_eq!(argument["enum"], json!([hidden]), "a value stays as it is");
    }
}
