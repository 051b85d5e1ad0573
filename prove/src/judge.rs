//! **Pure**: judges the evidence of a run. It knows the wire protocol and the meaning of the ledger, and
//! shares no code with the runtime.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    client::{data, inputs_that_end, seq, text},
    evidence::{Evidence, FaultEvidence, FaultKind, SessionEvidence, WaitEvidence},
    promise::Promise,
};

/// How long the cluster may take to declare a dead node dead.
const VERDICT: Duration = Duration::from_secs(4);
/// How long a session may take until another node goes on with it.
const GOES_ON: Duration = Duration::from_secs(10);
/// How long the processes of a team may live after the verdict about its orchestrator's node.
const STOPPED: Duration = Duration::from_secs(5);
/// With what the result of a call begins whose node ended in the middle of it.
const INTERRUPTED: &str = "interrupted";

/// The verdict of the judge on a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Verdict {
    Kept {
        /// How often it was tested.
        tested: String,
        figures: String,
    },
    Broken {
        what: String,
        /// Where in the log of a session to look.
        place: Option<Place>,
    },
    NotTested {
        why: String,
    },
}

/// A row of a session's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    pub session: String,
    pub seq: u64,
}

/// The first thing that breaks a promise.
struct Breach {
    what: String,
    place: Option<Place>,
}

type Checked<T> = Result<T, Breach>;

fn breach<T>(what: impl Into<String>) -> Checked<T> {
    Err(Breach {
        what: what.into(),
        place: None,
    })
}

fn breach_at<T>(what: impl Into<String>, session: &str, seq: u64) -> Checked<T> {
    Err(Breach {
        what: what.into(),
        place: Some(Place {
            session: session.to_owned(),
            seq,
        }),
    })
}

/// Judges a promise by the evidence.
pub fn judge(promise: Promise, evidence: &Evidence) -> Verdict {
    let checked = match promise {
        Promise::Answered => answered(evidence),
        Promise::Once => once(evidence),
        Promise::Dense => dense(evidence),
        Promise::Same => same(evidence),
        Promise::Verdict => verdict(evidence),
        Promise::GoesOn => goes_on(evidence),
        Promise::NoFalseVerdict => no_false_verdict(evidence),
        Promise::FrozenWritesNothing => frozen(evidence),
        Promise::TeamEnds => team_ends(evidence),
        Promise::Drain => drain(evidence),
        Promise::NatsAway | Promise::NatsWiped | Promise::ServerLost | Promise::StoreAway => {
            away(evidence, promise.faults())
        }
        Promise::DecidedOnce => decided_once(evidence),
        Promise::NothingRefused => nothing_refused(evidence),
        Promise::NothingLeft => nothing_left(evidence),
    };
    match checked {
        Ok(Some((tested, figures))) => Verdict::Kept { tested, figures },
        Ok(None) => Verdict::NotTested {
            why: "the run had no time for it; give it more with --for".into(),
        },
        Err(Breach { what, place }) => Verdict::Broken { what, place },
    }
}

/// How often a promise was tested, and its figures. `None` if it was not tested.
type Kept = Option<(String, String)>;

fn kept(tested: String, figures: impl Into<String>) -> Checked<Kept> {
    Ok(Some((tested, figures.into())))
}

fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn answered(evidence: &Evidence) -> Checked<Kept> {
    let mut ends: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
    for session in &evidence.sessions {
        for event in session.log.iter() {
            for input in inputs_that_end(event) {
                let rows = ends.entry((&session.id, input)).or_default();
                rows.push(seq(event).unwrap_or_default());
            }
        }
    }
    for prompt in &evidence.accepted {
        let rows = ends.get(&(prompt.session.as_str(), prompt.id.as_str()));
        match rows.map(Vec::as_slice).unwrap_or_default() {
            [_] => {}
            [] => {
                return breach(format!(
                    "prompt {} of session {} was accepted and has no end",
                    prompt.id, prompt.session
                ));
            }
            [_, again, ..] => {
                let what = format!("prompt {} has {} ends", prompt.id, rows.map_or(0, Vec::len));
                return breach_at(what, &prompt.session, *again);
            }
        }
    }
    let prompts = evidence.accepted.len();
    if prompts == 0 {
        return Ok(None);
    }
    kept(
        format!(
            "{}, {}",
            counted(prompts, "prompt"),
            counted(evidence.faults.len(), "fault")
        ),
        "0 lost",
    )
}

/// Returns the line that a call appends to the ledger, if the event is its start.
fn mark(event: &Value) -> Option<&str> {
    let command = event.pointer("/data/args/command")?.as_str()?;
    let (_, line) = command.split_once("echo ")?;
    let (mark, _) = line.split_once(" >>")?;
    (text(event, "type") == "tool_start").then_some(mark)
}

