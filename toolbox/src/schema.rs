//! The compiled schema of a tool, and the messages for a model whose arguments do not fit it. Schemas
//! and arguments come from models, clients and sidecars, so a check is bounded in time and memory.

mod check;

use jsonschema::{
    PatternOptions, ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use planck_common::json_schema::{self, SchemaSize};
use serde_json::Value;

/// The maximum number of mistakes that one message lists, and of mistakes in an alternative.
const TOLD: usize = 10;

/// The maximum number of bytes of a wrong value that a message quotes.
const SHOWN: usize = 100;

/// The maximum number of bytes of the line about one mistake.
const LONGEST_LINE: usize = 2_000;

/// The maximum memory in bytes of a regular expression and of its cache.
const EXPRESSION_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub struct CompiledSchema {
    validator: Validator,
    /// The validator that finds the mistakes. In a schema that refers to itself, the number of
    /// mistakes can double with every level of the value, so this validator does not follow such
    /// references.
    explainer: Option<Validator>,
    size: SchemaSize,
    /// The names of the top-level properties, sorted.
    properties: Vec<String>,
}

impl CompiledSchema {
    /// Compiles a JSON Schema. Fails with a reason if it is invalid or beyond a limit, or if its
    /// `type` is not `object`.
    pub fn compile(parameters: &str) -> Result<Self, String> {
        let (schema, size) = read(parameters)?;
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            return Err("its `type` must be \"object\"".into());
        }
        Self::of(&schema, size)
    }

    /// Compiles the JSON Schema of any value. Fails with a reason if it is invalid or beyond a
    /// limit.
    pub fn of_value(schema: &str) -> Result<Self, String> {
        let (schema, size) = read(schema)?;
        Self::of(&schema, size)
    }

    fn of(schema: &Value, size: SchemaSize) -> Result<Self, String> {
        let explainer = match size.is_recursive {
            true => {
                let cut = json_schema::without_recursion(schema).map_err(|why| why.to_string())?;
                Some(build(&cut)?)
            }
            false => None,
        };
        let mut properties: Vec<String> = schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(|map| map.keys().cloned())
            .collect();
        properties.sort();
        Ok(Self {
            validator: build(schema)?,
            explainer,
            size,
            properties,
        })
    }

    pub fn properties(&self) -> &[String] {
        &self.properties
    }

    /// Returns one line for each of the first mistakes, at most `TOLD` lines.
    fn explained(&self, args: &Value) -> Vec<String> {
        let explainer = self.explainer.as_ref().unwrap_or(&self.validator);
        let mut mistakes: Vec<String> = explainer
            .iter_errors(args)
            .take(TOLD)
            .map(|error| cut(self.explain(&error), LONGEST_LINE))
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
            .take(TOLD)
            .map(|errors| {
                errors
                    .iter()
                    .take(TOLD)
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

fn read(schema: &str) -> Result<(Value, SchemaSize), String> {
    json_schema::parse(schema).map_err(|fault| fault.to_string())
}

/// Builds the validator of a schema. Its regular expressions are matched in time that is linear in
/// the text. A `pattern` that only a slower engine could match is not compared.
fn build(schema: &Value) -> Result<Validator, String> {
    let failed = match build_linear(schema) {
        Ok(validator) => return Ok(validator),
        Err(why) => why,
    };
    let mut rest = schema.clone();
    match drop_slow_patterns(&mut rest) {
        true => build_linear(&rest),
        false => Err(failed),
    }
}

fn build_linear(schema: &Value) -> Result<Validator, String> {
    let expressions = PatternOptions::regex()
        .size_limit(EXPRESSION_BYTES)
        .dfa_size_limit(EXPRESSION_BYTES);
    let built = jsonschema::options()
        .with_pattern_options(expressions)
        .build(schema);
    built.map_err(|why| match why.instance_path().as_str() {
        "" => why.to_string(),
        place => format!("{why} at {place}"),
    })
}

/// Removes each `pattern` with look-around or back-references, and returns whether there was one.
fn drop_slow_patterns(schema: &mut Value) -> bool {
    match schema {
        Value::Object(map) => {
            let is_slow = map
                .get("pattern")
                .and_then(Value::as_str)
                .is_some_and(needs_backtracking);
            if is_slow {
                map.remove("pattern");
            }
            drop_from_all(map.values_mut()) || is_slow
        }
        Value::Array(list) => drop_from_all(list.iter_mut()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn drop_from_all<'a>(parts: impl Iterator<Item = &'a mut Value>) -> bool {
    parts.map(drop_slow_patterns).filter(|any| *any).count() > 0
}

fn needs_backtracking(pattern: &str) -> bool {
    let mut letters = pattern.as_bytes();
    while let Some((first, rest)) = letters.split_first() {
        letters = match (first, rest) {
            (b'\\', [b'1'..=b'9' | b'k', ..]) => return true,
            (b'\\', [_, rest @ ..]) => rest,
            (b'(', [b'?', b'=' | b'!', ..]) => return true,
            (b'(', [b'?', b'<', b'=' | b'!', ..]) => return true,
            (_, rest) => rest,
        };
    }
    false
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
    cut(value.to_string(), SHOWN)
}

fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
