//! Follows a session until the work on a prompt has ended or the user leaves, and shows its events.

mod display;

use std::time::Duration;

use futures_util::TryStreamExt as _;
use planck_client::{AwaitedOutcome, Client, ClientError, Follow, FollowEvent};
use planck_common::{
    InputId, Seq, SessionId, Timestamp,
    command::{Accepted, Outcome, ReadEvents, SessionInfo, WorkOutcome, WorkState},
    envelope::Envelope,
    event::{EventKind, OUTPUT_INVALID, TurnError},
};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::sleep,
};

use crate::{
    ask::{AskEvent, Asked, Asker, can_ask},
    connect::ConnectedClient,
    exit::Exit,
    output::{Stream, warn},
    waits::{left_open, open_waits},
};

pub use display::EventDisplay;

/// How long an event may be late that the log has.
const LATE: Duration = Duration::from_secs(2);

/// The result of watching a session.
pub struct WatchResult {
    pub ended: WorkEnd,
    /// The number of interrupts by the user. The second interrupt leaves the session without
    /// waiting for its turns to end.
    pub interrupts: u32,
}

impl WatchResult {
    /// Returns whether the user left before the work on the prompt was complete.
    pub fn was_left(&self) -> bool {
        self.interrupts > 1
    }

    pub fn exit(&self) -> Exit {
        let exit = self.ended.outcome.exit();
        let is_invalid = self
            .ended
            .error
            .as_ref()
            .is_some_and(|error| error.code == OUTPUT_INVALID);
        if is_invalid {
            Exit::Shapeless
        } else if exit == Exit::Failed && self.interrupts > 0 {
            Exit::Interrupted
        } else {
            exit
        }
    }
}

/// Returns a stream of interrupts. A command creates only one, so that an interrupt between two
/// waits is not lost.
pub fn interrupts() -> std::io::Result<Signal> {
    signal(SignalKind::interrupt())
}

/// Follows a session until the user interrupts or the session can no longer be followed.
pub async fn attach(
    client: &Client,
    session: &SessionId,
    from: Seq,
    display: &mut EventDisplay,
) -> anyhow::Result<Exit> {
    let mut interrupted = interrupts()?;
    let mut follow = client.follow(session, from).await?;
    display.learn_names(&client.session(session).await?);
    loop {
        tokio::select! {
            event = follow.next() => match event {
                Ok(event) => display.show(&event)?,
                Err(error) => {
                    display.lost(&error)?;
                    return Ok(Exit::Failed);
                }
            },
            () = next_second(display.shows_time()) => display.tick()?,
            _ = interrupted.recv() => {
                display.end_text()?;
                return Ok(Exit::Done);
            }
        }
    }
}

/// Follows a session until a node says that the work that a prompt caused is over, until the session
/// can no longer be followed, or until it only waits for answers and `on_wait` does not. The first
/// interrupt aborts the running turns, and the second one leaves.
pub async fn watch(
    client: &Client,
    work: &WatchedWork,
    interrupted: &mut Signal,
    display: &mut EventDisplay,
    on_wait: &mut OnWait,
) -> anyhow::Result<WatchResult> {
    let mut watching = SessionWatch::begin(client, work, display, on_wait).await?;
    loop {
        let seen = watching.seen;
        let next = tokio::select! {
            event = watching.follow.next() => watching.shown(event)?,
            over = watching.outcome.reached(|outcome| outcome.head <= seen) => watching.over(over)?,
            Some(error) = watching.delays.recv() => watching.delayed(error)?,
            () = next_second(watching.display.shows_time()) => {
                watching.display.tick()?;
                WatchStep::Continue
            }
            event = next_question(watching.on_wait) => watching.asked(event, interrupted).await?,
            _ = interrupted.recv() => watching.interrupt(interrupted).await?,
        };
        if next == WatchStep::Leave {
            break;
        }
    }
    watching.end()
}

/// What happens when agents wait for answers from outside.
pub enum OnWait {
    /// The person at the terminal is asked.
    Ask(Box<Asker>),
    /// The watch continues until another client answers.
    Stay,
    /// The watch ends when nothing else can happen.
    Leave,
}

async fn next_question(on_wait: &mut OnWait) -> AskEvent {
    match on_wait {
        OnWait::Ask(asker) => asker.next().await,
        OnWait::Stay | OnWait::Leave => std::future::pending().await,
    }
}

