//! Faults that are planted in a copy of the evidence, each of which the judge must find. A judge that
//! finds nothing may also have looked at nothing.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    client::{data, inputs_that_end, text},
    evidence::{Evidence, FaultEvidence},
    judge::{Verdict, judge, takes_over},
    promise::Promise,
};

/// A way to plant a fault. Returns `None` if the evidence has nothing in which to plant it.
type Plant = fn(&mut Evidence) -> Option<()>;

const FAULTS: [(&str, Promise, Plant); 22] = [
    ("an answer is lost", Promise::Answered, |evidence| {
        let prompt = evidence.accepted.last()?.clone();
        change(evidence, |event| {
            let inputs = event.pointer_mut("/data/inputs")?.as_array_mut()?;
            let at = inputs.iter().position(|input| *input == prompt.id)?;
            inputs.remove(at);
            Some(())
        })
    }),
    (
        "a prompt is answered twice",
        Promise::Answered,
        |evidence| {
            let prompt = evidence.accepted.first()?.clone();
            let session = evidence
                .sessions
                .iter_mut()
                .find(|known| known.id == prompt.session)?;
            let mut log = session.log.iter();
            let answer =
                log.find(|event| inputs_that_end(event).any(|input| input == prompt.id))?;
            let answer = answer.clone();
            Arc::make_mut(&mut session.log).push(answer);
            Some(())
        },
    ),
    ("a tool runs twice", Promise::Once, |evidence| {
        let line = evidence.ledger.first()?.clone();
        evidence.ledger.push(line);
        Some(())
    }),
    (
        "a tool that has a result never ran",
        Promise::Once,
        |evidence| {
            // The run of a call that was interrupted may be missing, so that another one is taken.
            let runs = evidence
                .sessions
                .iter()
                .flat_map(|session| session.log.iter());
            let done = runs.filter(|event| {
                text(event, "type") == "tool_end"
                    && event.pointer("/data/error") == Some(&json!(false))
            });
            let done: Vec<String> = done
                .map(|event| data(event, "call_id").to_owned())
                .collect();
            let starts = evidence
                .sessions
                .iter()
                .flat_map(|session| session.log.iter());
            let command = starts
                .filter(|event| text(event, "type") == "tool_start")
                .filter(|event| done.iter().any(|call| call == data(event, "call_id")))
                .find_map(|event| event.pointer("/data/args/command")?.as_str())?;
            let line = evidence
                .ledger
                .iter()
                .position(|line| command.contains(&format!("echo {line} >>")))?;
            evidence.ledger.remove(line);
            Some(())
        },
    ),
    ("a call has two results", Promise::Once, |evidence| {
        let mut sessions = evidence.sessions.iter_mut();
        sessions.find_map(|session| {
            let mut log = session.log.iter();
            let result = log.find(|event| text(event, "type") == "tool_end")?.clone();
            Arc::make_mut(&mut session.log).push(result);
            Some(())
        })?;
        Some(())
    }),
    ("a row of the log is lost", Promise::Dense, |evidence| {
        let log = Arc::make_mut(&mut evidence.sessions.first_mut()?.log);
        let middle = log.len().checked_div(2).filter(|middle| *middle > 0)?;
        log.remove(middle);
        Some(())
    }),
    (
        "two rows have the same number",
        Promise::Dense,
        |evidence| {
            let log = Arc::make_mut(&mut evidence.sessions.last_mut()?.log);
            let last = log.last()?.clone();
            log.push(last);
            Some(())
        },
    ),
    (
        "an early reader misses an event",
        Promise::Same,
        |evidence| {
            let early = Arc::make_mut(evidence.sessions.first_mut()?.early.as_mut()?);
            early.pop()?;
            Some(())
        },
    ),
    (
        "an early reader read another text",
        Promise::Same,
        |evidence| {
            let early = Arc::make_mut(evidence.sessions.first_mut()?.early.as_mut()?);
            let event = early
                .iter_mut()
                .find(|event| text(event, "type") == "message")?;
            *event.pointer_mut("/data")? = json!({"message": "another one"});
            Some(())
        },
    ),
    ("a death is found too late", Promise::Verdict, |evidence| {
        let late = std::time::Duration::from_secs(60);
        death(evidence)?.verdict = Some(late);
        Some(())
    }),
    (
        "NATS loses its data and no prompt is answered",
        Promise::NatsWiped,
        |evidence| unanswered(evidence, Promise::NatsWiped),
    ),
    ("a session does not go on", Promise::GoesOn, |evidence| {
        death(evidence)?.went_on = None;
        Some(())
    }),
    (
        "a node that works is given up",
        Promise::NoFalseVerdict,
        |evidence| {
            evidence.faults.first()?;
            evidence.declared_dead.push("a-node-that-works".into());
            Some(())
        },
    ),
    (
        "a node writes after its verdict",
        Promise::FrozenWritesNothing,
        |evidence| {
            let woken = evidence
                .faults
                .iter()
                .find(|fault| fault.kind.is_death() && fault.exit.is_some())?;
            let node = woken.node.clone()?;
            let taken_over = |event: &Value| takes_over(event, &node);
            let mut logs = evidence.sessions.iter_mut().map(|session| &mut session.log);
            let log = Arc::make_mut(logs.find(|log| log.iter().any(taken_over))?);
            let mut late = log.last()?.clone();
            *late.get_mut("node_id")? = json!(node);
            log.push(late);
            Some(())
        },
    ),
    (
        "a process of a team runs on",
        Promise::TeamEnds,
        |evidence| {
            let mut teams = evidence
                .faults
                .iter_mut()
                .filter_map(|fault| fault.team.as_mut());
            teams.next()?.stopped = None;
            Some(())
        },
    ),
    (
        "NATS comes back and no prompt is answered",
        Promise::NatsAway,
        |evidence| unanswered(evidence, Promise::NatsAway),
    ),
    (
        "no prompt is answered without a server",
        Promise::ServerLost,
        |evidence| unanswered(evidence, Promise::ServerLost),
    ),
    (
        "Postgres comes back and no prompt is answered",
        Promise::StoreAway,
        |evidence| unanswered(evidence, Promise::StoreAway),
    ),
    (
        "two people get two decisions",
        Promise::DecidedOnce,
        |evidence| {
            let told = evidence.waits.first_mut()?.told.first_mut()?;
            *told = if told == "deny" { "allow" } else { "deny" }.into();
            Some(())
        },
    ),
    (
        "a call runs against the decision",
        Promise::DecidedOnce,
        |evidence| {
            let mark = evidence.waits.first()?.mark.clone();
            match evidence.ledger.iter().position(|line| *line == mark) {
                Some(ran) => _ = evidence.ledger.remove(ran),
                None => evidence.ledger.push(mark),
            }
            Some(())
        },
    ),
    (
        "a provider would refuse a request",
        Promise::NothingRefused,
        |evidence| {
            evidence.refused.push("two answers to one call".into());
            Some(())
        },
    ),
    (
        "a process is left behind",
        Promise::NothingLeft,
        |evidence| {
            evidence.left.push("sleep 1000".into());
            Some(())
        },
    ),
];

