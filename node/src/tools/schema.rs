//! The compiled schema of a tool, and the messages for a model whose arguments do not fit it.

use jsonschema::{
    ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use serde_json::Value;

/// The maximum number of mistakes that one message lists.
const TOLD: usize = 10;

/// The maximum number of bytes of a wrong value that a message quotes.
const SHOWN: usize = 100;

#[derive(Debug)]
pub struct CompiledSchema {
    validator: Validator,
    /// The names of the top-level properties, sorted.
    properties: Vec<String>,
}

impl CompiledSchema {
    /// Compiles a JSON Schema. Fails with a reason if it is invalid or its `type` is not `object`.
    pub fn compile(parameters: &str) -> Result<Self, String> {
        let schema: Value =
            serde_json::from_str(parameters).map_err(|why| format!("not JSON: {why}"))?;
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err("its `type` must be \"object\"".into());
        }
        Self::of(&schema)
    }

    /// Compiles the JSON Schema of any value. Fails with a reason if it is invalid.
    pub fn of_value(schema: &str) -> Result<Self, String> {
        let schema: Value =
            serde_json::from_str(schema).map_err(|why| format!("not JSON: {why}"))?;
        Self::of(&schema)
    }

    fn of(schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::validator_for(schema).map_err(|why| {
            match why.instance_path().as_str() {
                "" => why.to_string(),
                place => format!("{why} at {place}"),
            }
        })?;
        let mut properties: Vec<String> = schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|map| map.keys().cloned())
            .collect();
        properties.sort();
        Ok(Self {
            validator,
            properties,
        })
    }

    pub fn properties(&self) -> &[String] {
        &self.properties
    }

    /// Returns the result of a call of this tool whose arguments do not fit, or `None` if they fit.
    pub fn refusal(&self, tool: &str, args: &str) -> Option<String> {
        let args: Value = match serde_json::from_str(args) {
            Ok(args) => args,
            Err(why) => return Some(format!("the arguments of `{tool}` are not JSON: {why}")),
        };
        match self.mistakes(&args).as_slice() {
            [] => None,
            mistakes => Some(format!(
                "`{tool}` was not run, its arguments do not fit:\n- {}",
                mistakes.join("\n- ")
            )),
        }
    }

    /// Returns one line for each of the first mistakes, at most `TOLD` lines, or no lines if the
    /// arguments fit.
    pub fn mistakes(&self, args: &Value) -> Vec<String> {
        let mut mistakes: Vec<String> = self
            .validator
            .iter_errors(args)
            .take(TOLD)
            .map(|error| self.explain(&error))
            .collect();
        mistakes.dedup();
        mistakes
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the rest of the library's rules explain themselves"
    )]
    fn explain(&self, error: &ValidationError) -> String {
        let place = place(error.instance_path().as_str());
        let got = shown(error.instance());
        match error.kind() {
            ValidationErrorKind::Required { property } => match property.as_str() {
                Some(name) => format!("{} is required and missing", quoted(&join(&place, name))),
                None => error.to_string(),
            },
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                self.unknown(&place, unexpected)
            }
            ValidationErrorKind::Type { kind } => {
                format!("{} must be {}, got {got}", quoted(&place), types(kind))
            }
            ValidationErrorKind::Enum { options } => format!(
                "{} must be one of {}, got {got}",
                quoted(&place),
                list(options)
            ),
            ValidationErrorKind::Constant { expected_value } => {
                format!(
                    "{} must be {}, got {got}",
                    quoted(&place),
                    shown(expected_value)
                )
            }
            ValidationErrorKind::AnyOf { context }
            | ValidationErrorKind::OneOfNotValid { context } => {
                self.alternatives(&place, &got, context)
            }
            _ => format!(
                "{}: {}, got {got}",
                quoted(&place),
                error.masked_with("the value")
            ),
        }
    }

    fn unknown(&self, place: &str, unexpected: &[String]) -> String {
        let names: Vec<String> = unexpected
            .iter()
            .map(|name| quoted(&join(place, name)))
            .collect();
        let verb = if names.len() == 1 {
            "is not a property"
        } else {
            "are not properties"
        };
        match place {
            "" => format!(
                "{} {verb}; there are: {}",
                names.join(", "),
                self.properties.join(", ")
            ),
            _ => format!("{} {verb}", names.join(", ")),
        }
    }

    fn alternatives(
        &self,
        place: &str,
        got: &str,
        context: &[Vec<ValidationError<'static>>],
    ) -> String {
        let each: Vec<String> = context
            .iter()
            .map(|errors| {
                errors
                    .iter()
                    .map(|error| self.explain(error))
                    .collect::<Vec<_>>()
                    .join(" and ")
            })
            .collect();
        format!(
            "{} fits none of the alternatives, got {got}: {}",
            quoted(place),
            each.join("; or ")
        )
    }
}

