//! Tells what has become of the work that a prompt caused, and waits for its end if the caller asks
//! for that.

use std::time::Duration;

use planck_common::{
    InputId, Seq,
    command::{ListWaits, MOST_WAIT_MS, Outcome, ReadOutcome, SessionVerb, WorkOutcome, WorkState},
    event::{Event, TurnError, json},
    reply::Refusal,
    subject::Address,
};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{CommandOrigin, Sessions, work::CausedWork};
use crate::bus::truncate;
use planck_store::{InputOutcome, LogRow, SessionRecord, SessionStore, WorkInput};

/// The maximum number of callers that wait on this node. Further callers are answered at once, so
/// that enough of the requests that a node answers at a time are left for others.
pub const MOST_WAITING: usize = 128;
/// How often the rows are read again while a caller waits, because only the ends of turns on this
/// node are told here.
const AGAIN: Duration = Duration::from_secs(2);
/// The minimum time between two reads for one caller.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the log must stay unchanged before a caller is told that the work waits for an answer,
/// because a rule of the session may answer a wait right after it was opened.
const STILL: Duration = Duration::from_secs(1);
/// How long the node of the orchestrator may take, beyond the time for which the caller waits. The
/// caller's own deadline is later, so that this node can still answer.
const RELAY: Duration = Duration::from_secs(1);
/// The maximum number of turns without a text in which an answer is searched.
const MOST_SEARCHED: usize = 100;
/// The maximum number of turns in a reply.
const MOST_TURNS: usize = 500;

impl Sessions {
    /// Returns what has become of the work that a prompt caused. With `wait_ms`, waits until the
    /// work is over or waits itself. The node of the orchestrator is asked to wait, because it is
    /// told when the orchestrator's turns end. If it cannot be asked, this node answers at once.
    pub async fn outcome(
        &self,
        session: &SessionRecord,
        request: ReadOutcome,
        origin: CommandOrigin,
    ) -> Result<Outcome, Refusal> {
        let wait = Duration::from_millis(request.wait_ms.unwrap_or(0).min(MOST_WAIT_MS));
        let prompt = request.prompt_id.as_ref();
        if wait.is_zero() {
            return self.outcome_now(session, prompt).await;
        }
        let Ok(_place) = self.waiting.places.try_acquire() else {
            return self.outcome_now(session, prompt).await;
        };
        if origin == CommandOrigin::Client && !self.handles.view.is_alone() {
            let owner = session
                .owner
                .as_ref()
                .filter(|id| *id != self.handles.view.id());
            if let Some(owner) = owner {
                let address = Address::session(&session.id, SessionVerb::Outcome.name());
                let body = json(&request);
                let asked = self
                    .handles
                    .peers
                    .relay(owner, &address, body.as_bytes(), wait + RELAY)
                    .await;
                return match asked {
                    Ok(outcome) => Ok(outcome),
                    Err(_) => self.outcome_now(session, prompt).await,
                };
            }
        }
        self.wait_for_outcome(session, prompt, wait).await
    }

    async fn outcome_now(
        &self,
        session: &SessionRecord,
        prompt: Option<&InputId>,
    ) -> Result<Outcome, Refusal> {
        read_outcome(
            &*self.handles.store,
            self.handles.bus.room(),
            session,
            prompt,
        )
        .await
    }