/// Waits for a second, if the time that a tool has run is shown.
async fn next_second(is_shown: bool) {
    match is_shown {
        true => sleep(Duration::from_secs(1)).await,
        false => std::future::pending().await,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchStep {
    Continue,
    Leave,
}

/// A watch in progress.
struct SessionWatch<'a> {
    client: &'a Client,
    session: &'a SessionId,
    /// The prompt on whose work the watch waits, if it is only one.
    prompt: Option<&'a InputId>,
    display: &'a mut EventDisplay,
    on_wait: &'a mut OnWait,
    follow: Follow,
    outcome: AwaitedOutcome,
    /// Why the nodes are asked again for this answer or for the log.
    delays: mpsc::Receiver<ClientError>,
    /// The number of the latest event that was shown.
    seen: Seq,
    interrupts: u32,
    /// Whether the watch ends because the user left a question open.
    is_waiting: bool,
}

impl<'a> SessionWatch<'a> {
    async fn begin(
        client: &'a Client,
        work: &'a WatchedWork,
        display: &'a mut EventDisplay,
        on_wait: &'a mut OnWait,
    ) -> anyhow::Result<Self> {
        let session = &work.session;
        // The display places the notice between lines. Written at once, it could break a sentence.
        let (retried, delays) = mpsc::channel(1);
        let quiet = client.clone().with_retry_notice(move |error| {
            let _told_already = retried.try_send(error.clone());
        });
        let follow = quiet.follow(session, work.from).await?;
        let info = client.session(session).await?;
        display.learn_names(&info);
        if let OnWait::Ask(_) = on_wait {
            display.ask_here();
        }
        let leaves = matches!(on_wait, OnWait::Leave);
        let (session_id, prompt) = (session.clone(), work.prompt.clone());
        let asked = end_of_work(quiet, session_id, prompt, leaves);
        Ok(Self {
            client,
            session,
            prompt: work.prompt.as_ref(),
            display,
            on_wait,
            follow,
            outcome: AwaitedOutcome::new(asked, LATE),
            delays,
            seen: work.from - 1,
            interrupts: 0,
            is_waiting: false,
        })
    }

    fn shown(&mut self, event: Result<FollowEvent, ClientError>) -> anyhow::Result<WatchStep> {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.close_question()?;
                self.display.lost(&error)?;
                return Ok(WatchStep::Leave);
            }
        };
        if let OnWait::Ask(asker) = self.on_wait {
            asker.observe(&event, self.display)?;
        }
        self.display.show(&event)?;
        if let OnWait::Ask(asker) = self.on_wait {
            asker.make_room(self.display)?;
        }
        match &event {
            FollowEvent::Durable(event) => self.seen = self.seen.max(event.seq.unwrap_or_default()),
            FollowEvent::Live(_)
            | FollowEvent::Retracted(_)
            | FollowEvent::CaughtUp
            | FollowEvent::Retrying(_) => {}
        }
        Ok(WatchStep::Continue)
    }

    /// Ends the watch, because the work is over or waits and all its events were shown.
    fn over(&mut self, over: Result<Outcome, ClientError>) -> anyhow::Result<WatchStep> {
        if let Err(error) = over {
            self.close_question()?;
            self.display.lost(&error)?;
        }
        Ok(WatchStep::Leave)
    }

    /// Shows the first failure to ask a node. Later ones of a watch are not shown.
    fn delayed(&mut self, error: ClientError) -> anyhow::Result<WatchStep> {
        self.delays.close();
        self.display.show(&FollowEvent::Retrying(error))?;
        Ok(WatchStep::Continue)
    }

    async fn asked(
        &mut self,
        event: AskEvent,
        interrupted: &mut Signal,
    ) -> anyhow::Result<WatchStep> {
        let OnWait::Ask(asker) = self.on_wait else {
            return Ok(WatchStep::Continue);
        };
        match asker
            .handle(event, self.seen, self.display, interrupted)
            .await?
        {
            Asked::Stays => Ok(WatchStep::Continue),
            Asked::Left => {
                self.is_waiting = true;
                Ok(WatchStep::Leave)
            }
            Asked::Interrupted => self.interrupt(interrupted).await,
            Asked::Aborts => {
                self.interrupts = self.interrupts.max(1);
                self.abort(interrupted).await
            }
        }
    }

    async fn interrupt(&mut self, interrupted: &mut Signal) -> anyhow::Result<WatchStep> {
        self.interrupts += 1;
        if self.interrupts > 1 {
            self.close_question()?;
            return Ok(WatchStep::Leave);
        }
        self.abort(interrupted).await
    }

    /// Aborts the work. If that fails, the watch goes on like the turns. If a wait is open
    /// nevertheless, the person is asked about it again.
    async fn abort(&mut self, interrupted: &mut Signal) -> anyhow::Result<WatchStep> {
        self.close_question()?;
        self.display.end_text()?;
        warn("aborting the turn; interrupt again to leave");
        let (client, session, prompt) = (self.client, self.session, self.prompt);
        tokio::select! {
            aborted = client.abort_session(session, prompt, None) => {
                if let Err(error) = aborted {
                    warn(&format!("the turn goes on: {error}; interrupt again to leave"));
                }
                if let OnWait::Ask(asker) = self.on_wait {
                    asker.look_again();
                }
                Ok(WatchStep::Continue)
            }
            _ = interrupted.recv() => {
                self.interrupts += 1;
                Ok(WatchStep::Leave)
            }
        }
    }

    fn close_question(&mut self) -> std::io::Result<()> {
        match self.on_wait {
            OnWait::Ask(asker) => asker.close(self.display),
            OnWait::Stay | OnWait::Leave => Ok(()),
        }
    }

    fn end(mut self) -> anyhow::Result<WatchResult> {
        self.close_question()?;
        self.display.end_text()?;
        let ended = match self.outcome.known() {
            Some(outcome) => outcome.clone().into(),
            None if self.is_waiting => WorkEnd::without_answer(WatchOutcome::Waiting),
            None => WorkEnd::without_answer(WatchOutcome::Lost),
        };
        Ok(WatchResult {
            ended,
            interrupts: self.interrupts,
        })
    }
}

