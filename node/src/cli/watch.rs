//! Following a session on the screen, until a prompt's turn has ended or the person has seen enough.

mod turns;

use std::time::Duration;

use planck_common::{
    InputId, Seq, SessionId,
    command::{AgentState, ReadEvents},
    event::json,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use turns::Turns;

use super::{
    exit::Exit,
    output::{draw, json_text, warn},
    render::{Screen, Style, retraction},
};
use crate::client::{Client, Follow, Told};

/// Between the end of one turn and the beginning of the next that comes of it less time passes.
const QUIET: Duration = Duration::from_millis(200);

/// When to stop.
#[derive(Debug, Clone)]
pub enum Until {
    /// The turn that consumed this prompt has ended, and so has all work that came of it. An interrupt aborts what runs; a
    /// second one leaves.
    Answered(InputId),
    /// An interrupt.
    Interrupted,
}

/// Where news goes.
pub enum Sink {
    Screen(Box<Screen>),
    /// Raw envelopes, a line each.
    Json,
}

impl Sink {
    pub fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Screen(Box::new(Screen::new(Style::of_stdout()))) }
    }

    fn tell(&mut self, told: &Told) -> std::io::Result<()> {
        match (self, told) {
            (Self::Screen(screen), told) => draw(&screen.told(told)),
            (Self::Json, Told::Event(event) | Told::Live(event)) => json_text(&(json(event) + "\n")),
            (Self::Json, Told::Retracted(retracted)) => {
                warn(&format!("planck: {}", retraction(retracted)));
                Ok(())
            }
            (Self::Json, Told::CaughtUp) => Ok(()),
            (Self::Json, Told::Trouble(error) | Told::Lost(error)) => {
                warn(&format!("planck: {error}"));
                Ok(())
            }
        }
    }

    /// Ends what is open on the screen.
    pub fn rest(&mut self) -> std::io::Result<()> {
        match self {
            Self::Screen(screen) => draw(&screen.rest()),
            Self::Json => Ok(()),
        }
    }

    /// Time, tokens and cost of all that was seen.
    pub fn sum_up(&mut self) -> std::io::Result<()> {
        self.rest()?;
        let Self::Screen(screen) = self else { return Ok(()) };
        screen.summary.line(Style::of_stdout()).map_or(Ok(()), |line| draw(&(line + "\n")))
    }
}

/// What hears interrupts. One for a whole command: an interrupt that comes between two waits is not lost.
pub fn interrupts() -> std::io::Result<Signal> {
    signal(SignalKind::interrupt())
}

/// Follows a session from a place in its log on.
pub async fn watch(
    client: &Client,
    session: &SessionId,
    from: Seq,
    until: &Until,
    interrupted: &mut Signal,
    sink: &mut Sink,
) -> anyhow::Result<Exit> {
    let mut follow = Follow::start(client.clone(), session.clone(), from).await?;
    if let Sink::Screen(screen) = sink {
        client.session(session).await?.agents.iter().for_each(|agent| screen.know(&agent.id, &agent.name));
    }
    let mut interrupts = 0;
    let mut turns = match until {
        Until::Answered(prompt) => Some(Turns::of(prompt.clone())),
        Until::Interrupted => None,
    };
    loop {
        let resting = turns.as_ref().and_then(Turns::at_rest);
        tokio::select! {
            told = follow.next() => {
                let Some(told) = told else { return Ok(Exit::Failed) };
                sink.tell(&told)?;
                match (&mut turns, &told) {
                    (Some(turns), Told::Event(envelope)) => turns.hear(envelope),
                    (Some(turns), Told::Retracted(retracted)) => turns.forget(&retracted.agent_id),
                    _ => {}
                }
            }
            () = tokio::time::sleep(QUIET), if resting.is_some() => {
                if rests(client, session).await? {
                    sink.rest()?;
                    return Ok(resting.unwrap_or(Exit::Done));
                }
            }
            _ = interrupted.recv() => {
                interrupts += 1;
                if interrupts > 1 || matches!(until, Until::Interrupted) {
                    sink.rest()?;
                    return Ok(if matches!(until, Until::Interrupted) { Exit::Done } else { Exit::Failed });
                }
                warn("aborting the turn; interrupt again to leave");
                client.abort_session(session).await?;
            }
        }
    }
}

/// Shows a session's log from a place on to where it ends now.
pub async fn show_log(client: &Client, session: &SessionId, from: Seq, sink: &mut Sink) -> anyhow::Result<()> {
    let info = client.session(session.as_str()).await?;
    if let Sink::Screen(screen) = sink {
        info.agents.iter().for_each(|agent| screen.know(&agent.id, &agent.name));
    }
    let mut from = from.max(1);
    while from <= info.head {
        let page = client.events(session.as_str(), &ReadEvents { from: Some(from), limit: None, agent: None }).await?;
        for event in &page.events {
            sink.tell(&Told::Event(serde_json::from_str(event.get())?))?;
        }
        anyhow::ensure!(page.next > from, "the log of {session} cannot be read past event {from}");
        from = page.next;
    }
    Ok(sink.rest()?)
}

/// Whether no agent of the session works or has something to work on.
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
