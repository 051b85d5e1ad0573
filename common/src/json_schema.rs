//! The limits of a JSON Schema that a model, a client or a sidecar wrote. A schema of a few hundred
//! bytes can name its parts so often that no machine can compare a value with it.

use std::{
    collections::{HashMap, HashSet},
    ptr::from_ref,
};

use serde_json::{Map, Value};

/// The maximum size of the text of a schema in bytes.
pub const MOST_BYTES: usize = 64 * 1024;

/// The maximum number of schemas in a schema after each `$ref` is replaced by what it names. The
/// parts of a schema that refer to themselves are counted once.
pub const MOST_PARTS: u64 = 10_000;

/// How deep schemas may be nested in schemas after each `$ref` is replaced.
pub const DEEPEST: u32 = 64;

/// The number of parts for which a regular expression counts, which costs more than other rules.
const EXPRESSION: u64 = 50;

/// The size of a schema within the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchemaSize {
    /// The number of schemas after each `$ref` is replaced, at most [`MOST_PARTS`].
    pub parts: u64,
    /// How deep they are nested, at most [`DEEPEST`].
    pub depth: u32,
    /// Whether a part of the schema refers to a part that contains it.
    pub is_recursive: bool,
}

/// Why a schema is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaFault {
    #[error("it has {0} bytes, over the limit of {MOST_BYTES}; describe less")]
    Long(usize),
    #[error("not JSON: {0}")]
    NotJson(String),
    #[error(
        "it has more than {MOST_PARTS} parts once each `$ref` is replaced by what it names; refer to fewer parts, or less often"
    )]
    Large,
    #[error(
        "it is nested deeper than {DEEPEST} levels once each `$ref` is replaced by what it names"
    )]
    Deep,
    #[error(
        "its `$ref` `{0}` leads back to itself about the same value; refer to it from `properties` or `items` only"
    )]
    Circular(String),
    #[error(
        "its `$ref` `{0}` names no part of it; write a JSON pointer into this schema, such as `#/$defs/name`"
    )]
    Reference(String),
    #[error("`{0}` is not supported in a part of it; use `$ref` with a JSON pointer")]
    Keyword(&'static str),
}

/// Parses the text of a schema that is within the limits.
pub fn parse(text: &str) -> Result<(Value, SchemaSize), SchemaFault> {
    if text.len() > MOST_BYTES {
        return Err(SchemaFault::Long(text.len()));
    }
    let schema = serde_json::from_str(text).map_err(|why| SchemaFault::NotJson(why.to_string()))?;
    let size = measure(&schema)?;
    Ok((schema, size))
}

/// Counts the parts of a schema. Fails if the schema exceeds a limit.
pub fn measure(schema: &Value) -> Result<SchemaSize, SchemaFault> {
    let mut whole = SchemaWalk::new(schema, FollowedParts::Everything);
    let of_root = whole.visit(schema, 0)?;
    // About one value, every `$ref` is followed as often as it is met, and none may come back.
    let mut of_value = SchemaWalk::new(schema, FollowedParts::SameValue);
    for part in &whole.visited {
        of_value.visit(part, 0)?;
    }
    let named_again: HashSet<&Place> = whole.returns.values().collect();
    let parts = named_again
        .into_iter()
        .filter_map(|part| whole.sizes.get(part))
        .fold(of_root.parts, |sum, size| sum.saturating_add(size.parts));
    if parts > MOST_PARTS {
        return Err(SchemaFault::Large);
    }
    Ok(SchemaSize {
        parts,
        depth: of_root.depth,
        is_recursive: !whole.returns.is_empty(),
    })
}

/// Returns a copy of a schema in which no part refers to a part that contains it. The copy fits
/// more values.
pub fn without_recursion(schema: &Value) -> Result<Value, SchemaFault> {
    let mut walk = SchemaWalk::new(schema, FollowedParts::Everything);
    walk.visit(schema, 0)?;
    Ok(walk.copy(schema))
}

/// The parts of a schema that a walk visits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowedParts {
    Everything,
    /// The parts that are compared with the same value as the schema that has them.
    SameValue,
}

