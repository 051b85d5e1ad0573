//! Checks the published events, and the log both with and without the rows that a rewind hid.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};
use planck_common::{
    AgentId, InputId, Seq,
    envelope::Envelope,
    event::{Event, EventKind, SavedMessage},
    message::{Message, MessageRole, Part},
};

/// Checks the log of a session in which no turn is running. Each of the given prompts must have
/// exactly one outcome.
pub fn check(log: &[Envelope], prompts: &BTreeSet<InputId>) -> Result<()> {
    check_places(log)?;
    let shown: Vec<&Envelope> = log
        .iter()
        .filter(|event| event.hidden_by.is_none())
        .collect();
    for agent in log
        .iter()
        .map(|event| &event.agent_id)
        .collect::<BTreeSet<_>>()
    {
        let of = |event: &&&Envelope| event.agent_id == *agent;
        let whole: Vec<&Envelope> = log.iter().filter(|event| of(&event)).collect();
        let shown: Vec<&Envelope> = shown.iter().filter(of).copied().collect();
        check_ends(&whole)?;
        check_ends(&shown)?;
        check_history(&shown)?;
    }
    let mut ends: BTreeMap<InputId, Vec<Seq>> = BTreeMap::new();
    for event in log {
        for input in inputs(event) {
            ends.entry(input)
                .or_default()
                .push(event.seq.unwrap_or_default());
        }
    }
    for prompt in prompts {
        let ends = ends.get(prompt).map_or(&[][..], Vec::as_slice);
        ensure!(ends.len() == 1, "prompt {prompt} ends at {ends:?}");
    }
    Ok(())
}

/// Returns the inputs to which an event gives an outcome.
pub fn inputs(event: &Envelope) -> Vec<InputId> {
    match event.event() {
        Some(Ok(Event::TurnEnd(end))) => end.inputs,
        Some(Ok(Event::Error(error))) => error.inputs,
        _ => Vec::new(),
    }
}

/// Checks that the durable events of each agent were published in the order of the log.
pub fn check_order(heard: &[Envelope]) -> Result<()> {
    let mut last: BTreeMap<&AgentId, &Envelope> = BTreeMap::new();
    for event in heard.iter().filter(|event| event.seq.is_some()) {
        if let Some(before) = last.insert(&event.agent_id, event) {
            let names = (&before.kind, before.seq, &event.kind, event.seq);
            ensure!(
                before.seq < event.seq,
                "agent {}: published out of order: {names:?}",
                event.agent_id
            );
        }
    }
    Ok(())
}

fn check_places(log: &[Envelope]) -> Result<()> {
    let mut last: BTreeMap<&AgentId, Seq> = BTreeMap::new();
    for (event, seq) in log.iter().zip(1..) {
        ensure!(
            event.seq == Some(seq),
            "{:?} stands where {seq} should",
            event.seq
        );
        let prev = last.insert(&event.agent_id, seq).unwrap_or(0);
        ensure!(
            event.prev == Some(prev),
            "row {seq} follows {:?}, not {prev}",
            event.prev
        );
    }
    Ok(())
}

/// Checks that each turn and each call of one agent has exactly one end, and that turns do not
/// overlap.
fn check_ends(log: &[&Envelope]) -> Result<()> {
    let (mut open, mut calls): (Option<u32>, BTreeMap<String, bool>) = (None, BTreeMap::new());
    for event in log {
        let (kind, turn, seq) = (&event.kind, event.turn, event.seq.unwrap_or_default());
        match event.event() {
            Some(Ok(Event::TurnStart(_))) => {
                ensure!(
                    open.is_none(),
                    "turn {turn} begins at {seq} while {open:?} is open"
                );
                open = Some(turn);
            }
            Some(Ok(Event::TurnEnd(_) | Event::Error(_))) => {
                ensure!(
                    open == Some(turn),
                    "{kind} {seq} of turn {turn} while {open:?} is open"
                );
                open = None;
            }
            Some(Ok(Event::ToolStart(start))) => {
                let is_new = calls.insert(start.call_id.to_string(), false).is_none();
                ensure!(is_new, "call {} begins again at {seq}", start.call_id);
            }
            // A call that was refused has an end but no beginning.
            Some(Ok(Event::ToolEnd(end))) => {
                let has_ended = calls.insert(end.call_id.to_string(), true) == Some(true);
                ensure!(!has_ended, "call {} ends again at {seq}", end.call_id);
            }
            _ => {}
        }
    }
    ensure!(open.is_none(), "turn {open:?} has no end");
    match calls.iter().find(|(_, has_ended)| !**has_ended) {
        Some((call, _)) => bail!("call {call} has no end"),
        None => Ok(()),
    }
}

/// Checks that a provider would accept the history: the message after tool calls must contain their
/// results.
fn check_history(shown: &[&Envelope]) -> Result<()> {
    let mut open: Vec<String> = Vec::new();
    for event in shown
        .iter()
        .filter(|event| event.kind == EventKind::Message.name())
    {
        let Some(Ok(Event::Message(SavedMessage { message }))) = event.event() else {
            bail!("message {:?} cannot be read", event.seq)
        };
        let Message {
            id, role, content, ..
        } = message;
        let result = |part: &Part| {
            if let Part::ToolResult { call_id, .. } = part {
                Some(call_id.to_string())
            } else {
                None
            }
        };
        let call = |part: &Part| {
            if let Part::ToolCall { call_id, .. } = part {
                Some(call_id.to_string())
            } else {
                None
            }
        };
        let results: Vec<String> = content.iter().filter_map(result).collect();
        if role == MessageRole::Custom && results.is_empty() && !open.is_empty() {
            continue; // The row of a summary may stand between calls and their results.
        }
        ensure!(
            results == open,
            "message {id} answers {results:?}, not {open:?}"
        );
        open = content.iter().filter_map(call).collect();
    }
    ensure!(open.is_empty(), "calls {open:?} have no results");
    Ok(())
}

pub fn shown(event: &Envelope) -> String {
    let data: String = event.data.get().chars().take(160).collect();
    let hidden = event
        .hidden_by
        .map_or_else(String::new, |by| format!(" hidden by {by}"));
    let Envelope {
        agent_id,
        kind,
        turn,
        epoch,
        ..
    } = event;
    format!(
        "{:>4} {:.6} {kind} turn {turn} epoch {epoch}{hidden} {data}",
        event.seq.unwrap_or_default(),
        agent_id.as_str()
    )
}
