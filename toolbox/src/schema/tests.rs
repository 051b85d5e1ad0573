use std::{
    sync::{Arc, mpsc},
    time::Instant,
};

use serde_json::{json, value::to_raw_value};

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
        .find(&args.to_string())
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

/// Returns a schema with a chain of definitions, each of which `part` makes of references to the
/// next one.
fn chain(length: usize, last: &Value, part: impl Fn(Value) -> Value) -> String {
    let mut defs = serde_json::Map::new();
    for at in 0..length {
        let next = json!({ "$ref": format!("#/$defs/a{}", at + 1) });
        defs.insert(format!("a{at}"), part(next));
    }
    defs.insert(format!("a{length}"), last.clone());
    json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": defs})
        .to_string()
}

#[test]
fn a_schema_that_no_machine_can_compare_is_refused() {
    for keyword in ["allOf", "anyOf", "oneOf"] {
        for length in [22, 56] {
            let last = json!({"type": "integer"});
            let bomb = chain(
                length,
                &last,
                |next| json!({ keyword: [next.clone(), next] }),
            );
            let told = CompiledSchema::compile(&bomb).unwrap_err();
            assert!(told.contains("once each `$ref` is replaced"), "{told}");
        }
    }
    let long = json!({"type": "object", "description": "x".repeat(70_000)}).to_string();
    assert!(
        CompiledSchema::compile(&long)
            .unwrap_err()
            .contains("over the limit of 65536")
    );
    let states =
        json!({"type": "object", "properties": {"x": {"pattern": "((a{500}){500}){500}"}}});
    assert!(CompiledSchema::of_value(&states.to_string()).is_err());
}

#[tokio::test]
async fn the_largest_check_ends_before_its_deadline_or_says_so() {
    let last = json!({"type": "array", "items": {"anyOf": vec![json!({"type": "string"}); 60]}});
    let wide = chain(6, &last, |next| json!({"anyOf": [next.clone(), next]}));
    let schema = Arc::new(CompiledSchema::compile(&wide).unwrap());
    let args = |count: usize| to_raw_value(&json!({ "x": vec![0; count] })).unwrap();
    let began = Instant::now();
    for (count, why) in [
        (10, "fits none"),
        (10_000, "does not fit the schema, and is too large"),
    ] {
        let told = schema.refusal("count", &args(count)).await.unwrap();
        assert!(told.contains(why) && told.len() < 3_000, "{count}: {told}");
    }
    let told = schema.refusal("count", &args(500_000)).await.unwrap();
    assert!(told.contains("too many to be compared"), "{told}");
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    assert_eq!(schema.quick_refusal("count", args(10_000).get()), None);
}

#[tokio::test]
async fn a_schema_that_refers_to_itself_is_compared_in_bounded_time() {
    let tree = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "null"}]}},
        "additionalProperties": false,
    });
    let schema = Arc::new(CompiledSchema::compile(&tree.to_string()).unwrap());
    let nested = |innermost: Value| {
        let value = (0..100).fold(innermost, |inner, _| json!({"name": "n", "next": inner}));
        to_raw_value(&value).unwrap()
    };
    assert_eq!(schema.refusal("grow", &nested(json!(null))).await, None);
    let told = schema.refusal("grow", &nested(json!(3))).await.unwrap();
    assert!(
        told.contains("about which the schema refers to itself"),
        "{told}"
    );
    let told = schema
        .refusal("grow", &to_raw_value(&json!({"name": 3})).unwrap())
        .await;
    assert!(told.unwrap().contains("`name` must be a string, got 3"));
}

#[tokio::test]
async fn the_deepest_check_does_not_overflow_the_stack() {
    let deep = chain(
        25,
        &json!({"properties": {"x": {"$ref": "#"}}}),
        |next| json!({"allOf": [next]}),
    );
    let schema = Arc::new(CompiledSchema::compile(&deep).unwrap());
    let value = (0..120).fold(json!({}), |inner, _| json!({ "x": inner }));
    assert_eq!(
        schema.refusal("dig", &to_raw_value(&value).unwrap()).await,
        None
    );
}

#[test]
fn a_pattern_is_matched_in_linear_time() {
    let text = "a".repeat(5_000) + "!";
    let of = |pattern: &str| {
        let schema =
            json!({"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}});
        CompiledSchema::compile(&schema.to_string()).unwrap()
    };
    let found = |pattern: &str| of(pattern).find(&json!({ "x": text }).to_string());
    assert!(found("^(a|a|aa)+$")[0].starts_with("`x`"));
    // These need a slower engine, so they are not compared.
    for slow in ["^(?=(a+)+$)b", "^(a+)\\1+$", "(?<!a)$"] {
        assert_eq!(found(slow), [""; 0], "{slow}");
    }
    assert_eq!(
        of("^(?!x)").find(r#"{"x": 1}"#),
        ["`x` must be a string, got 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_check_that_does_not_end_is_an_error() {
    let (end, ended) = mpsc::channel::<()>();
    let endless = within_deadline(move || {
        let _dropped = ended.recv();
        Vec::new()
    });
    let told = endless.await.join("\n");
    assert!(told.contains("within 2 s"), "{told}");
    assert!(CHECKS.available_permits() < 2, "it still counts");
    drop(end);
}

#[tokio::test]
async fn a_check_that_panics_is_an_error() {
    let panics = within_deadline(|| vec![std::env::var("no such variable").unwrap()]).await;
    assert_eq!(panics, ["it could not be checked: the check failed"]);
}
