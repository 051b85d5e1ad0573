//! The checks of the property test.

use std::collections::{HashMap, HashSet};

use planck_common::{
    CallId,
    command::AgentState,
    event::{Event, EventKind, TurnOutcome, TurnStart},
    message::{MessageRole, Part},
    wait::{WaitDecision, WaitKind},
};

use super::world::World;
use crate::Agent;

/// The tools that the agent of the property test searches.
pub const SEARCHED: [&str; 3] = ["zap", "zip", "zoo"];

/// Checks that turns are numbered without gaps, that each has one start and, unless it is open, one
/// end, and that request numbers never fall within a turn.
pub fn check_turns(world: &World) {
    let (mut turn, mut open, mut request) = (0, false, 0);
    for row in &world.rows {
        if row.kind == EventKind::TurnStart {
            let Ok(Event::TurnStart(TurnStart { index, .. })) = Event::parse(row.kind, &row.body)
            else {
                panic!()
            };
            assert!(!open, "a turn started inside another");
            assert_eq!(index, turn + 1);
            (turn, open, request) = (index, true, 0);
        }
        if row.kind.is_terminal() {
            assert!(open, "a turn ended without a start");
            open = false;
        }
        assert_eq!(row.place.turn, turn);
        assert!(row.place.request >= request);
        request = row.place.request;
    }
    let is_open = !matches!(world.agent.state(), AgentState::Idle | AgentState::Stopped);
    assert_eq!(
        open, is_open,
        "the log and the agent disagree on whether a turn is open"
    );
}

/// Checks that a turn with a shape is completed with an answer that satisfies the shape or leaves the
/// shape to a later turn, and that no other turn has such an answer.
pub fn check_shapes(world: &World) {
    let mut has_shape = false;
    for row in &world.rows {
        if !matches!(row.kind, EventKind::TurnStart | EventKind::TurnEnd) {
            continue;
        }
        match Event::parse(row.kind, &row.body) {
            Ok(Event::TurnStart(start)) => has_shape = start.output.is_some(),
            Ok(Event::TurnEnd(end)) => {
                let answered = end.outcome == TurnOutcome::Completed && !end.refused;
                let output = end.output.as_ref().map(|output| output.get());
                assert_eq!(
                    output.is_some() || end.output_due.is_some(),
                    answered && has_shape,
                    "{end:?}"
                );
                assert!(output.is_none_or(|output| !output.contains("bad")));
                assert!(end.output_repairs <= 3);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Checks that no call starts or ends twice, and that every started call has an end once its round
/// is over.
pub fn check_calls(world: &World, may_be_open: bool) {
    let mut ends: HashMap<String, usize> = HashMap::new();
    let mut starts: HashMap<String, usize> = HashMap::new();
    for row in &world.rows {
        match Event::parse(
            row.kind,
            if row.kind == EventKind::Message {
                "{}"
            } else {
                &row.body
            },
        ) {
            Ok(Event::ToolStart(start)) => {
                *starts.entry(start.call_id.to_string()).or_default() += 1
            }
            Ok(Event::ToolEnd(end)) => *ends.entry(end.call_id.to_string()).or_default() += 1,
            _ => {}
        }
    }
    assert!(
        ends.values()
            .chain(starts.values())
            .all(|count| *count == 1),
        "a call started or ended twice"
    );
    assert!(
        may_be_open || starts.keys().all(|call| ends.contains_key(call)),
        "a call without an end"
    );
}

/// Checks that an allowed call has a start in the log, and that any other call that waited has none
/// but a result. The answer, and what becomes of the call, are saved together, so a crash between
/// them neither runs a denied call nor loses an allowed one.
pub fn check_decisions(world: &World) {
    let mut decisions: HashMap<CallId, WaitDecision> = HashMap::new();
    let (mut starts, mut ends) = (HashSet::new(), HashSet::new());
    // Limits, and what a person decides about calls that have started already.
    let mut others = HashSet::new();
    for row in &world.rows {
        if row.kind == EventKind::Message {
            continue;
        }
        match Event::parse(row.kind, &row.body) {
            Ok(Event::WaitOpened(wait))
                if wait.kind == WaitKind::Budget || wait.call_id.is_some() =>
            {
                others.insert(wait.id);
            }
            Ok(Event::WaitClosed(wait)) if !others.contains(&wait.id) => {
                decisions.insert(wait.id, wait.decision);
            }
            Ok(Event::ToolStart(start)) => drop(starts.insert(start.call_id)),
            Ok(Event::ToolEnd(end)) => drop(ends.insert(end.call_id)),
            _ => {}
        }
    }
    for (call, decision) in decisions {
        let is_allowed = decision == WaitDecision::Allow;
        assert_eq!(
            starts.contains(&call),
            is_allowed,
            "{call} was decided with {decision:?}"
        );
        assert!(is_allowed || ends.contains(&call), "{call} has no result");
    }
}

/// Checks that the agent lists those searched tools that its context names, unless the last calls
/// have no results yet.
pub fn check_list(agent: &Agent) {
    let last = agent.context().last();
    if last.is_none_or(|line| line.body.role != MessageRole::Assistant) {
        let named = SEARCHED.into_iter().filter(|name| is_named(agent, name));
        assert_eq!(listed(agent), named.collect::<Vec<_>>());
    }
}

/// Returns the searched tools that the agent lists.
fn listed(agent: &Agent) -> Vec<&str> {
    let searched = agent.tools().iter().filter(|tool| tool.is_searched);
    searched.map(|tool| tool.name.as_str()).collect()
}

/// Returns whether a message of the context calls the tool, or is the result of a search that found
/// it.
fn is_named(agent: &Agent, name: &str) -> bool {
    let is_line = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).is_ok_and(|found| found["name"] == name)
    };
    let parts = agent.context().iter().flat_map(|line| &line.body.content);
    parts.into_iter().any(|part| match part {
        Part::ToolCall { name: called, .. } => called == name,
        Part::ToolResult { text, error, .. } => !error && text.lines().any(is_line),
        Part::Text { .. } | Part::Thinking { .. } | Part::Image { .. } | Part::File { .. } => false,
    })
}

/// Returns the result of a search, which may be long enough for a compaction to cut it.
pub fn search_result(which: usize) -> String {
    let length = if which.is_multiple_of(3) { 3_000 } else { 10 };
    let found = SEARCHED.iter().skip(which % 4);
    let lines = found.map(|name| {
        format!(
            r#"{{"name":"{name}","description":"{}"}}"#,
            "z".repeat(length)
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}
