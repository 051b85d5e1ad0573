//! Tests of the list of tools of an agent that searches them.

use planck_common::{
    event::{Event, EventKind, ToolEffect},
    message::StopReason,
    permission::{Permissions, Rule, RuleAction},
    usage::Usage,
};

use super::{
    script::*,
    world::{World, setup, tool},
};
use crate::{
    Command, Input, Setup,
    input::CompactionResult,
    model::{Finish, ToolSpec},
    outcome::ToolOutcome,
    search::TOOL_SEARCH,
};

const NODES_OWN: [&str; 6] = ["ask", "ask_user", "deploy", "read", TOOL_SEARCH, "write"];

fn searched(name: &str) -> ToolSpec {
    ToolSpec {
        is_searched: true,
        sidecar: Some("animals".into()),
        description: "Does something. ".repeat(100),
        ..tool(name, ToolEffect::Pure)
    }
}

/// Returns the set-up of an agent that searches the tools with these names.
fn searching(names: &[&str]) -> Setup {
    let mut setup = setup();
    let mut tools = setup.tools.to_vec();
    tools.push(tool(TOOL_SEARCH, ToolEffect::Pure));
    tools.extend(names.iter().map(|name| searched(name)));
    setup.tools = tools.into();
    setup
}

fn zoo() -> World {
    World::new(searching(&["ant", "bee", "cat"]))
}

