//! Checks a run in the sessions' logs, in the output of a client that was attached to each session,
//! and in the ledger.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, ensure};
use planck_common::{
    SessionId,
    envelope::Envelope,
    event::{Event, ToolStart},
};

use super::{
    load::{AcknowledgedPrompt, Load},
    stage::Stage,
};
use crate::{attached::Attached, node::runs};

/// The counts of a run.
#[derive(Debug, Clone, Default)]
pub struct Found {
    pub prompts: usize,
    pub events: usize,
    /// The number of lines in the ledger, one for each tool run.
    pub executions: usize,
    /// The number of calls that were answered with "interrupted; it may or may not have taken
    /// effect".
    pub interrupted: usize,
    /// The number of nodes that were declared dead.
    pub declared_dead: usize,
    /// The number of nodes that were declared dead although no fault was meant to end them.
    pub wrongly: usize,
}

/// One attached client for each session, attached since before the first fault.
pub struct Readers(Vec<(SessionId, Attached)>);

impl Readers {
    /// Starts the clients, and waits until they are subscribed.
    pub async fn start(stage: &Stage, load: &Load) -> Result<Self> {
        let mut readers = Vec::new();
        for id in &load.sessions {
            let reader = Attached::start(&stage.world, id)?;
            reader.begun().await?;
            readers.push((id.clone(), reader));
        }
        Ok(Self(readers))
    }
}

/// Checks the result of a run, and returns its counts. Fails with the first check that does not
/// hold.
pub async fn check(stage: &Stage, readers: Readers, asked: &[AcknowledgedPrompt]) -> Result<Found> {
    let deaths = stage.timeline.deaths();
    let wrongly = deaths
        .iter()
        .filter(|node| stage.member(node).is_some())
        .count();
    let mut found = Found {
        prompts: asked.len(),
        declared_dead: deaths.len(),
        wrongly,
        ..Found::default()
    };
    for (session, reader) in readers.0 {
        let log = stage.world.caller.log(&session, 1).await?;
        check_dense(&session, &log)?;
        check_ends(&session, &log, asked)?;
        let told = reader.caught_up(i64::try_from(log.len())?).await?;
        check_dense(&session, &told)?;
        reader.leave().await?;
        found.events += log.len();
        found.interrupted += log.iter().filter(|event| is_interrupted(event)).count();
    }
    found.executions = check_ledger(stage)?;
    stage.world.check_model()?;
    let ledger = stage.ledger().display().to_string();
    crate::eventually::within(
        Duration::from_secs(10),
        "no tool process is left",
        async || (!runs(&ledger)).then_some(()),
    )
    .await?;
    Ok(found)
}

/// Returns the ids of the inputs whose turn ends with this row of the log.
pub fn ends_of(row: &str) -> Vec<String> {
    let Ok(envelope) = serde_json::from_str::<Envelope>(row) else {
        return Vec::new();
    };
    ended(&envelope)
}

fn ended(envelope: &Envelope) -> Vec<String> {
    match envelope.event() {
        Some(Ok(Event::TurnEnd(end))) => end.inputs.iter().map(ToString::to_string).collect(),
        Some(Ok(Event::Error(error))) => error.inputs.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

fn check_dense(session: &SessionId, log: &[Envelope]) -> Result<()> {
    for (event, seq) in log.iter().zip(1..) {
        ensure!(
            event.seq == Some(seq),
            "session {session}: {:?} stands where {seq} should",
            event.seq
        );
    }
    Ok(())
}

/// Checks that each acknowledged prompt of the session has one end, and each call one result.
fn check_ends(session: &SessionId, log: &[Envelope], asked: &[AcknowledgedPrompt]) -> Result<()> {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for input in log.iter().flat_map(ended) {
        *ends.entry(input).or_default() += 1;
    }
    for AcknowledgedPrompt { prompt, .. } in asked.iter().filter(|asked| asked.session == *session)
    {
        let times = ends.get(prompt).copied().unwrap_or(0);
        ensure!(
            times == 1,
            "session {session}: prompt {prompt} has {times} ends"
        );
    }
    let mut calls: BTreeMap<String, usize> = log
        .iter()
        .filter_map(call_started)
        .map(|call| (call, 0))
        .collect();
    for event in log {
        if let Some(Ok(Event::ToolEnd(end))) = event.event() {
            *calls.entry(end.call_id.to_string()).or_default() += 1;
        }
    }
    for (call, ends) in calls {
        ensure!(
            ends == 1,
            "session {session}: call {call} has {ends} results"
        );
    }
    Ok(())
}

fn call_started(event: &Envelope) -> Option<String> {
    match event.event() {
        Some(Ok(Event::ToolStart(ToolStart { call_id, .. }))) => Some(call_id.to_string()),
        _ => None,
    }
}

fn is_interrupted(event: &Envelope) -> bool {
    matches!(event.event(), Some(Ok(Event::ToolEnd(end))) if end.result.starts_with("interrupted"))
}

/// Checks that no piece of work is in the ledger twice, so no interrupted work was repeated.
/// Returns the number of lines.
fn check_ledger(stage: &Stage) -> Result<usize> {
    let ledger = std::fs::read_to_string(stage.ledger()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for line in ledger.lines() {
        ensure!(seen.insert(line), "{line} was done twice");
    }
    Ok(seen.len())
}