fn change(evidence: &mut Evidence, at: impl FnMut(&mut Value) -> Option<()>) -> Option<()> {
    let mut events = evidence
        .sessions
        .iter_mut()
        .flat_map(|session| Arc::make_mut(&mut session.log));
    events.find_map(at)
}

fn death(evidence: &mut Evidence) -> Option<&mut FaultEvidence> {
    let mut faults = evidence.faults.iter_mut();
    faults.find(|fault| fault.kind.is_death() && fault.team.is_none())
}

fn unanswered(evidence: &mut Evidence, promise: Promise) -> Option<()> {
    let mut faults = evidence.faults.iter_mut();
    let fault = faults.find(|fault| promise.faults().contains(&fault.kind))?;
    fault.went_on = None;
    Some(())
}

/// Which planted faults the judge has found.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PlantedFaults {
    pub found: Vec<&'static str>,
    /// The judge is blind for these.
    pub missed: Vec<&'static str>,
    /// The run has nothing in which to plant these.
    pub not_planted: Vec<&'static str>,
}

/// Plants each fault in a copy of the evidence, and judges that.
pub fn plant(evidence: &Evidence) -> PlantedFaults {
    let mut planted = PlantedFaults::default();
    for (name, promise, plant) in FAULTS {
        let mut copy = evidence.clone();
        let to = match plant(&mut copy).map(|()| judge(promise, &copy)) {
            None => &mut planted.not_planted,
            Some(Verdict::Broken { .. }) => &mut planted.found,
            Some(Verdict::Kept { .. } | Verdict::NotTested { .. }) => &mut planted.missed,
        };
        to.push(name);
    }
    planted
}