/// Returns where the call began that appends a line to the ledger.
fn place_of(evidence: &Evidence, line: &str) -> Option<Place> {
    evidence.sessions.iter().find_map(|session| {
        let mut log = session.log.iter();
        let start = log.find(|event| mark(event) == Some(line))?;
        Some(Place {
            session: session.id.clone(),
            seq: seq(start)?,
        })
    })
}

fn once(evidence: &Evidence) -> Checked<Kept> {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &evidence.ledger {
        *lines.entry(line).or_default() += 1;
    }
    if let Some((line, times)) = lines.iter().find(|(_, times)| **times > 1) {
        let what = format!("`{line}` is in the ledger {times} times");
        return Err(Breach {
            what,
            place: place_of(evidence, line),
        });
    }
    let (mut calls, mut interrupted) = (0, 0);
    for session in &evidence.sessions {
        let (ended, told) = calls_of(session, &lines)?;
        calls += ended;
        interrupted += told;
    }
    if calls == 0 {
        return Ok(None);
    }
    kept(
        format!(
            "{}, {}",
            counted(calls, "call"),
            counted(evidence.ledger.len(), "run")
        ),
        format!("0 twice, {interrupted} told as interrupted"),
    )
}

/// Compares the calls of a session with the lines of the ledger. Returns how many calls have a result, and
/// how many were told as interrupted.
fn calls_of(session: &SessionEvidence, lines: &BTreeMap<&str, usize>) -> Checked<(usize, usize)> {
    let (mut calls, mut interrupted) = (0, 0);
    let mut marks: BTreeMap<&str, &str> = BTreeMap::new();
    let mut ended: BTreeSet<&str> = BTreeSet::new();
    for event in session.log.iter() {
        let row = seq(event).unwrap_or_default();
        let call = data(event, "call_id");
        match text(event, "type") {
            "tool_start" => marks.extend(mark(event).map(|mark| (call, mark))),
            "tool_end" if !ended.insert(call) => {
                return breach_at(format!("call {call} has two results"), &session.id, row);
            }
            "tool_end" => {
                let is_error = event.pointer("/data/error") == Some(&Value::Bool(true));
                calls += usize::from(marks.contains_key(call));
                interrupted += usize::from(data(event, "result").starts_with(INTERRUPTED));
                let missing = marks.get(call).filter(|mark| !lines.contains_key(*mark));
                if let Some(mark) = missing.filter(|_| !is_error) {
                    let what = format!("call {call} has a result, and `{mark}` never ran");
                    return breach_at(what, &session.id, row);
                }
            }
            _ => {}
        }
    }
    match marks.keys().find(|call| !ended.contains(*call)) {
        Some(call) => breach(format!(
            "call {call} of session {} began and has no result",
            session.id
        )),
        None => Ok((calls, interrupted)),
    }
}

fn dense(evidence: &Evidence) -> Checked<Kept> {
    let mut rows = 0;
    for session in &evidence.sessions {
        rows += session.log.len();
        for (event, expected) in session.log.iter().zip(1..) {
            if seq(event) != Some(expected) {
                let what = format!("row {expected} is missing");
                return breach_at(what, &session.id, expected);
            }
        }
    }
    if rows == 0 {
        return Ok(None);
    }
    kept(
        format!(
            "{}, {}",
            counted(rows, "row"),
            counted(evidence.sessions.len(), "session")
        ),
        "0 gaps",
    )
}

/// Returns what a reader reads of an event. The rest of an event says how it was published.
fn content(event: &Value) -> [Option<&Value>; 5] {
    ["seq", "type", "agent_id", "turn", "data"].map(|name| event.get(name))
}

fn same(evidence: &Evidence) -> Checked<Kept> {
    let mut readers = 0;
    for SessionEvidence { id, log, early } in &evidence.sessions {
        let Some(early) = early else { continue };
        readers += 1;
        for (late, early) in log.iter().zip(early.iter()) {
            if content(late) != content(early) {
                let row = seq(late).unwrap_or_default();
                let what = format!(
                    "the early reader read row {} where the late one read row {row}, or another content",
                    seq(early).unwrap_or_default()
                );
                return breach_at(what, id, row);
            }
        }
        if log.len() != early.len() {
            let what = format!(
                "the early reader read {} rows, and the log has {}",
                early.len(),
                log.len()
            );
            return breach_at(what, id, log.len().min(early.len()) as u64);
        }
    }
    if readers == 0 {
        return Ok(None);
    }
    kept(
        format!("{} since the first prompt", counted(readers, "reader")),
        format!("{readers} equal"),
    )
}