/// Converts a JSON pointer into a path such as `a.b.0`.
fn place(pointer: &str) -> String {
    pointer
        .trim_start_matches('/')
        .split('/')
        .map(|step| step.replace("~1", "/").replace("~0", "~"))
        .collect::<Vec<_>>()
        .join(".")
}

fn join(place: &str, name: &str) -> String {
    if place.is_empty() {
        name.to_owned()
    } else {
        format!("{place}.{name}")
    }
}

fn quoted(place: &str) -> String {
    if place.is_empty() {
        "the whole".into()
    } else {
        format!("`{place}`")
    }
}

fn types(kind: &TypeKind) -> String {
    let names: Vec<&str> = match kind {
        TypeKind::Single(one) => vec![one.as_str()],
        TypeKind::Multiple(set) => set.iter().map(|one| one.as_str()).collect(),
    };
    names
        .iter()
        .map(|name| with_article(name))
        .collect::<Vec<_>>()
        .join(" or ")
}

fn with_article(name: &str) -> String {
    match name.chars().next() {
        _ if name == "null" => name.to_owned(),
        Some('a' | 'e' | 'i' | 'o' | 'u') => format!("an {name}"),
        Some(_) | None => format!("a {name}"),
    }
}

fn list(options: &Value) -> String {
    options
        .as_array()
        .into_iter()
        .flatten()
        .map(shown)
        .collect::<Vec<_>>()
        .join(", ")
}

fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistakes(args: &Value) -> String {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1},
                "limit": {"type": "integer", "minimum": 0},
                "mode": {"enum": ["fast", "slow"]},
                "size": {"type": ["integer", "null"]},
                "at": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 9}]},
                "files": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
            },
            "required": ["path"],
            "additionalProperties": false,
        });
        CompiledSchema::compile(&schema.to_string())
            .unwrap()
            .mistakes(args)
            .join("\n")
    }

    #[test]
    fn a_mistake_names_the_property_the_rule_and_the_value() {
        assert_eq!(
            mistakes(&json!({"path": "a", "limit": 0, "mode": "slow", "size": null, "at": 3})),
            ""
        );
        insta::assert_snapshot!(mistakes(&json!({"pth": 1})), @r"
        `pth` is not a property; there are: at, files, limit, mode, path, size
        `path` is required and missing
        ");
        insta::assert_snapshot!(
            mistakes(&json!({"path": "", "limit": -1, "mode": "medium", "size": "x", "files": [{"name": "a"}, {"nam": 3}, {"name": 3}]})),
            @r#"
        `files.1.name` is required and missing
        `files.2.name` must be a string, got 3
        `limit`: the value is less than the minimum of 0, got -1
        `mode` must be one of "fast", "slow", got "medium"
        `path`: the value is shorter than 1 character, got ""
        `size` must be null or an integer, got "x"
        "#
        );
        insta::assert_snapshot!(mistakes(&json!({"path": ["x".repeat(500)], "limit": "10", "at": 12})), @r#"
        `at` fits none of the alternatives, got 12: `at` must be a string, got 12; or `at`: the value is greater than the maximum of 9, got 12
        `limit` must be an integer, got "10"
        `path` must be a string, got ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
        "#);
        insta::assert_snapshot!(mistakes(&json!("path")), @r#"the whole must be an object, got "path""#);
    }

    #[test]
    fn an_invalid_schema_is_reported() {
        for (parameters, why) in [
            ("{", "not JSON"),
            ("[]", "`type` must be \"object\""),
            (r#"{"type": "string"}"#, "`type` must be \"object\""),
            (
                r#"{"type": "object", "properties": {"a": {"type": "text"}}}"#,
                "at /properties/a/type",
            ),
        ] {
            let told = CompiledSchema::compile(parameters).unwrap_err();
            assert!(told.contains(why), "{parameters}: {told}");
        }
    }
}