/// The number of schemas in a part, and how deep they are nested.
#[derive(Debug, Clone, Copy)]
struct PartSize {
    parts: u64,
    depth: u32,
}

/// A part of a schema, by its address.
type Place = *const Map<String, Value>;

/// A walk through a schema, in which each part is visited once.
struct SchemaWalk<'a> {
    root: &'a Value,
    follow: FollowedParts,
    sizes: HashMap<Place, PartSize>,
    /// The parts that contain the one that is visited.
    open: HashSet<Place>,
    visited: Vec<&'a Value>,
    /// The parts whose `$ref` names a part that contains them, each with that part.
    returns: HashMap<Place, Place>,
}

impl<'a> SchemaWalk<'a> {
    fn new(root: &'a Value, follow: FollowedParts) -> Self {
        Self {
            root,
            follow,
            sizes: HashMap::new(),
            open: HashSet::new(),
            visited: Vec::new(),
            returns: HashMap::new(),
        }
    }

    fn visit(&mut self, schema: &'a Value, above: u32) -> Result<PartSize, SchemaFault> {
        let Value::Object(map) = schema else {
            return Ok(PartSize { parts: 1, depth: 1 });
        };
        let place = from_ref(map);
        let size = match self.sizes.get(&place) {
            Some(size) => *size,
            None => {
                if above >= DEEPEST {
                    return Err(SchemaFault::Deep);
                }
                self.visited.push(schema);
                self.open.insert(place);
                let size = self.count(map, above)?;
                self.open.remove(&place);
                self.sizes.insert(place, size);
                size
            }
        };
        if above.saturating_add(size.depth) > DEEPEST {
            return Err(SchemaFault::Deep);
        }
        if size.parts > MOST_PARTS {
            return Err(SchemaFault::Large);
        }
        Ok(size)
    }

    fn count(&mut self, map: &'a Map<String, Value>, above: u32) -> Result<PartSize, SchemaFault> {
        let mut whole = PartSize { parts: 1, depth: 1 };
        let mut is_judged_again = false;
        for (keyword, value) in map {
            match (keyword.as_str(), value) {
                ("$ref", Value::String(text)) => self.refer(map, text, above, &mut whole)?,
                ("$dynamicRef", _) => return Err(SchemaFault::Keyword("$dynamicRef")),
                ("$recursiveRef", _) => return Err(SchemaFault::Keyword("$recursiveRef")),
                ("$id", Value::String(_)) if !self.is_root(map) => {
                    return Err(SchemaFault::Keyword("$id"));
                }
                ("unevaluatedItems" | "unevaluatedProperties", _) => is_judged_again = true,
                _ => {}
            }
            whole.parts = whole.parts.saturating_add(cost(keyword, value));
            let (follow, parts) = parts_of(keyword, value);
            if follow == FollowedParts::SameValue || self.follow == FollowedParts::Everything {
                for part in parts {
                    self.add(part, above, &mut whole)?;
                }
            }
        }
        // To learn what is unevaluated, all other parts are compared with the value once more.
        if is_judged_again {
            whole.parts = whole.parts.saturating_mul(3);
        }
        Ok(whole)
    }

    /// Adds the part that a `$ref` of `map` names.
    fn refer(
        &mut self,
        map: &'a Map<String, Value>,
        text: &str,
        above: u32,
        whole: &mut PartSize,
    ) -> Result<(), SchemaFault> {
        let unknown = || SchemaFault::Reference(text.into());
        let target = self.find(text).ok_or_else(unknown)?;
        match target.as_object().map(from_ref) {
            Some(place) if self.open.contains(&place) => match self.follow {
                FollowedParts::SameValue => Err(SchemaFault::Circular(text.into())),
                FollowedParts::Everything => {
                    self.returns.insert(from_ref(map), place);
                    Ok(())
                }
            },
            Some(_) | None => self.add(target, above, whole),
        }
    }

    fn add(
        &mut self,
        part: &'a Value,
        above: u32,
        whole: &mut PartSize,
    ) -> Result<(), SchemaFault> {
        let size = self.visit(part, above + 1)?;
        whole.parts = whole.parts.saturating_add(size.parts);
        whole.depth = whole.depth.max(size.depth + 1);
        Ok(())
    }