/// Shows a session's log from the given position to its current end.
pub async fn show_log(
    client: &Client,
    session: &SessionId,
    from: Seq,
    display: &mut EventDisplay,
) -> anyhow::Result<()> {
    let info = client.session(session.as_str()).await?;
    display.learn_names(&info);
    let mut pages = client.pages(session, from.max(1), info.head);
    while let Some(page) = pages.try_next().await? {
        for event in &page {
            display.show(&FollowEvent::Durable(serde_json::from_str(event.get())?))?;
        }
    }
    Ok(display.end_text()?)
}

/// A prompt that was sent, and the log position from which to follow the session.
#[derive(Debug, Clone)]
pub struct WatchedWork {
    pub session: SessionId,
    /// The prompt, or `None` to follow the work that is in progress.
    pub prompt: Option<InputId>,
    pub from: Seq,
}

impl WatchedWork {
    /// Follows the session from its present end on, without a prompt.
    pub fn from_now(info: &SessionInfo) -> Self {
        Self {
            session: info.id.clone(),
            prompt: None,
            from: info.head + 1,
        }
    }

    /// Follows a session from the first step of a turn at `since` or later on, or from the last
    /// hundred events if there are more. Returns `None` if there is no such step.
    pub async fn since(
        client: &Client,
        info: &SessionInfo,
        since: Timestamp,
    ) -> Result<Option<Self>, ClientError> {
        let read = ReadEvents {
            from: Some(info.head.saturating_sub(99).max(1)),
            limit: None,
            agent: None,
        };
        let page = client.events(&info.id, &read).await?;
        let events = page.events.iter();
        let mut events = events.filter_map(|event| serde_json::from_str(event.get()).ok());
        let first = events.find(|event: &Envelope| event.at >= since && is_step(&event.kind));
        Ok(first.and_then(|event| event.seq).map(|from| Self {
            from,
            ..Self::from_now(info)
        }))
    }
}

/// Returns whether events of this kind are written only while an agent works on a turn.
fn is_step(kind: &str) -> bool {
    use EventKind::{Error, Message, ToolEnd, ToolStart, TurnEnd, TurnStart};
    EventKind::find(kind).is_some_and(|kind| {
        matches!(
            kind,
            Error | Message | ToolEnd | ToolStart | TurnEnd | TurnStart
        )
    })
}