    async fn wait_for_outcome(
        &self,
        session: &SessionRecord,
        prompt: Option<&InputId>,
        wait: Duration,
    ) -> Result<Outcome, Refusal> {
        let until = Instant::now() + wait;
        let told = self.waiting.works.register(session.id.clone());
        // When the work was first seen to wait, with the head of the log.
        let mut still: Option<(Seq, Instant)> = None;
        loop {
            let news = told.news();
            let mut found = self.outcome_now(session, prompt).await?;
            let read_at = Instant::now();
            if found.state == WorkState::Over {
                return Ok(found);
            }
            let mut next = until.min(read_at + AGAIN);
            if found.state == WorkState::Waiting {
                let (head, since) = *still
                    .take_if(|(head, _)| *head == found.head)
                    .get_or_insert((found.head, read_at));
                still = Some((head, since));
                if since.elapsed() >= STILL {
                    return Ok(found);
                }
                next = since + STILL;
                found.state = WorkState::Working;
            } else {
                still = None;
            }
            if read_at >= until && still.is_none() {
                return Ok(found);
            }
            tokio::select! {
                _ = timeout_at(next, news) => {}
                () = self.waiting.leaving.cancelled() => return Ok(found),
            }
            sleep_until(read_at + PAUSE).await;
        }
    }

    /// Answers the callers that wait at once, now and from now on, because the node leaves.
    pub fn stop_waiting(&self) {
        self.waiting.leaving.cancel();
    }
}

/// Returns what has become of the work that a prompt caused, or without a prompt of the open work of
/// the session, in a reply of at most `room` bytes.
pub async fn read_outcome(
    store: &dyn SessionStore,
    room: usize,
    session: &SessionRecord,
    prompt: Option<&InputId>,
) -> Result<Outcome, Refusal> {
    let rows = store.work(&session.id, prompt).await?;
    let rows = rows.ok_or_else(|| unknown_work(session, prompt))?;
    let work = CausedWork::of(&rows);
    let ended = match (work.state, &rows.root) {
        (WorkState::Over, Some(root)) => ended(store, session, root, &work).await?,
        (WorkState::Over | WorkState::Working | WorkState::Waiting, _) => Ended::default(),
    };
    let mut waits = Vec::new();
    if !work.waiting.is_empty() {
        let open = store
            .waits(Some(&session.id), &ListWaits::default())
            .await?;
        let mut open = open.waits;
        open.retain(|wait| work.waiting.contains(&wait.agent_id));
        waits.extend(open.into_iter().map(|wait| wait.id));
    }
    let turns = work.turns.keys().copied();
    Ok(fitting(
        Outcome {
            prompt_id: prompt.cloned(),
            agent_id: rows
                .root
                .map_or_else(|| session.spec.lead.clone(), |root| root.agent),
            state: work.state,
            outcome: ended.outcome,
            message: ended.message,
            output: ended.output,
            truncated: false,
            seq: ended.seq,
            error: ended.error,
            turns: turns
                .skip(work.turns.len().saturating_sub(MOST_TURNS))
                .collect(),
            waits,
            head: rows.head,
        },
        room,
    ))
}

/// Returns the refusal for work that the store does not know.
pub(super) fn unknown_work(session: &SessionRecord, prompt: Option<&InputId>) -> Refusal {
    let name = &session.name;
    Refusal::not_found(match prompt {
        Some(prompt) => format!("session {name} has no prompt `{prompt}`"),
        None => format!("there is no session `{name}`"),
    })
}

/// Cuts the answer if the reply would exceed `room` bytes.
fn fitting(outcome: Outcome, room: usize) -> Outcome {
    let whole = json(&outcome);
    match whole.len() > room.saturating_sub(FRAME) {
        true => serde_json::from_str(&truncate::fit(&whole, room.saturating_sub(FRAME)))
            .unwrap_or(outcome),
        false => outcome,
    }
}

/// The size in bytes of a reply around its body.
const FRAME: usize = 256;

/// How the work has ended.
#[derive(Debug, Default)]
struct Ended {
    outcome: Option<WorkOutcome>,
    message: Option<String>,
    output: Option<Box<RawValue>>,
    seq: Option<Seq>,
    error: Option<TurnError>,
}

impl Ended {
    fn without_turn(outcome: WorkOutcome) -> Self {
        Self {
            outcome: Some(outcome),
            ..Self::default()
        }
    }