fn deaths(evidence: &Evidence) -> impl Iterator<Item = &FaultEvidence> {
    evidence.faults.iter().filter(|fault| fault.kind.is_death())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Returns the middle and the highest of times as a text, and the 99th of a hundred if there are as many.
fn spread(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    let at = |name: &str, percent: usize| {
        let time = sorted.get((last * percent).div_ceil(100));
        let time = time.copied().unwrap_or_default();
        format!("{name} {:.2} s", time.as_secs_f64())
    };
    let mut parts = vec![at("p50", 50), at("max", 100)];
    if times.len() >= 100 {
        parts.insert(1, at("p99", 99));
    }
    parts.join(", ")
}

/// Checks that every time is there and within the bound. Timers that were late show that the machine was
/// too busy, so the bound is longer by that.
fn within<'a>(
    evidence: &Evidence,
    faults: impl Iterator<Item = &'a FaultEvidence>,
    bound: Duration,
    what: &str,
    of: fn(&FaultEvidence) -> Option<Duration>,
) -> Checked<Kept> {
    let allowed = bound + evidence.stall;
    let mut times = Vec::new();
    for fault in faults {
        let node = fault.node.as_deref().unwrap_or_default();
        match of(fault) {
            Some(time) if time <= allowed => times.push(time),
            Some(time) => {
                return breach(format!(
                    "{what} took {} after {} of node {node}; the bound is {}",
                    seconds(time),
                    fault.kind.name(),
                    seconds(allowed)
                ));
            }
            None => {
                let kind = fault.kind.name();
                return breach(format!("no {what} after {kind} of node {node}"));
            }
        }
    }
    if times.is_empty() {
        return Ok(None);
    }
    let stall = match evidence.stall > Duration::from_millis(500) {
        true => format!(" and {} of a busy machine", seconds(evidence.stall)),
        false => String::new(),
    };
    kept(
        counted(times.len(), "node"),
        format!("{} (bound {}{stall})", spread(&times), seconds(bound)),
    )
}

fn verdict(evidence: &Evidence) -> Checked<Kept> {
    let faults = deaths(evidence);
    within(evidence, faults, VERDICT, "verdict", |fault| fault.verdict)
}

fn goes_on(evidence: &Evidence) -> Checked<Kept> {
    let faults = deaths(evidence).filter(|fault| fault.team.is_none());
    within(evidence, faults, GOES_ON, "continuation", |fault| {
        fault.went_on
    })
}

fn no_false_verdict(evidence: &Evidence) -> Checked<Kept> {
    let meant: BTreeSet<&str> = deaths(evidence)
        .filter_map(|fault| fault.node.as_deref())
        .collect();
    let wrong = evidence
        .declared_dead
        .iter()
        .find(|node| !meant.contains(node.as_str()));
    if let Some(node) = wrong {
        return breach(format!(
            "node {node} was declared dead, and nothing was done to it"
        ));
    }
    if evidence.faults.is_empty() {
        return Ok(None);
    }
    kept(
        format!(
            "{}, {} of them ended a node",
            counted(evidence.faults.len(), "fault"),
            deaths(evidence).count()
        ),
        "0 false verdicts",
    )
}

/// Returns whether another node goes on with a session of this node. A node whose claim got no answer claims
/// again, and then goes on after itself.
pub fn takes_over(event: &Value, node: &str) -> bool {
    let is_resumed = text(event, "type") == "session_resumed";
    is_resumed && data(event, "from_node") == node && text(event, "node_id") != node
}

fn frozen(evidence: &Evidence) -> Checked<Kept> {
    let woken: Vec<&FaultEvidence> = deaths(evidence)
        .filter(|fault| fault.team.is_none() && fault.kind != FaultKind::Kill)
        .collect();
    for fault in &woken {
        let node = fault.node.as_deref().unwrap_or_default();
        if fault.exit.is_none() {
            return breach(format!("node {node} was given up, and its process goes on"));
        }
        for session in &evidence.sessions {
            let mut log = session.log.iter();
            let taken_over = log.position(|event| takes_over(event, node));
            let after = session.log.iter().skip(taken_over.unwrap_or(usize::MAX));
            let late = after
                .into_iter()
                .find(|event| text(event, "node_id") == node);
            if let Some(event) = late {
                let what = format!("node {node} has written after another node had taken over");
                return breach_at(what, &session.id, seq(event).unwrap_or_default());
            }
        }
    }
    if woken.is_empty() {
        return Ok(None);
    }
    kept(
        format!("{} that came back", counted(woken.len(), "node")),
        "0 rows written, all ended by themselves",
    )
}

