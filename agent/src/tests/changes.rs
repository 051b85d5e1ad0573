//! Calls that changed protected files, and calls that did not run because of such changes.

use planck_common::{
    CallId,
    event::{Event, EventKind, TurnEnd, TurnOutcome},
    message::StopReason,
    wait::{ChangeKind, ProtectedChange, WaitDecision, WaitKind, WaitOpened},
};

use super::{
    script::*,
    world::{World, setup},
};
use crate::outcome::ToolOutcome;

pub fn changes() -> Vec<ProtectedChange> {
    vec![ProtectedChange {
        call: CallId::parse("earlier").unwrap(),
        path: "/ws/.envrc".into(),
        change: ChangeKind::Added,
        text: Some("evil".into()),
    }]
}

fn changing(text: &str) -> ToolOutcome {
    ToolOutcome {
        changes: changes(),
        ..ToolOutcome::ok(text)
    }
}

impl World {
    /// Returns a world in which two calls run.
    fn writing() -> Self {
        let mut world = Self::new(setup());
        world.put(prompt("p1"));
        let calls = [call(0, "write", "{}"), call(1, "read", "{}")].concat();
        world.answer(calls, StopReason::ToolUse);
        world.commit_all();
        world
    }

    fn opened(&self) -> WaitOpened {
        match self.events_of(EventKind::WaitOpened).pop() {
            Some(Event::WaitOpened(opened)) => opened,
            other => panic!("no wait: {other:?}"),
        }
    }
}

#[test]
fn call_with_changes_waits_while_others_go_on() {
    let mut world = World::writing();
    world.tool_done(changing("written"));
    world.commit_all();
    let opened = world.opened();
    assert_eq!(opened.kind, WaitKind::Change);
    assert_ne!(
        opened.id,
        *opened.call(),
        "an approval of the call keeps its row"
    );
    assert_eq!(opened.title, "write changed protected files: /ws/.envrc");
    let request: serde_json::Value = serde_json::from_str(opened.request.get()).unwrap();
    assert_eq!(request["calls"], serde_json::json!(["earlier"]));
    assert_eq!(request["result"]["text"], "written");

    world.tool_done(ToolOutcome::ok("read"));
    world.commit_all();
    assert!(world.agent.is_waiting());
    world.crash();
    assert!(world.agent.is_waiting() && world.tools.is_empty());
    world.decide(0, WaitDecision::Allow, true);
    world.commit_all();
    assert_eq!(world.results(), ["written", "read"]);
    assert!(world.model.is_some(), "the turn goes on");
}

#[test]
fn call_that_did_not_run_runs_when_the_changes_are_kept() {
    let mut world = World::writing();
    let tools = world.tools.len();
    world.ledger.clear();
    world.tool_done(ToolOutcome::not_run(changes()));
    world.commit_all();
    assert!(world.opened().title.starts_with("write has to wait"));
    world.decide(0, WaitDecision::Allow, true);
    world.commit_all();
    assert_eq!(world.tools.len(), tools);
    assert_eq!(world.events_of(EventKind::ToolStart).len(), tools);
}

#[test]
fn turn_ends_if_the_changes_are_not_kept() {
    let mut world = World::writing();
    world.tool_done(changing("written"));
    world.commit_all();
    world.decide(0, WaitDecision::Deny, true);
    world.commit_all();
    assert!(world.agent.is_winding_down());
    world.tool_done(ToolOutcome::stopped(""));
    world.commit_all();
    let why = "a person did not keep the changes of protected files";
    assert_eq!(world.results(), [format!("written\n\n{why}"), why.into()]);
    let ends = world.ends();
    let [Event::TurnEnd(TurnEnd { outcome, .. })] = ends.as_slice() else {
        panic!("{ends:?}")
    };
    assert_eq!(*outcome, TurnOutcome::Aborted);
}

#[test]
fn result_is_kept_if_the_wait_is_withdrawn() {
    let mut world = World::writing();
    world.tool_done(changing("written"));
    world.tool_done(ToolOutcome::ok("read"));
    world.commit_all();
    world.step(crate::Input::Command(crate::Command::Abort {
        reason: None,
    }));
    world.commit_all();
    assert_eq!(world.results(), ["written", "read"]);
    assert!(world.agent.is_idle());
}