impl From<Accepted> for WatchedWork {
    fn from(accepted: Accepted) -> Self {
        Self {
            session: accepted.session_id,
            prompt: Some(accepted.prompt_id),
            from: accepted.seq + 1,
        }
    }
}

/// How the work on a prompt has ended, as far as the watch knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchOutcome {
    /// Agents wait for answers from outside, and nothing else happens until there is one.
    Waiting,
    /// The end of the work was not seen: the session could not be followed any longer, or the user
    /// left.
    Lost,
    #[serde(untagged)]
    Over(WorkOutcome),
}

/// The end of the work on a prompt.
#[derive(Debug)]
pub struct WorkEnd {
    pub outcome: WatchOutcome,
    pub answer: Option<String>,
    /// The answer in the shape that the prompt or the agent has.
    pub output: Option<Box<RawValue>>,
    pub error: Option<TurnError>,
}

impl WatchOutcome {
    pub fn exit(self) -> Exit {
        match self {
            Self::Over(WorkOutcome::Completed) => Exit::Done,
            Self::Waiting => Exit::Waiting,
            Self::Over(
                WorkOutcome::Aborted
                | WorkOutcome::Truncated
                | WorkOutcome::Refused
                | WorkOutcome::Limit
                | WorkOutcome::Error
                | WorkOutcome::Busy
                | WorkOutcome::Stopped
                | WorkOutcome::Rewound
                | WorkOutcome::Other,
            )
            | Self::Lost => Exit::Failed,
        }
    }
}

impl WorkEnd {
    pub fn without_answer(outcome: WatchOutcome) -> Self {
        Self {
            outcome,
            answer: None,
            output: None,
            error: None,
        }
    }
}

impl From<Outcome> for WorkEnd {
    fn from(found: Outcome) -> Self {
        Self {
            outcome: match (found.state, found.outcome) {
                (WorkState::Waiting, _) => WatchOutcome::Waiting,
                (WorkState::Over | WorkState::Working, Some(outcome)) => {
                    WatchOutcome::Over(outcome)
                }
                (WorkState::Over | WorkState::Working, None) => WatchOutcome::Lost,
            },
            answer: found.message,
            output: found.output,
            error: found.error,
        }
    }
}

/// Waits until the work on a prompt is over or, if `leaves`, until it only waits for answers. Without
/// a prompt, the work is all that is open in the session.
async fn end_of_work(
    client: Client,
    session: SessionId,
    prompt: Option<InputId>,
    leaves: bool,
) -> Result<Outcome, ClientError> {
    match leaves {
        true => client.wait_for_outcome(&session, prompt.as_ref()).await,
        false => client.wait_until_over(&session, prompt.as_ref()).await,
    }
}

/// Shows the work, and asks at a terminal, until the work has ended or only waits for answers.
/// `session` is the name that hints use. The exit code is that of `planck run`; without a prompt
/// only waits and interrupts change it.
pub async fn follow_work(
    link: &ConnectedClient,
    session: &str,
    work: &WatchedWork,
) -> anyhow::Result<Exit> {
    let (client, mut interrupted) = (&link.client, interrupts()?);
    let mut display = EventDisplay::screen(Some(Stream::Out));
    let mut on_wait = match Stream::Out.is_terminal() && can_ask() {
        true => OnWait::Ask(Box::new(Asker::new(
            client,
            &work.session,
            Stream::Out,
            false,
        ))),
        false => OnWait::Leave,
    };
    let watching = watch(client, work, &mut interrupted, &mut display, &mut on_wait);
    let watched = Box::pin(watching).await?;
    if watched.ended.outcome == WatchOutcome::Waiting {
        let waits = open_waits(client, &work.session).await?;
        warn(&left_open(session, &waits, link.is_alone()));
    }
    Ok(exit(work, &watched))
}

fn exit(work: &WatchedWork, watched: &WatchResult) -> Exit {
    match (work.prompt.is_some(), watched.ended.outcome) {
        (true, _) | (false, WatchOutcome::Waiting) => watched.exit(),
        (false, _) if watched.interrupts > 0 => Exit::Interrupted,
        (false, _) => Exit::Done,
    }
}
