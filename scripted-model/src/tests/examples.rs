//! Plays the example team against its script without a runtime. The team finishes in whatever order
//! its members answer.

use serde_json::json;

use crate::{
    RequestMessage, Script, ScriptedFault, ScriptedPart, ToolCall, ToolResult, answer::Playbook,
    request::ModelRequest, script::Reply,
};

const LEAD: &str = "You are the lead of a small team.";

fn playbook() -> Playbook {
    Playbook::new(
        Script::parse(include_str!("../../../examples/scripts/build-a-cli.json")).unwrap(),
    )
}

fn asked(system: &str, said: Vec<RequestMessage>) -> ModelRequest {
    ModelRequest {
        system: system.to_owned(),
        messages: said,
        ..ModelRequest::default()
    }
}

/// Returns the names of the tools that a reply calls, or its text if it has no call.
fn heard(reply: &Reply) -> String {
    let calls: Vec<&str> = reply
        .parts
        .iter()
        .filter_map(|part| {
            if let ScriptedPart::Call(call) = part {
                Some(call.name.as_str())
            } else {
                None
            }
        })
        .collect();
    match (calls.is_empty(), reply.parts.first()) {
        (true, Some(ScriptedPart::Text(text))) => text.to_string(),
        _ => calls.join(" "),
    }
}

fn user(text: &str) -> RequestMessage {
    RequestMessage::User(text.to_owned())
}

fn round(tool: &str, result: &str) -> [RequestMessage; 2] {
    let (id, name) = ("a".to_owned(), tool.to_owned());
    let calls = vec![ToolCall {
        id: id.clone(),
        name: name.clone(),
    }];
    [
        RequestMessage::Model {
            text: String::new(),
            calls,
        },
        RequestMessage::Results(vec![ToolResult {
            id,
            name,
            text: result.to_owned(),
        }]),
    ]
}

#[test]
fn orchestrator_waits_for_both_halves_in_either_order() {
    let playbook = playbook();
    let (program, test) = (
        user("coder: count.sh is in place."),
        user("tester: count_test.sh is ready."),
    );
    let cases = [
        (vec![user("build it")], "list_team"),
        (
            vec![user("build it"), program.clone()],
            "The program is there. I wait for the test.",
        ),
        (
            vec![user("build it"), test.clone()],
            "The test is there. I wait for the program.",
        ),
        (
            vec![user("build it"), program.clone(), test.clone()],
            "ask_agent",
        ),
        (vec![user("build it"), test, program], "ask_agent"),
    ];
    for (said, expected) in cases {
        assert_eq!(
            heard(&playbook.reply(&asked(LEAD, said)).unwrap()),
            expected
        );
    }
}

#[test]
fn failing_test_is_fixed_and_run_again() {
    let playbook = playbook();
    let begun = || vec![user("count.sh is in place. count_test.sh is ready.")];
    let mut said = begun();
    for (result, asks) in [("The test fails: FAIL", "coder"), ("Fixed: wc", "tester")] {
        said.extend(round("ask_agent", result));
        let reply = playbook.reply(&asked(LEAD, said.clone())).unwrap();
        let call = reply.parts.iter().find_map(|part| {
            if let ScriptedPart::Call(call) = part {
                Some(call)
            } else {
                None
            }
        });
        assert_eq!(call.unwrap().args["agent"], json!(asks));
    }
    said.extend(round("ask_agent", "The test passes: ok"));
    assert!(heard(&playbook.reply(&asked(LEAD, said)).unwrap()).starts_with("Done."));
}

#[test]
fn tester_with_the_words_tool_uses_it_first() {
    let asks = |tools: &[&str], said: Vec<RequestMessage>| {
        let tools = tools.iter().map(|tool| (*tool).to_owned()).collect();
        heard(
            &playbook()
                .reply(&ModelRequest {
                    tools,
                    ..asked("You are the tester", said)
                })
                .unwrap(),
        )
    };
    assert_eq!(asks(&["write"], vec![user("write a test")]), "write");
    assert_eq!(
        asks(&["count_words", "write"], vec![user("write a test")]),
        "count_words"
    );
    let mut said = vec![user("write a test")];
    said.extend(round("count_words", "3"));
    assert_eq!(asks(&["count_words", "write"], said), "write");
    assert_eq!(
        asks(
            &["count_words", "write"],
            vec![user("Please run count_test.sh")]
        ),
        "bash"
    );
}

#[test]
fn interrupted_test_is_run_again() {
    let mut said = vec![user("Please run count_test.sh")];
    said.extend(round(
        "bash",
        "interrupted; it may or may not have taken effect",
    ));
    assert_eq!(
        heard(
            &playbook()
                .reply(&asked("You are the tester", said))
                .unwrap()
        ),
        "bash"
    );
}

#[test]
fn other_examples_are_valid_scripts() {
    Script::parse(include_str!("../../../examples/scripts/hello.json")).unwrap();
    Script::parse(include_str!("../../../examples/scripts/day.json")).unwrap();
}

/// The parser refuses unknown fields, so a wrong field name in the README fails this test.
#[test]
fn scripts_in_the_readme_are_valid() {
    let page = include_str!("../../README.md");
    let fenced = page.split("```json\n").skip(1);
    let scripts: Vec<&str> = fenced
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(!scripts.is_empty());
    for script in scripts {
        Script::parse(script).unwrap();
    }
    let faults = page
        .split('`')
        .filter(|code| code.starts_with("{\"") && !code.contains('…'))
        .chain(["\"hang_before_head\""]);
    let read: Vec<ScriptedFault> = faults
        .map(|code| serde_json::from_str(code).unwrap())
        .collect();
    assert_eq!(read.len(), 6, "{read:?}");
}
