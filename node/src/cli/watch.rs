//! Follows a session until the work on a prompt has ended or the user leaves, and shows its events.

mod rest;
mod turns;

use planck_common::{
    InputId, Seq, SessionId,
    command::{ReadEvents, SessionInfo},
    event::json,
    usage::Usage,
};
use rest::RestCheck;
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

/// The destination of a session's events.
pub enum Sink {
    /// The screen. Without a stream, nothing is written and only the totals are computed.
    Screen(Box<Screen>, Option<Stream>),
    /// JSON lines with one envelope each.
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

    /// Prints why the session cannot be followed any longer.
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

    /// Ends the open text on the screen, and writes the output that waited for its end.
    pub fn rest(&mut self) -> std::io::Result<()> {
        match self {
            Self::Screen(screen, Some(to)) => to.draw(&screen.rest()),
            Self::Screen(_, None) | Self::Jsonl => Ok(()),
        }
    }

    /// Suppresses the echo of a prompt that the user has just typed.
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

    /// Returns the sum of the tokens and the cost of all events that were received. For JSON lines,
    /// the sum is always zero.
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

/// Follows a session until the turn that consumed a prompt and all turns that it caused have ended,
/// or until the session can no longer be followed. The first interrupt aborts the running turns,
/// and the second one leaves.
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
    let mut rest = RestCheck::default();
    loop {
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
                apply(&event, &mut turns, &mut rest);
            }
            () = rest.is_due() => {
                if rest.is_over(client, session).await? {
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
                tokio::select! {
                    aborted = client.abort_session(session) => drop(aborted?),
                    _ = interrupted.recv() => {
                        interrupts += 1;
                        break;
                    }
                }
            }
        }
    }
    sink.rest()?;
    Ok(WatchResult {
        ended: turns.into_ended(),
        interrupts,
    })
}

fn apply(event: &FollowEvent, turns: &mut OpenTurns, rest: &mut RestCheck) {
    let seq = match event {
        FollowEvent::Durable(envelope) => {
            turns.apply(envelope);
            envelope.seq
        }
        FollowEvent::Retracted(retracted) => {
            turns.forget(retracted);
            None
        }
        FollowEvent::Live(_) | FollowEvent::CaughtUp | FollowEvent::Retrying(_) => return,
    };
    rest.seen(seq, turns.at_rest().is_some());
}

/// Shows a session's log from the given position to its current end.
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
