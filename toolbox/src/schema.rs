//! The compiled schema of a tool, and the messages for a model whose arguments do not fit it. Schemas
//! and arguments come from models, clients and sidecars, so a check is bounded in time and memory.

use std::{sync::Arc, thread, time::Duration};

use jsonschema::{
    PatternOptions, ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use serde_json::{Value, value::RawValue};
use tokio::{
    sync::{Semaphore, SemaphorePermit, oneshot},
    time::timeout,
};

use planck_common::{
    event::json,
    json_schema::{self, SchemaSize},
    json_text::shape,
    spec::OutputSpec,
};

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

/// Checks the shape of an answer. Fails with the field at fault and the reason.
pub fn check_output(output: &OutputSpec) -> Result<(), (&'static str, String)> {
    if let Some(name) = &output.name {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !(1..=64).contains(&name.len()) || !name.chars().all(is_letter) {
            let why = format!("{name:?} is no name; write 1 to 64 letters, digits, `-` and `_`");
            return Err(("name", why));
        }
    }
    match CompiledSchema::compile(&json(&output.schema)) {
        Ok(_) => Ok(()),
        Err(why) => Err(("schema", why)),
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

// Compares values with a schema within bounds of time and memory. A quick check runs on the thread
// of its caller, any other one on a thread of its own.

/// The work of the largest check that runs on the thread of its caller, where it takes a few
/// milliseconds. The work of a check is the number of parts of the schema times the number of bytes
/// of the value, because each part may be compared with each value in it.
const QUICK: u64 = 512 << 10;

/// The work of the largest check. It takes a few seconds.
const MOST: u64 = 512 << 20;

/// The work of the largest check whose mistakes are listed. Each mistake may contain a copy of the
/// value.
const EXPLAINED: u64 = 1 << 20;

/// How deep the calls of a quick check may be nested, in levels of schemas. The library compares
/// nested values by recursion.
const QUICK_LEVELS: usize = 512;

/// The stack of a thread that checks, for the deepest schema and the deepest value that the parser
/// accepts. Memory is used only as far as the thread needs it.
const STACK: usize = 256 << 20;

/// How long the caller of a check waits.
const DEADLINE: Duration = Duration::from_secs(2);

/// The number of checks that run on threads of their own at once. A check that has passed its
/// deadline counts until it ends.
static CHECKS: Semaphore = Semaphore::const_new(2);

impl CompiledSchema {
    /// Returns the result of a call of this tool whose arguments do not fit, or `None` if they fit.
    pub async fn refusal(self: &Arc<Self>, tool: &str, args: &RawValue) -> Option<String> {
        refusal(tool, &self.mistakes(args.get()).await)
    }

    /// Like [`Self::refusal`], without waiting. Returns `None` also if the check is not quick.
    pub fn quick_refusal(&self, tool: &str, args: &str) -> Option<String> {
        self.is_quick(args)
            .then(|| refusal(tool, &self.find(args)))?
    }

    /// Returns one line for each of the first mistakes in a value, or no lines if it fits.
    pub async fn mistakes(self: &Arc<Self>, value: &str) -> Vec<String> {
        if self.is_quick(value) {
            return self.find(value);
        }
        if self.work(value) > MOST {
            return vec![format!(
                "{} bytes are too many to be compared with a schema of {} parts; give less",
                value.len(),
                self.size.parts
            )];
        }
        let (schema, value) = (Arc::clone(self), value.to_owned());
        within_deadline(move || schema.find(&value)).await
    }

    fn work(&self, value: &str) -> u64 {
        self.size.parts.saturating_mul(value.len() as u64)
    }

    fn is_quick(&self, value: &str) -> bool {
        let levels = match self.size.is_recursive {
            true => shape(value.as_bytes())
                .depth
                .saturating_mul(self.size.depth as usize),
            false => 0,
        };
        self.work(value) <= QUICK && levels <= QUICK_LEVELS
    }

    fn find(&self, value: &str) -> Vec<String> {
        let parsed: Value = match serde_json::from_str(value) {
            Ok(parsed) => parsed,
            Err(why) => return vec![format!("not JSON: {why}")],
        };
        // Whether the value fits is decided before any mistake is collected, because the library
        // decides it without copies, and collects all mistakes at once.
        if self.validator.is_valid(&parsed) {
            return Vec::new();
        }
        if self.work(value) > EXPLAINED {
            return vec!["the value does not fit the schema, and is too large to say where".into()];
        }
        match self.explained(&parsed) {
            mistakes if mistakes.is_empty() => {
                vec![
                    "a part of the value does not fit, about which the schema refers to itself"
                        .into(),
                ]
            }
            mistakes => mistakes,
        }
    }
}

fn refusal(tool: &str, mistakes: &[String]) -> Option<String> {
    if mistakes.is_empty() {
        return None;
    }
    Some(format!(
        "`{tool}` was not run, its arguments do not fit:\n- {}",
        mistakes.join("\n- ")
    ))
}

/// Runs a check on a thread of its own, and returns what it found or why it found nothing.
async fn within_deadline(check: impl FnOnce() -> Vec<String> + Send + 'static) -> Vec<String> {
    match timeout(DEADLINE, on_own_thread(check)).await {
        Ok(Ok(mistakes)) => mistakes,
        Ok(Err(why)) => vec![format!("it could not be checked: {why}")],
        Err(_) => vec![format!(
            "it could not be checked within {} s; give less",
            DEADLINE.as_secs()
        )],
    }
}

/// Runs a check on a thread of its own. If the caller stops waiting, the check still counts as one
/// that runs.
async fn on_own_thread<T: Send + 'static>(
    check: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let place: SemaphorePermit<'static> = CHECKS.acquire().await.map_err(|why| why.to_string())?;
    let (done, checked) = oneshot::channel();
    thread::Builder::new()
        .name("schema".into())
        .stack_size(STACK)
        .spawn(move || {
            let _unread = done.send(check());
            drop(place);
        })
        .map_err(|why| why.to_string())?;
    checked.await.map_err(|_| "the check failed".into())
}

#[cfg(test)]
mod tests;
