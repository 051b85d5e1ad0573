//! A tool in the format of chat completions, which Ollama uses too: a function with a schema.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::model::ToolSpec;

#[derive(Serialize)]
pub struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

impl<'a> From<&'a ToolSpec> for Tool<'a> {
    fn from(tool: &'a ToolSpec) -> Self {
        let function = Function {
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
