use serde_json::json;

use super::*;
use crate::{Caps, Launcher, Sandbox, testing::World};

fn faults(text: &str) -> String {
    let faults = Definition::parse(text).unwrap_err();
    faults
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_mistake_is_reported_at_once() {
    insta::assert_snapshot!(faults("{\"name\": \"a\",\n  \"command\" \"ls\"}"), @"line 2, column 13: expected `:`; it must be one JSON object");
    insta::assert_snapshot!(faults("[]"), @"line 1, column 0: invalid type: sequence, expected a map; it must be one JSON object");
    insta::assert_snapshot!(faults("{}"), @r"
        `name` is missing; add a name of 1 to 64 of A-Z a-z 0-9 _ -
        `description` is missing; add what the tool does and when to use it
        `parameters` is missing; add a JSON Schema of the arguments, an object schema
        `command` is missing; add the command line, with `{{argument}}` for an argument
        ");
    let wrong = json!({
        "name": "a.b",
        "descripton": "x",
        "description": "",
        "command": "cat {{file}} | wc",
        "parameters": {"type": "object", "properties": {"file": {"type": "text"}}},
        "effect": "none",
        "timeout_ms": 0,
    });
    insta::assert_snapshot!(faults(&wrong.to_string()), @r#"
        `descripton` is no field of a tool; did you mean `description`?
        `name` is wrong: `a.b` is not 1 to 64 of A-Z a-z 0-9 _ -
        `description` is wrong: it must be a text that is not empty, but is ""
        `parameters` is wrong: "text" is not valid under any of the schemas listed in the 'anyOf' keyword at /properties/file/type
        `command` is wrong: `|` means something to a shell only; write `sh -c '…' sh {{argument}}` and use "$1"
        `effect` is wrong: it must be "pure", "idempotent" or "mutating", but is "none"
        `timeout_ms` is wrong: it must be 1 to 3600000, but is 0
        "#);
    let stray = json!({"name": "a", "description": "x", "command": "cat {{pth}}", "parameters": {"type": "object", "properties": {"path": {}}}});
    insta::assert_snapshot!(faults(&stray.to_string()), @"`command` is wrong: `{{pth}}` is not a property of `parameters`");
}

#[test]
fn absent_fields_have_defaults() {
    let least =
        json!({"name": "a", "description": "x", "command": "ls", "parameters": {"type": "object"}});
    let tool = Definition::parse(&least.to_string()).unwrap();
    assert_eq!(tool.spec.effect, planck_common::event::ToolEffect::Mutating);
    assert_eq!(tool.timeout, Duration::from_secs(60));
    let mut more = least;
    more["effect"] = json!("pure");
    more["timeout_ms"] = json!(5);
    let tool = Definition::parse(&more.to_string()).unwrap();
    assert_eq!(
        (tool.spec.effect, tool.timeout),
        (
            planck_common::event::ToolEffect::Pure,
            Duration::from_millis(5)
        )
    );
}

#[test]
fn bad_descriptions_are_skipped() {
    let world = World::new();
    let good = json!({"name": "good", "description": "x", "command": "ls", "parameters": {"type": "object"}});
    world.write("tools/b-good/TOOL.json", good.to_string());
    world.write("tools/a-bad/TOOL.json", "{");
    world.write("tools/c-binary/TOOL.json", b"\xff\xfe");
    world.write("tools/no-tool/README.md", "");
    world.write("tools/file", "");
    let shell = Shell::new(
        Launcher::alone("planck".into()),
        Sandbox::off(),
        None,
        &[],
        Caps::default(),
    );
    let (tools, problems) = load(
        &["tools", "none"].map(|dir| ProjectSource::named(&world.at(dir))),
        &world.files(),
        &shell,
    );
    assert_eq!(
        tools
            .iter()
            .map(|tool| tool.spec().name.as_str())
            .collect::<Vec<_>>(),
        ["good"]
    );
    let told: Vec<String> = problems
        .iter()
        .map(|problem| {
            problem
                .to_string()
                .replace(&*world.at("").to_string_lossy(), "/")
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r"
        /tools/a-bad/TOOL.json describes no tool: line 1, column 1: EOF while parsing an object; it must be one JSON object
        cannot read /tools/c-binary/TOOL.json: it is not UTF-8 text
        ");
}
