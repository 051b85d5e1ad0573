//! Encodes a tool in the format of chat completions, which Ollama uses too: a function with a
//! schema.

use serde::Serialize;
use serde_json::value::RawValue;

use planck_agent::model::ToolSpec;

#[derive(Serialize)]
pub struct FunctionTool<'a> {
    r#type: &'static str,
    function: FunctionSpec<'a>,
}

#[derive(Serialize)]
struct FunctionSpec<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> From<&'a ToolSpec> for FunctionTool<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        let function = FunctionSpec {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.parameters,
        };
        Self {
            r#type: "function",
            function,
        }
    }
}
