//! Follows a session on the screen until a prompt's turn has ended or the person leaves.

mod turns;

use std::time::Duration;

use planck_common::{
    InputId, Seq, SessionId,
    command::{AgentState, ReadEvents, SessionInfo},
    event::json,
    usage::Usage,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use turns::OpenTurns;
pub use turns::{WorkEnd, WorkOutcome};

use super::{
    exit::Exit,
    output::{EventFormat, Stream, json_text, warn},
    render::{Screen, Style, retraction},
    which::Sent,
};
use crate::client::{Client, ClientError, FollowEvent};

/// The longest time between the end of one turn and the beginning of the next one that it causes.
const QUIET: Duration = Duration::from_millis(200);

/// The destination of events.
pub enum Sink {
    /// Rendered for a person; without a stream only the totals are collected.
    Screen(Box<Screen>, Option<Stream>),
    /// Raw envelopes, one per line.
    Jsonl,
}

impl Sink {
    pub fn of(format: EventFormat) -> Self {
        match format {
            EventFormat::Text => {
                let mut screen = Screen::new(Style::of_stdout());
                screen.summary.each_turn = true;
                Self::Screen(Box::new(screen), Some(Stream::Out))
            }
            EventFormat::Jsonl => Self::Jsonl,
        }
    }

    pub fn screen(to: Option<Stream>) -> Self {
        Self::Screen(
            Box::new(Screen::new(to.map_or(Style::plain(100), Style::of))),
            to,
        )
    }

    fn show(&mut self, event: &FollowEvent) -> std::io::Result<()> {
        match (self, event) {
            (Self::Screen(screen, to), event) => {
                let drawing = screen.draw_event(event);
                to.map_or(Ok(()), |to| to.draw(&drawing))
            }
            (Self::Jsonl, FollowEvent::Durable(event) | FollowEvent::Live(event)) => {
                json_text(&(json(event) + "\n"))
            }
            (Self::Jsonl, FollowEvent::Retracted(retracted)) => {
                warn(&format!("planck: {}", retraction(retracted)));
                Ok(())
            }
            (Self::Jsonl, FollowEvent::Retrying(error)) => {
                warn(&format!("planck: {error}"));
                Ok(())
            }
            (Self::Jsonl, FollowEvent::CaughtUp) => Ok(()),
        }
    }

    /// Prints why the session cannot be followed any more.
    fn lost(&mut self, error: &ClientError) -> std::io::Result<()> {
        match self {
            Self::Screen(screen, to) => {
                let drawing = screen.lost(error);
                to.map_or(Ok(()), |to| to.draw(&drawing))
            }
            Self::Jsonl => {
                warn(&format!("planck: {error}"));
                Ok(())
            }
        }
    }

    /// Ends open output on the screen.
    pub fn rest(&mut self) -> std::io::Result<()> {
        match self {
            Self::Screen(screen, Some(to)) => to.draw(&screen.rest()),
            Self::Screen(_, None) | Self::Jsonl => Ok(()),
        }
    }

    /// Hides a prompt that the person has just typed.
    pub fn hide_echo(&mut self, prompt: &InputId) {
        if let Self::Screen(screen, _) = self {
            screen.hide_echo(prompt);
        }
    }

    fn learn_names(&mut self, info: &SessionInfo) {
        if let Self::Screen(screen, _) = self {
            info.agents
                .iter()
                .for_each(|agent| screen.learn_name(&agent.id, &agent.name));
        }
    }

    /// Returns the tokens and the cost of all events that were seen.
    pub fn usage(&self) -> Usage {
        match self {
            Self::Screen(screen, _) => screen.summary.usage(),
            Self::Jsonl => Usage::default(),
        }
    }
}

/// The result of watching a session.
pub struct WatchResult {
    pub ended: WorkEnd,
    /// The number of interrupts. The second one leaves while the work continues.
    pub interrupts: u32,
}

impl WatchResult {
    /// Returns whether the person left before the work on the prompt was complete.
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

/// Returns the stream of interrupts. A command creates one, so that no interrupt between two waits
/// is lost.
pub fn interrupts() -> std::io::Result<Signal> {
    signal(SignalKind::interrupt())
}

/// Follows a session until the person interrupts.
pub async fn attach(
    client: &Client,
    session: &SessionId,
    from: Seq,
    sink: &mut Sink,
) -> anyhow::Result<Exit> {
    let mut interrupted = interrupts()?;
    let mut follow = client.follow(session, from).await?;
    sink.learn_names(&client.session(session).await?);
    loop {
        tokio::select! {
            event = follow.next() => match event {
                Ok(event) => sink.show(&event)?,
                Err(error) => {
                    sink.lost(&error)?;
                    return Ok(Exit::Failed);
                }
            },
            _ = interrupted.recv() => {
                sink.rest()?;
                return Ok(Exit::Done);
            }
        }
    }
}

/// Follows a session until the turn that consumed a prompt has ended, with all work that it caused.
/// An interrupt aborts the running work; a second one leaves.
pub async fn watch(
    client: &Client,
    sent: &Sent,
    interrupted: &mut Signal,
    sink: &mut Sink,
) -> anyhow::Result<WatchResult> {
    let session = &sent.session;
    let mut follow = client.follow(session, sent.from).await?;
    sink.learn_names(&client.session(session).await?);
    let (mut turns, mut interrupts) = (OpenTurns::of(sent.prompt.clone()), 0);
    loop {
        let is_at_rest = turns.at_rest().is_some();
        tokio::select! {
            event = follow.next() => {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        sink.lost(&error)?;
                        break;
                    }
                };
                sink.show(&event)?;
                match &event {
                    FollowEvent::Durable(envelope) => turns.apply(envelope),
                    FollowEvent::Retracted(retracted) => turns.forget(retracted),
                    FollowEvent::Live(_) | FollowEvent::CaughtUp | FollowEvent::Retrying(_) => {}
                }
            }
            () = tokio::time::sleep(QUIET), if is_at_rest => {
                if rests(client, session).await? {
                    break;
                }
            }
            _ = interrupted.recv() => {
                interrupts += 1;
                if interrupts > 1 {
                    break;
                }
                sink.rest()?;
                warn("aborting the turn; interrupt again to leave");
                client.abort_session(session).await?;
            }
        }
    }
    sink.rest()?;
    Ok(WatchResult {
        ended: turns.into_ended(),
        interrupts,
    })
}

/// Shows a session's log from a position to its current end.
pub async fn show_log(
    client: &Client,
    session: &SessionId,
    from: Seq,
    sink: &mut Sink,
) -> anyhow::Result<()> {
    let info = client.session(session.as_str()).await?;
    sink.learn_names(&info);
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
            sink.show(&FollowEvent::Durable(serde_json::from_str(event.get())?))?;
        }
        anyhow::ensure!(
            page.next > from,
            "the log of {session} cannot be read past event {from}"
        );
        from = page.next;
    }
    Ok(sink.rest()?)
}

/// Returns whether no agent of the session works or has unread input.
async fn rests(client: &Client, session: &SessionId) -> anyhow::Result<bool> {
    for agent in client.session(session).await?.agents {
        if agent.state == AgentState::Stopped {
            continue;
        }
        let info = client.agent(&agent.id).await?;
        if info.state != AgentState::Idle || info.queued > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}