    /// Reads the row that ended a turn.
    fn of(row: &LogRow) -> Result<Self, Refusal> {
        let unreadable = |why: String| {
            Refusal::internal(format!("cannot read event {} of the log: {why}", row.seq))
        };
        let seq = Some(row.seq);
        match Event::parse(row.kind, &row.body) {
            Ok(Event::TurnEnd(end)) => Ok(Self {
                outcome: Some((&end).into()),
                message: end.message,
                output: end.output,
                seq,
                error: None,
            }),
            Ok(Event::Error(error)) => Ok(Self {
                outcome: Some(WorkOutcome::Error),
                message: None,
                output: None,
                seq,
                error: Some(error),
            }),
            Ok(other) => Err(unreadable(format!("it is a {}", other.kind().name()))),
            Err(error) => Err(unreadable(error.to_string())),
        }
    }

    fn has_no_text(&self) -> bool {
        self.outcome == Some(WorkOutcome::Completed) && !self.has_answer()
    }

    fn has_answer(&self) -> bool {
        self.message.is_some() || self.output.is_some()
    }

    /// Takes the answer of an earlier turn, if that has one.
    fn answered_by(&mut self, earlier: Self) {
        if earlier.has_answer() {
            (self.message, self.output, self.seq) = (earlier.message, earlier.output, earlier.seq);
        }
    }
}

/// Returns the end of the agent's latest turn that belongs to the work. A later turn may be completed
/// without a text, for example if it only read that a task is done. Then the answer is that of an
/// earlier turn.
async fn ended(
    store: &dyn SessionStore,
    session: &SessionRecord,
    root: &WorkInput,
    work: &CausedWork,
) -> Result<Ended, Refusal> {
    let without_turn = match &root.outcome {
        Some(InputOutcome::Rewound) => Some(WorkOutcome::Rewound),
        Some(InputOutcome::Busy) => Some(WorkOutcome::Busy),
        Some(InputOutcome::Stopped) => Some(WorkOutcome::Stopped),
        Some(InputOutcome::Withdrawn | InputOutcome::Other(_)) => Some(WorkOutcome::Other),
        Some(InputOutcome::Turn(_) | InputOutcome::Failed) | None => None,
    };
    if let Some(outcome) = without_turn {
        return Ok(Ended::without_turn(outcome));
    }
    let mut latest: Option<Ended> = None;
    for (turn, before_end) in work.turns.iter().rev().take(MOST_SEARCHED) {
        let agent = &root.agent;
        let end = store
            .turn_end(&session.id, agent, *turn, *before_end)
            .await?;
        // Without an end, the session was closed and its node did not end the turn.
        let end = match end {
            Some(row) => Ended::of(&row)?,
            None => Ended::without_turn(WorkOutcome::Stopped),
        };
        let is_last = !end.has_no_text();
        match &mut latest {
            None => latest = Some(end),
            Some(latest) => latest.answered_by(end),
        }
        if is_last {
            break;
        }
    }
    Ok(latest.unwrap_or_else(|| Ended::without_turn(WorkOutcome::Stopped)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without an answer, the end that is told is that of the latest turn.
    #[test]
    fn an_earlier_turn_gives_its_answer_only() {
        let latest = || Ended {
            outcome: Some(WorkOutcome::Completed),
            seq: Some(9),
            ..Ended::default()
        };
        let aborted = Ended {
            outcome: Some(WorkOutcome::Aborted),
            seq: Some(5),
            ..Ended::default()
        };
        let shaped = Ended {
            output: RawValue::from_string("{}".into()).ok(),
            seq: Some(5),
            ..latest()
        };
        for (earlier, seq, output) in [(aborted, 9, None), (shaped, 5, Some("{}"))] {
            let mut end = latest();
            end.answered_by(earlier);
            let told = end.output.as_deref().map(RawValue::get);
            assert_eq!((end.seq, told), (Some(seq), output));
            assert_eq!(end.outcome, Some(WorkOutcome::Completed));
        }
    }
}