fn line(name: &str) -> String {
    format!(r#"{{"name":"{name}","description":"a \"name\":\"cat\""}}"#)
}

impl World {
    fn listed(&self) -> Vec<&str> {
        let tools = self.agent.tools().iter();
        tools.map(|tool| tool.name.as_str()).collect()
    }

    /// Returns the listed tools besides those of the node.
    fn found(&self) -> Vec<&str> {
        let listed = self.listed().into_iter();
        listed.filter(|name| !NODES_OWN.contains(name)).collect()
    }

    fn search(&mut self, result: ToolOutcome) {
        self.call_tool(TOOL_SEARCH, r#"{"query":"animal"}"#);
        self.commit_all();
        self.tool_done(result);
        self.commit_all();
    }

    fn retool(&mut self, names: &[&str]) {
        let Setup {
            tools, arguments, ..
        } = searching(names);
        self.setup.tools = tools.clone();
        self.step(Input::Command(Command::Tools {
            added: Vec::new(),
            removed: Vec::new(),
            tools,
            arguments,
            named: Vec::new(),
        }));
        self.commit_all();
    }

    /// Compacts the context once it is full, and keeps its last message.
    fn compact_at(&mut self, words: &str) {
        while self.compactor.is_none() {
            let (n, ticket) = (self.rows.len(), self.model.take().unwrap());
            // Without a count of the provider the context grows.
            self.step(Input::Answered {
                ticket,
                chunks: call(0, "read", &format!(r#"{{"n":{n}}}"#)).into(),
                result: Ok(Finish::new(StopReason::ToolUse, Usage::default())),
                jitter: 0.0,
            });
            self.commit_all();
            self.tool_done(ToolOutcome::ok("hay ".repeat(100)));
            self.commit_all();
        }
        let ticket = self.compactor.take().unwrap();
        let result = CompactionResult::Summary {
            text: words.into(),
            keep_from: self.agent.compaction().unwrap().keep_from(),
            by: "local".into(),
            usage: Usage::default(),
        };
        self.step(Input::Compacted { ticket, result });
        self.commit_all();
    }
}

#[test]
fn a_found_tool_is_listed_from_the_next_request_on() {
    let mut world = zoo();
    assert_eq!(world.listed(), NODES_OWN);
    world.put(prompt("p1"));
    let (version, tokens) = (world.agent.version(), world.agent.context_tokens());
    world.search(ToolOutcome::ok(format!("{}\n{}", line("bee"), line("elk"))));
    assert_eq!(world.found(), ["bee"], "the agent has no elk");
    assert_ne!(
        world.agent.version(),
        version,
        "the request is encoded again"
    );
    let schema = searched("bee").description.len() as u64 / 4;
    assert!(world.agent.context_tokens() > tokens + schema);
    let version = world.agent.version();
    world.call_tool("bee", "{}");
    world.commit_all();
    world.tool_done(ToolOutcome::ok("buzz"));
    world.search(ToolOutcome::ok(line("bee")));
    assert_eq!(world.agent.version(), version, "nothing new was found");
    world.say("done");
    world.commit_all();
    world.put(prompt("p2"));
    assert_eq!(world.found(), ["bee"], "in later turns too");
}

#[test]
fn only_the_results_of_searches_name_tools() {
    let mut world = zoo();
    world.put(prompt("p1"));
    world.search(ToolOutcome::error(line("ant")));
    world.call_tool("read", "{}");
    world.commit_all();
    world.tool_done(ToolOutcome::ok(line("ant")));
    world.commit_all();
    assert!(world.found().is_empty(), "{:?}", world.found());
    // The loop guard adds its remark to the third equal call.
    for _ in 0..2 {
        world.search(ToolOutcome::ok("no tool has a word"));
    }
    world.search(ToolOutcome::ok(line("ant")));
    let result = world.results().pop().unwrap();
    assert!(result.contains("\n\n"), "no remark: {result}");
    assert_eq!(world.found(), ["ant"]);
}

#[test]
fn a_tool_that_is_not_listed_can_be_called() {
    let mut world = zoo();
    world.put(prompt("p1"));
    let calls = [call(0, "cat", "{}"), call(1, "dog", "{}")].concat();
    world.answer(calls, StopReason::ToolUse);
    world.commit_all();
    assert_eq!(world.tools.len(), 1, "there is no dog");
    world.tool_done(ToolOutcome::ok("meow"));
    world.commit_all();
    assert_eq!(
        world.found(),
        ["cat"],
        "the model has its schema for the next call"
    );
    let refused = &world.results()[1];
    assert!(refused.contains("there is no tool `dog`"), "{refused}");
}

#[test]
fn a_restored_agent_lists_the_same_tools() {
    let mut world = zoo();
    world.put(prompt("p1"));
    world.search(ToolOutcome::ok(line("bee")));
    world.call_tool("cat", "{}");
    world.commit_all();
    world.tool_done(ToolOutcome::ok("meow"));
    world.commit_all();
    let tokens = world.agent.context_tokens();
    world.crash();
    assert_eq!(world.found(), ["bee", "cat"]);
    assert_eq!(world.agent.context_tokens(), tokens);
    // The fourth message is the call of the cat.
    world.rewind(3);
    assert_eq!(world.found(), ["bee"]);
    world.rewind(1);
    assert!(world.found().is_empty());
}

#[test]
fn a_tool_whose_search_is_compacted_is_not_listed() {
    let mut setup = searching(&["ant", "bee", "cat"]);
    setup.card.context_window = 6_000;
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.search(ToolOutcome::ok(line("bee")));
    world.call_tool("cat", "{}");
    world.commit_all();
    world.tool_done(ToolOutcome::ok("meow"));
    world.commit_all();
    assert_eq!(world.found(), ["bee", "cat"]);
    let version = world.agent.version();
    world.compact_at("hay, and a bee");
    assert!(world.found().is_empty(), "{:?}", world.found());
    assert_ne!(world.agent.version(), version);
    world.call_tool("read", "{}");
    world.commit_all();
    world.tool_done(ToolOutcome::ok("hay"));
    world.commit_all();
    let tokens = world.agent.context_tokens();
    world.crash();
    assert_eq!(world.agent.context_tokens(), tokens);
    assert_eq!(world.listed(), NODES_OWN);
    world.search(ToolOutcome::ok(line("bee")));
    assert_eq!(world.found(), ["bee"]);
}

#[test]
fn a_withdrawn_tool_is_listed_again_when_it_comes_back() {
    let mut world = zoo();
    world.put(prompt("p1"));
    world.search(ToolOutcome::ok(line("bee")));
    let version = world.agent.version();
    world.retool(&["ant", "bee", "cat", "dog"]);
    assert_eq!(world.agent.version(), version, "the list stays the same");
    world.retool(&["ant", "cat"]);
    assert!(world.found().is_empty());
    assert_ne!(world.agent.version(), version);
    let Some(Event::ToolsChanged(changed)) = world.events_of(EventKind::ToolsChanged).pop() else {
        panic!()
    };
    let names: Vec<&str> = changed.tools.iter().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "ant",
            "ask",
            "ask_user",
            "cat",
            "deploy",
            "read",
            TOOL_SEARCH,
            "write"
        ]
    );
    world.call_tool("bee", "{}");
    world.commit_all();
    assert!(
        world
            .results()
            .pop()
            .unwrap()
            .contains("there is no tool `bee`")
    );
    world.retool(&["bee"]);
    assert_eq!(world.found(), ["bee"]);
}

#[test]
fn all_tools_are_listed_without_the_nodes_search() {
    for other in [
        None,
        Some(searched(TOOL_SEARCH)),
        Some(ToolSpec {
            wait: Some(planck_common::wait::WaitKind::ClientTool),
            ..tool(TOOL_SEARCH, ToolEffect::Idempotent)
        }),
    ] {
        let mut setup = setup();
        setup.tools = [searched("ant"), searched("bee")]
            .into_iter()
            .chain(other)
            .collect();
        let world = World::new(setup);
        assert_eq!(world.found(), ["ant", "bee"]);
    }
}

#[test]
fn a_search_needs_no_permission() {
    let mut setup = searching(&["ant"]);
    setup.spec.permissions = vec![Permissions {
        rules: vec![Rule {
            tool: None,
            effect: None,
            path: None,
            command: None,
            sidecar: None,
            action: RuleAction::Deny,
        }],
        ..Permissions::default()
    }];
    let mut world = World::new(setup);
    world.put(prompt("p1"));
    world.search(ToolOutcome::ok(line("ant")));
    world.call_tool("ant", "{}");
    world.commit_all();
    assert!(world.tools.is_empty(), "the rule denies what was found");
}