fn team_ends(evidence: &Evidence) -> Checked<Kept> {
    let mut times = Vec::new();
    let (mut processes, mut model_calls) = (0, 0);
    for fault in &evidence.faults {
        let Some(team) = &fault.team else { continue };
        let session = fault.session.as_deref().unwrap_or_default();
        processes += team.processes;
        model_calls += team.model_calls;
        let Some(stopped) = team.stopped else {
            return breach(format!(
                "processes or model calls of the team of session {session} run on"
            ));
        };
        if stopped > STOPPED + evidence.stall {
            return breach(format!(
                "the team of session {session} ended {} after the verdict; the bound is {}",
                seconds(stopped),
                seconds(STOPPED)
            ));
        }
        if !team.is_closed {
            return breach(format!(
                "session {session} is still open, although its team had to end"
            ));
        }
        times.push(stopped);
    }
    if times.is_empty() {
        return Ok(None);
    }
    kept(
        format!(
            "{}, {processes} processes, {}",
            counted(times.len(), "team"),
            counted(model_calls, "model call")
        ),
        format!("{} after the verdict", spread(&times)),
    )
}

fn drain(evidence: &Evidence) -> Checked<Kept> {
    let drained = || {
        let faults = evidence.faults.iter();
        faults.filter(|fault| fault.kind == FaultKind::Drain)
    };
    for fault in drained() {
        let node = fault.node.as_deref().unwrap_or_default();
        match fault.exit {
            Some(0) => {}
            Some(code) => return breach(format!("node {node} left with exit code {code}")),
            None => return breach(format!("node {node} does not leave")),
        }
        if fault.went_on.is_none() {
            return breach(format!("no other node went on after node {node} left"));
        }
    }
    let times: Vec<_> = drained().filter_map(|fault| fault.went_on).collect();
    if times.is_empty() {
        return Ok(None);
    }
    kept(counted(times.len(), "node"), spread(&times))
}

/// A fault of a server ends no node, and the prompts after it are answered, which other checks see.
fn away(evidence: &Evidence, kinds: &[FaultKind]) -> Checked<Kept> {
    let faults = || {
        let faults = evidence.faults.iter();
        faults.filter(|fault| kinds.contains(&fault.kind))
    };
    if let Some(fault) = faults().find(|fault| fault.went_on.is_none()) {
        let lasted = fault.lasted.map(seconds).unwrap_or_default();
        return breach(format!(
            "no prompt was answered after {} of {lasted}",
            fault.kind.name()
        ));
    }
    let longest = faults().filter_map(|fault| fault.lasted).max();
    let went_on: Vec<_> = faults().filter_map(|fault| fault.went_on).collect();
    if went_on.is_empty() {
        return Ok(None);
    }
    kept(
        format!(
            "{}, up to {}",
            counted(went_on.len(), "time"),
            seconds(longest.unwrap_or_default())
        ),
        format!("answers again after {}", spread(&went_on)),
    )
}

fn decided_once(evidence: &Evidence) -> Checked<Kept> {
    for WaitEvidence {
        session,
        wait,
        told,
        mark,
    } in &evidence.waits
    {
        let log = evidence.sessions.iter().find(|known| known.id == *session);
        let closed: Vec<&Value> = log
            .into_iter()
            .flat_map(|session| session.log.iter())
            .filter(|event| text(event, "type") == "wait_closed" && data(event, "id") == wait)
            .collect();
        let [decided] = closed[..] else {
            return breach(format!("wait {wait} was closed {} times", closed.len()));
        };
        let (row, decision) = (seq(decided).unwrap_or_default(), data(decided, "decision"));
        if told.is_empty() {
            return breach_at("the answer of neither person was accepted", session, row);
        }
        if let Some(other) = told.iter().find(|told| *told != decision) {
            let what = format!("a person was told `{other}`, and the log says `{decision}`");
            return breach_at(what, session, row);
        }
        let runs = evidence.ledger.iter().filter(|line| *line == mark).count();
        if runs != usize::from(decision == "allow") {
            let what = format!("the decision is `{decision}`, and the call ran {runs} times");
            return breach_at(what, session, row);
        }
    }
    if evidence.waits.is_empty() {
        return Ok(None);
    }
    kept(
        format!(
            "{}, two answers each",
            counted(evidence.waits.len(), "wait")
        ),
        "1 decision each",
    )
}

fn nothing_refused(evidence: &Evidence) -> Checked<Kept> {
    if let Some(why) = evidence.refused.first() {
        return breach(format!("a provider would have refused a request: {why}"));
    }
    kept(format!("{} requests", evidence.requests), "0 refused")
}

fn nothing_left(evidence: &Evidence) -> Checked<Kept> {
    if let Some(process) = evidence.left.first() {
        return breach(format!("a process is left: {process}"));
    }
    kept("after the last answer and node".into(), "0 processes")
}
