//! Renders the events that take one line each.

use planck_common::event::{
    Compacted, Event, MessageQueued, Retry, ToolProgress, TurnEnd, TurnOutcome,
};

use super::{
    names::AgentNames,
    style::{Paint, Style, count, duration, one_line},
};
use planck_host::terminal::Drawing;

/// Returns the line for an event, or `None` if the event takes no line. `is_repeated` says that the
/// event has the same reason as the one before, so that it is not repeated.
pub fn of(event: &Event, is_repeated: bool, style: Style, names: &AgentNames) -> Option<Drawing> {
    let (paint, text) = match event {
        Event::TurnEnd(end) => ended(end)?,
        Event::Error(error) => (Paint::Bad, format!("✗ {} ({})", error.reason, error.code)),
        Event::Retry(retry) => (Paint::Warning, retried(retry, is_repeated)),
        Event::Warning(warning) => (Paint::Warning, format!("! {}", warning.message)),
        Event::ToolProgress(progress) => (Paint::Dim, progressed(progress)),
        Event::MessageQueued(queued) => (Paint::Dim, waiting(queued, names)),
        Event::Compacting(compacting) => (
            Paint::Dim,
            format!("summarising {} tokens", count(compacting.tokens_before)),
        ),
        Event::Compacted(done) => (Paint::Dim, compacted(done)),
        Event::WorkerSpawned(worker) => (
            Paint::Good,
            format!("+ {} ({})", worker.name, worker.r#type),
        ),
        Event::WorkerExit(worker) => (
            Paint::Warning,
            format!("- {}: {}", worker.name, worker.reason),
        ),
        Event::SessionResumed(resumed) => {
            (Paint::Dim, format!("session resumed: {}", resumed.reason))
        }
        Event::SessionClosed(closed) => (Paint::Dim, format!("session closed: {}", closed.reason)),
        Event::Rewound(rewound) => (
            Paint::Warning,
            format!("rewound to before message {} by {}", rewound.to, rewound.by),
        ),
        Event::ToolsChanged(tools) => (Paint::Dim, changed(&tools.added, &tools.removed)),
        Event::ModelChanged(change) => (
            Paint::Dim,
            format!("model is now {}:{}", change.model.provider, change.model.id),
        ),
        Event::Message(_)
        | Event::Checkpoint(_)
        | Event::TurnStart(_)
        | Event::TextDelta(_)
        | Event::ThinkingDelta(_)
        | Event::UsageDelta(_)
        | Event::ToolStart(_)
        | Event::ToolEnd(_)
        | Event::WaitOpened(_)
        | Event::WaitClosed(_)
        | Event::AgentStarted(_)
        | Event::AgentStopped(_)
        | Event::SessionStarted(_) => return None,
    };
    // These lines are not cut to the width, because the cause or the way out is often at the end.
    let is_trouble = matches!(event, Event::Error(_) | Event::Retry(_) | Event::Warning(_));
    let width = if is_trouble {
        usize::MAX
    } else {
        style.width.saturating_sub(2)
    };
    Some(style.paint(paint, &format!("  {}", one_line(&text, width))))
}

fn retried(retry: &Retry, is_repeated: bool) -> String {
    let wait = duration(retry.delay_ms);
    let reason = match is_repeated {
        true => "the same again",
        false => &retry.reason,
    };
    format!("↻ try {} in {wait}: {reason}", retry.attempt)
}

fn progressed(progress: &ToolProgress) -> String {
    let percent = progress.percent.map(|percent| format!(" {percent:.0} %"));
    format!("…{} {}", percent.unwrap_or_default(), progress.message)
}

fn waiting(queued: &MessageQueued, names: &AgentNames) -> String {
    let from = match (&queued.from, &queued.by) {
        (Some(agent), _) => names.of(agent),
        (None, Some(by)) => by.clone(),
        (None, None) => "a client".into(),
    };
    let (kind, number) = (queued.kind.name(), queued.queued);
    format!("↓ {kind} from {from} waits ({number} in the inbox)")
}

fn compacted(done: &Compacted) -> String {
    let (before, after) = (count(done.tokens_before), count(done.tokens_after));
    let Compacted { by, kept, .. } = done;
    format!("summarised {before} tokens to {after} ({by}), {kept} messages kept")
}

fn ended(end: &TurnEnd) -> Option<(Paint, String)> {
    match end.outcome {
        TurnOutcome::Completed if end.refused => Some((
            Paint::Warning,
            "■ the model refused to answer, or a filter of its provider stopped the answer".into(),
        )),
        TurnOutcome::Completed => None,
        TurnOutcome::Aborted => {
            let reason = end.reason.as_ref();
            let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
            Some((Paint::Warning, format!("■ aborted{reason}")))
        }
        TurnOutcome::Truncated => Some((
            Paint::Warning,
            "■ the answer was cut off at the model's output limit".into(),
        )),
        TurnOutcome::Limit => Some((
            Paint::Warning,
            format!(
                "■ stopped by the limit {}",
                end.limit.as_deref().unwrap_or("of this agent")
            ),
        )),
    }
}

fn changed(added: &[String], removed: &[String]) -> String {
    let words = added
        .iter()
        .map(|name| format!("+{name}"))
        .chain(removed.iter().map(|name| format!("-{name}")));
    format!("tools: {}", words.collect::<Vec<_>>().join(" "))
}