    /// Returns the part that a `$ref` names. A part with an `$id` is a schema of its own, in which
    /// the same pointer names something else, so no pointer leads through it.
    fn find(&self, reference: &str) -> Option<&'a Value> {
        let pointer = percent_decoded(reference.strip_prefix('#')?)?;
        if pointer.is_empty() {
            return Some(self.root);
        }
        let mut at = self.root;
        for step in pointer.strip_prefix('/')?.split('/') {
            let step = step.replace("~1", "/").replace("~0", "~");
            at = match at {
                Value::Object(map) => map.get(&step)?,
                Value::Array(list) => list.get(step.parse::<usize>().ok()?)?,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
            };
            if at.get("$id").is_some_and(Value::is_string) {
                return None;
            }
        }
        Some(at)
    }

    fn is_root(&self, map: &Map<String, Value>) -> bool {
        self.root
            .as_object()
            .is_some_and(|root| std::ptr::eq(root, map))
    }

    fn copy(&self, value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let returns = self.returns.contains_key(&from_ref(map));
                let kept = map.iter().filter(|(key, _)| !(returns && *key == "$ref"));
                Value::Object(
                    kept.map(|(key, value)| (key.clone(), self.copy(value)))
                        .collect(),
                )
            }
            Value::Array(list) => Value::Array(list.iter().map(|value| self.copy(value)).collect()),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }
}

/// Returns the schemas in a keyword, and with what they are compared: with the same value as the
/// schema that has the keyword, or with a part of it.
fn parts_of<'a>(keyword: &str, value: &'a Value) -> (FollowedParts, Vec<&'a Value>) {
    let items = || value.as_array().into_iter().flatten().collect();
    let members = || {
        let members = value.as_object().into_iter();
        members.flat_map(|map| map.values()).collect()
    };
    match keyword {
        "not" | "if" | "then" | "else" => (FollowedParts::SameValue, vec![value]),
        "allOf" | "anyOf" | "oneOf" => (FollowedParts::SameValue, items()),
        "dependentSchemas" | "dependencies" => (FollowedParts::SameValue, members()),
        "properties" | "patternProperties" => (FollowedParts::Everything, members()),
        "prefixItems" => (FollowedParts::Everything, items()),
        "items" if value.is_array() => (FollowedParts::Everything, items()),
        "items"
        | "additionalItems"
        | "unevaluatedItems"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "contains"
        | "propertyNames" => (FollowedParts::Everything, vec![value]),
        _ => (FollowedParts::SameValue, Vec::new()),
    }
}

/// Returns what a keyword costs beside the schemas in it.
fn cost(keyword: &str, value: &Value) -> u64 {
    match keyword {
        "enum" | "const" => count_values(value),
        "pattern" => EXPRESSION,
        "patternProperties" => {
            let count = value.as_object().map_or(0, Map::len) as u64;
            EXPRESSION.saturating_mul(count)
        }
        _ => 0,
    }
}

