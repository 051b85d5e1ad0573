//! Follows a session until the work on a prompt has ended or the user leaves, and shows its events.

mod display;
mod ended;
mod work;

use std::time::Duration;

pub use display::EventDisplay;
use ended::end_of_work;
pub use ended::{WatchOutcome, WorkEnd};
use planck_common::{
    InputId, Seq, SessionId,
    command::{Outcome, ReadEvents},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::sleep,
};
pub use work::WatchedWork;

use super::{
    ask::{AskEvent, Asked, Asker},
    exit::Exit,
    output::warn,
};
use planck_client::{AwaitedOutcome, Client, ClientError, Follow, FollowEvent};

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
        if exit == Exit::Failed && self.interrupts > 0 {
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
    let mut watching = Watching::begin(client, work, display, on_wait).await?;
    loop {
        let seen = watching.seen;
        let next = tokio::select! {
            event = watching.follow.next() => watching.shown(event)?,
            over = watching.outcome.reached(|outcome| outcome.head <= seen) => watching.over(over)?,
            Some(error) = watching.delays.recv() => watching.delayed(error)?,
            () = next_second(watching.display.shows_time()) => {
                watching.display.tick()?;
                Next::Continue
            }
            event = next_question(watching.on_wait) => watching.asked(event, interrupted).await?,
            _ = interrupted.recv() => watching.interrupt(interrupted).await?,
        };
        if next == Next::Leave {
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
enum Next {
    Continue,
    Leave,
}

/// A watch in progress.
struct Watching<'a> {
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

impl<'a> Watching<'a> {
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

    fn shown(&mut self, event: Result<FollowEvent, ClientError>) -> anyhow::Result<Next> {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                self.close_question()?;
                self.display.lost(&error)?;
                return Ok(Next::Leave);
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
        Ok(Next::Continue)
    }

    /// Ends the watch, because the work is over or waits and all its events were shown.
    fn over(&mut self, over: Result<Outcome, ClientError>) -> anyhow::Result<Next> {
        if let Err(error) = over {
            self.close_question()?;
            self.display.lost(&error)?;
        }
        Ok(Next::Leave)
    }

    /// Shows the first failure to ask a node. Later ones of a watch are not shown.
    fn delayed(&mut self, error: ClientError) -> anyhow::Result<Next> {
        self.delays.close();
        self.display.show(&FollowEvent::Retrying(error))?;
        Ok(Next::Continue)
    }

    async fn asked(&mut self, event: AskEvent, interrupted: &mut Signal) -> anyhow::Result<Next> {
        let OnWait::Ask(asker) = self.on_wait else {
            return Ok(Next::Continue);
        };
        match asker
            .handle(event, self.seen, self.display, interrupted)
            .await?
        {
            Asked::Stays => Ok(Next::Continue),
            Asked::Left => {
                self.is_waiting = true;
                Ok(Next::Leave)
            }
            Asked::Interrupted => self.interrupt(interrupted).await,
            Asked::Aborts => {
                self.interrupts = self.interrupts.max(1);
                self.abort(interrupted).await
            }
        }
    }

    async fn interrupt(&mut self, interrupted: &mut Signal) -> anyhow::Result<Next> {
        self.interrupts += 1;
        if self.interrupts > 1 {
            self.close_question()?;
            return Ok(Next::Leave);
        }
        self.abort(interrupted).await
    }

    /// Aborts the work. If that fails, the watch goes on like the turns. If a wait is open
    /// nevertheless, the person is asked about it again.
    async fn abort(&mut self, interrupted: &mut Signal) -> anyhow::Result<Next> {
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
                Ok(Next::Continue)
            }
            _ = interrupted.recv() => {
                self.interrupts += 1;
                Ok(Next::Leave)
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
    let mut from = from.max(1);
    while from <= info.head {
        let page = client
            .events(
                session.as_str(),
                &ReadEvents {
                    from: Some(from),
                    limit: None,
                    agent: None,
                },
            )
            .await?;
        for event in &page.events {
            display.show(&FollowEvent::Durable(serde_json::from_str(event.get())?))?;
        }
        anyhow::ensure!(
            page.next > from,
            "the log of {session} cannot be read past event {from}"
        );
        from = page.next;
    }
    Ok(display.end_text()?)
}
