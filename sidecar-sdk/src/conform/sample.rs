//! Generates arguments from a JSON Schema: some that fit, and some that do not.

use serde_json::{Map, Number, Value, json};

/// The maximum depth of nested schemas.
const DEPTH: usize = 12;

/// Returns arguments that fit the schema, or `None` if none could be generated. Different values of
/// `nth` give different arguments as far as the generator finds a choice.
pub fn fitting(schema: &Value, nth: u32) -> Option<Value> {
    let args = Maker { root: schema, nth }.value(schema, DEPTH);
    fits(schema, &args).then_some(args)
}

/// Returns whether arguments fit the schema.
pub fn fits(schema: &Value, args: &Value) -> bool {
    jsonschema::validator_for(schema).is_ok_and(|validator| validator.is_valid(args))
}

/// Returns arguments that do not fit the schema, each with a description of its fault.
pub fn misfits(schema: &Value) -> Vec<(String, Value)> {
    let mut misfits = vec![("arguments that are text".to_owned(), json!("no object"))];
    let Some(Value::Object(good)) = fitting(schema, 0) else {
        return misfits;
    };
    if let Some((name, _)) = good.iter().next() {
        let mut missing = good.clone();
        missing.remove(name);
        misfits.push((format!("arguments without `{name}`"), missing.into()));
    }
    for (name, value) in &good {
        let wrong = if value.is_object() {
            json!([[]])
        } else {
            json!({"wrong": [true]})
        };
        let mut changed = good.clone();
        changed.insert(name.clone(), wrong);
        misfits.push((
            format!("arguments with a `{name}` of another type"),
            changed.into(),
        ));
    }
    misfits.retain(|(_, args)| !fits(schema, args));
    misfits
}

struct Maker<'a> {
    root: &'a Value,
    nth: u32,
}

impl Maker<'_> {
    fn value(&self, schema: &Value, depth: usize) -> Value {
        let Some(depth) = depth.checked_sub(1) else {
            return Value::Null;
        };
        let first = |key: &str| {
            schema
                .get(key)
                .and_then(Value::as_array)
                .and_then(|list| list.first())
        };
        if let Some(given) = schema
            .get("const")
            .or_else(|| first("examples"))
            .or_else(|| schema.get("default"))
        {
            return given.clone();
        }
        if let Some(chosen) = schema.get("enum").and_then(Value::as_array) {
            return chosen
                .get(self.nth as usize % chosen.len().max(1))
                .cloned()
                .unwrap_or_default();
        }
        if let Some(path) = schema
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|path| path.strip_prefix('#'))
        {
            return self
                .root
                .pointer(path)
                .map_or(Value::Null, |target| self.value(target, depth));
        }
        if let Some(inner) = first("anyOf")
            .or_else(|| first("oneOf"))
            .or_else(|| first("allOf"))
        {
            return self.value(inner, depth);
        }
        let kind = schema
            .get("type")
            .and_then(Value::as_str)
            .or_else(|| first("type").and_then(Value::as_str));
        match kind.unwrap_or("object") {
            "string" => self.text(schema),
            "integer" | "number" => self.number(schema),
            "boolean" => json!(self.nth.is_multiple_of(2)),
            "array" => self.list(schema, depth),
            "object" => self.object(schema, depth),
            _ => Value::Null,
        }
    }

    fn text(&self, schema: &Value) -> Value {
        let limit = |key: &str| {
            schema
                .get(key)
                .and_then(Value::as_u64)
                .and_then(|limit| usize::try_from(limit).ok())
        };
        let mut text = match schema.get("format").and_then(Value::as_str) {
            Some("date") => "2026-01-02".into(),
            Some("date-time") => "2026-01-02T03:04:05Z".into(),
            Some("uri" | "url") => format!("https://example.org/{}", self.nth),
            Some("email") => format!("someone{}@example.org", self.nth),
            _ => format!("text {}", self.nth),
        };
        text.extend(std::iter::repeat_n(
            'x',
            limit("minLength")
                .unwrap_or(0)
                .min(10_000)
                .saturating_sub(text.len()),
        ));
        json!(
            text.chars()
                .take(limit("maxLength").unwrap_or(usize::MAX))
                .collect::<String>()
        )
    }

    fn number(&self, schema: &Value) -> Value {
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        let least = bound("minimum")
            .or_else(|| bound("exclusiveMinimum").map(|bound| bound + 1.0))
            .unwrap_or(1.0);
        let most = bound("maximum")
            .or_else(|| bound("exclusiveMaximum").map(|bound| bound - 1.0))
            .unwrap_or(f64::MAX);
        let step = bound("multipleOf").unwrap_or(1.0);
        let number = (least + f64::from(self.nth) * step).min(most.max(least));
        // Whole numbers below this bound are exact both as `f64` and as `i64`.
        let whole = number.fract() == 0.0 && number.abs() < 1e9;
        if whole {
            json!(format!("{number:.0}").parse::<i64>().unwrap_or_default())
        } else {
            Number::from_f64(number).into()
        }
    }

    fn list(&self, schema: &Value, depth: usize) -> Value {
        let least = schema
            .get("minItems")
            .and_then(Value::as_u64)
            .unwrap_or(1)
            .clamp(1, 100);
        let any = json!({});
        let items = schema
            .get("items")
            .filter(|items| items.is_object())
            .unwrap_or(&any);
        (0..least).map(|_| self.value(items, depth)).collect()
    }

    /// Generates an object with its required properties only.
    fn object(&self, schema: &Value, depth: usize) -> Value {
        let required = schema.get("required").and_then(Value::as_array);
        let names = required.into_iter().flatten().filter_map(Value::as_str);
        let any = json!({});
        let property = |name: &str| {
            schema
                .get("properties")
                .and_then(|all| all.get(name))
                .unwrap_or(&any)
        };
        names
            .map(|name| (name.to_owned(), self.value(property(name), depth)))
            .collect::<Map<_, _>>()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_arguments_fit_their_schema() {
        let schemas = [
            json!({"type":"object"}),
            json!({"type":"object","properties":{"a":{"type":"string","minLength":20},"b":{"type":"integer","minimum":3,"maximum":3}},
                "required":["a","b"],"additionalProperties":false}),
            json!({"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"required":["a"],
                "$defs":{"A":{"type":"array","items":{"enum":["x","y"]},"minItems":2}}}),
            json!({"type":"object","properties":{"a":{"anyOf":[{"type":"null"},{"type":"string"}]},"n":{"type":"number"}},
                "required":["a","n"]}),
            json!({"type":"object","properties":{"t":{"type":["string","null"]},"b":{"type":"boolean"}},"required":["t","b"]}),
        ];
        for schema in &schemas {
            for nth in 0..3 {
                assert!(fitting(schema, nth).is_some(), "{schema}");
            }
            assert!(misfits(schema).iter().all(|(_, args)| !fits(schema, args)));
        }
        assert_ne!(fitting(&schemas[3], 0), fitting(&schemas[3], 1));
        assert_eq!(misfits(&schemas[1]).len(), 4);
        assert_eq!(
            fitting(
                &json!({"type":"object","properties":{"a":{"pattern":"^q$","type":"string"}},"required":["a"]}),
                0
            ),
            None
        );
    }
}