fn count_values(value: &Value) -> u64 {
    1 + match value {
        Value::Array(list) => list.iter().map(count_values).sum(),
        Value::Object(map) => map.values().map(count_values).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Returns the text that a fragment of an address stands for.
fn percent_decoded(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match (*first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let byte = digit(high)? * 16 + digit(low)?;
                bytes.push(u8::try_from(byte).ok()?);
                after
            }
            (b'%', _) => return None,
            (byte, after) => {
                bytes.push(byte);
                after
            }
        };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn size(schema: &Value) -> Result<(u64, u32, bool), String> {
        measure(schema)
            .map(|size| (size.parts, size.depth, size.is_recursive))
            .map_err(|fault| fault.to_string())
    }

    fn refused(schema: &Value, why: &str) {
        let told = size(schema).unwrap_err();
        assert!(told.contains(why), "{told}");
    }

    /// Returns a chain of schemas, each of which `part` makes of a reference to the next one.
    fn chain(length: usize, part: impl Fn(Value) -> Value) -> Value {
        let mut defs = Map::new();
        for at in 0..length {
            let next = json!({ "$ref": format!("#/$defs/a{}", at + 1) });
            defs.insert(format!("a{at}"), part(next));
        }
        defs.insert(format!("a{length}"), json!({"type": "integer"}));
        json!({"type": "object", "$ref": "#/$defs/a0", "$defs": defs})
    }

    #[test]
    fn every_reference_is_counted_as_what_it_names() {
        assert_eq!(size(&json!(true)), Ok((1, 1, false)));
        assert_eq!(size(&json!({"type": "object"})), Ok((1, 1, false)));
        let pair = json!({
            "$defs": {"a b": {"properties": {"x": {"enum": [1, [2, 3]]}}}, "unused": {"pattern": "a"}},
            "properties": {"one": {"$ref": "#/$defs/a%20b"}, "$ref": {"$ref": "#/$defs/a b"}},
        });
        // Each use has the schema with the `$ref`, the one that it names, and that of `x`.
        assert_eq!(size(&pair), Ok((1 + 2 * (1 + 1 + 1 + 5), 4, false)));
        assert_eq!(size(&json!({"pattern": "a"})), Ok((51, 1, false)));
    }

    #[test]
    fn a_short_schema_with_many_parts_is_refused() {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let bomb = |length| chain(length, |next| json!({ keyword: [next.clone(), next] }));
            refused(&bomb(22), "more than 10000 parts");
            refused(&bomb(56), "deeper than 64 levels");
            assert!(size(&bomb(8)).is_ok());
        }
        let by_parts = chain(
            20,
            |next| json!({"properties": {"a": next.clone()}, "additionalProperties": next}),
        );
        refused(&by_parts, "more than 10000 parts");
        let nested = chain(
            10,
            |next| json!({"unevaluatedProperties": false, "allOf": [next]}),
        );
        refused(&nested, "more than 10000 parts");
        refused(&json!({"enum": vec![0; 20_000]}), "more than 10000 parts");
        let expressions: Map<String, Value> = (0..300)
            .map(|at| (format!("^{at}{{1000}}"), json!(true)))
            .collect();
        refused(
            &json!({ "patternProperties": expressions }),
            "more than 10000 parts",
        );
    }

    #[test]
    fn a_long_chain_is_refused() {
        refused(
            &chain(5_000, |next| json!({"allOf": [next]})),
            "deeper than 64 levels",
        );
        assert!(matches!(
            parse(&"x".repeat(MOST_BYTES + 1)),
            Err(SchemaFault::Long(_))
        ));
        assert!(matches!(parse("{"), Err(SchemaFault::NotJson(_))));
    }

    #[test]
    fn a_schema_may_refer_to_itself_about_a_part_of_the_value() {
        let tree = json!({
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
        });
        assert_eq!(size(&tree), Ok((8, 3, true)));
        let cut = without_recursion(&tree).unwrap();
        assert_eq!(cut["properties"]["children"]["items"], json!({}));
        assert_eq!(cut["properties"]["name"], json!({"type": "string"}));
        for circle in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$defs": {"a": {"anyOf": [true, {"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}, "properties": {"x": {"$ref": "#/$defs/a"}}}),
            // The circle about one value is beside one about its parts.
            json!({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"properties": {"x": {"$ref": "#"}}, "allOf": [{"$ref": "#/$defs/b"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}}}),
        ] {
            refused(&circle, "leads back to itself");
        }
    }

    #[test]
    fn a_reference_that_leads_elsewhere_is_refused() {
        for reference in [
            "https://example.com/s.json",
            "#name",
            "other",
            "#/$defs/none",
            "#/type/x",
            "#/%zz",
        ] {
            refused(
                &json!({"type": "object", "items": {"$ref": reference}}),
                "names no part of it",
            );
        }
        refused(&json!({"items": {"$dynamicRef": "#a"}}), "`$dynamicRef`");
        refused(&json!({"items": {"$recursiveRef": "#"}}), "`$recursiveRef`");
        refused(&json!({"items": {"$id": "x", "$ref": "#/items"}}), "`$id`");
        let within = json!({"items": {"$ref": "#/$defs/a/items"}, "$defs": {"a": {"$id": "x", "items": true}}});
        refused(&within, "names no part of it");
        assert!(size(&json!({"$id": "x", "properties": {"$id": {"type": "string"}}})).is_ok());
    }
}
