//! Reads the tools of a request.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::{
    refusal::{WireRefusal, only_fields},
    wire::tool_schema,
};

const FIELDS: &[&str] = &[
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "strict",
    "defer_loading",
    "input_examples",
];

pub fn names(body: &Map<String, Value>) -> Result<Vec<String>, WireRefusal> {
    let Some(tools) = body.get("tools") else {
        return Ok(Vec::new());
    };
    let tools = tools
        .as_array()
        .ok_or_else(|| WireRefusal::at("tools", "Input should be a valid list"))?;
    let names: Vec<String> = tools
        .iter()
        .enumerate()
        .map(|(index, tool)| name(index, tool))
        .collect::<Result<_, _>>()?;
    if names.iter().collect::<HashSet<_>>().len() < names.len() {
        return Err(WireRefusal::at("tools", "Tool names must be unique."));
    }
    Ok(names)
}

fn name(index: usize, tool: &Value) -> Result<String, WireRefusal> {
    let at = |field: &str, message: &str| {
        WireRefusal::at(format!("tools.{index}.custom.{field}"), message)
    };
    let tool = tool
        .as_object()
        .ok_or_else(|| WireRefusal::at(format!("tools.{index}"), "Input should be an object"))?;
    only_fields(tool, FIELDS).map_err(|field| at(field, "Extra inputs are not permitted"))?;
    let name = tool
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(|| at("name", "Field required"))?;
    if !tool_schema::good_name(name, 128, "") {
        return Err(at(
            "name",
            "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        ));
    }
    if tool
        .get("description")
        .is_some_and(|description| !description.is_string())
    {
        return Err(at("description", "Input should be a valid string"));
    }
    let schema = tool
        .get("input_schema")
        .ok_or_else(|| at("input_schema", "Field required"))?;
    tool_schema::check(schema).map_err(|error| at("input_schema", &error))?;
    Ok(name.to_owned())
}
