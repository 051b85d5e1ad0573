//! Asks a person at the terminal about the waits of a session, one after the other, while the
//! session is watched.
//!
//! The store says what is asked, and not the events, because anyone who may publish can forge them.
//! An event only causes another look at the store. While a question is open, the output of the
//! session is held back. Keys count only once the prompt of the question is drawn, which happens
//! when nothing was typed for a moment. What was typed before is not an answer.
//!
//! A chat reads the keys between two questions too. They are the next prompt, except that `/abort`
//! aborts the work at once.

mod dialog;
mod line;
pub mod request;
mod typing;

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{self, Write as _},
    time::Duration,
};

use anyhow::Context as _;
use dialog::{Dialog, DialogStep};
use futures_util::FutureExt as _;
use line::KeyPress;
use planck_client::{Client, ClientError, FollowEvent};
use planck_common::{
    CallId, Seq, SessionId,
    command::{Answer, ListWaits, WaitRow},
    event::Event,
    reply::Code,
};
use planck_host::{environment, terminal::Drawing};
use serde_json::Value;
use tokio::{
    process::Command,
    signal::unix::Signal,
    time::{Instant, sleep_until},
};
use typing::Typing;

use crate::{
    output::Stream,
    render::{
        Style,
        style::{ERASE_LINE, Paint, counted},
        wait_ended,
    },
    waits::own_name,
    watch::EventDisplay,
};

pub use request::leaves_sandbox;
pub use typing::{MARK_NO_PASTES, MARK_PASTES, TypeAhead, can_ask};

/// How long nothing may have been typed before keys count as answers.
const QUIET: Duration = Duration::from_millis(400);

/// The pause after an answer, in which the session shows what became of it.
const NEXT: Duration = Duration::from_millis(300);

/// The pause before waits are looked for again after a failure.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The number of waits that are read at once.
const PAGE: u32 = 20;

/// The person at the terminal, and the question that is open.
pub struct Asker {
    client: Client,
    session: SessionId,
    to: Stream,
    style: Style,
    by: Option<String>,
    typing: Typing,
    /// Waits that are asked about after the open question.
    next: VecDeque<WaitRow>,
    /// The time at which to look for waits, or `None` if there is no sign of more.
    look_at: Option<Instant>,
    /// Whether the log was read to its end. Before that, an event that belongs before a question on
    /// the screen may follow.
    is_caught_up: bool,
    open: Option<OpenQuestion>,
}

struct OpenQuestion {
    dialog: Dialog,
    /// When keys begin to count, or `None` if they do.
    counts_at: Option<Instant>,
}

/// Something to handle with [`Asker::handle`].
#[derive(Debug)]
pub enum AskEvent {
    /// It is time to look for waits.
    Look,
    /// Nothing was typed for a moment, so keys count from now on.
    Quiet,
    Typed(Vec<u8>),
    /// The terminal is gone or cannot be read.
    Gone,
}

/// The reaction of the person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Stays,
    /// The person has left, and the question stays open.
    Left,
    /// The person has interrupted. An answer may have been sent or not.
    Interrupted,
    /// The person wants the work to be aborted.
    Aborts,
}

impl Asker {
    /// Creates the asker of a session. Once the log of the session is read to its end, the asker
    /// looks for waits that are open already.
    /// `is_hushed` says that the caller has turned the echo off and pasted texts are marked, as a
    /// chat does. Then keys are read between two questions too.
    pub fn new(client: &Client, session: &SessionId, to: Stream, is_hushed: bool) -> Self {
        let style = Style::of(to);
        let marks = Some(to).filter(|_| style.in_place && !is_hushed);
        Self {
            client: client.clone(),
            session: session.clone(),
            to,
            style,
            by: own_name(),
            typing: Typing::new(marks, is_hushed),
            next: VecDeque::new(),
            look_at: Some(Instant::now()),
            is_caught_up: false,
            open: None,
        }
    }

    /// Returns what was typed before a question took keys.
    pub fn type_ahead(self) -> TypeAhead {
        self.typing.into_type_ahead()
    }

    /// Looks for waits soon, for example because an abort may have left some open.
    pub fn look_again(&mut self) {
        self.look_at = Some(Instant::now());
    }

    /// Waits for something to handle. The method is cancel safe.
    pub async fn next(&mut self) -> AskEvent {
        let (quiet_at, look_at) = match &self.open {
            Some(open) => (open.counts_at, None),
            None => (None, self.look_at.filter(|_| self.is_caught_up)),
        };
        tokio::select! {
            biased;
            read = self.typing.read() => match read {
                Ok(bytes) if !bytes.is_empty() => AskEvent::Typed(bytes),
                Ok(_) | Err(_) => AskEvent::Gone,
            },
            () = until(quiet_at) => AskEvent::Quiet,
            () = until(look_at) => AskEvent::Look,
        }
    }

    /// Handles an event of the session before it is shown. If it ends the open question, the
    /// question is withdrawn from the screen.
    pub fn observe(&mut self, event: &FollowEvent, display: &mut EventDisplay) -> io::Result<()> {
        let FollowEvent::Durable(envelope) = event else {
            match event {
                FollowEvent::Retracted(_) => self.look_again(),
                FollowEvent::CaughtUp => self.is_caught_up = true,
                FollowEvent::Durable(_) | FollowEvent::Live(_) | FollowEvent::Retrying(_) => {}
            }
            return Ok(());
        };
        let is_over = match envelope.event().and_then(Result::ok) {
            Some(Event::WaitOpened(wait)) => self.is_open(&wait.id),
            Some(Event::WaitClosed(closed)) => {
                let is_open = self.is_open(&closed.id);
                if is_open && display.is_silent() {
                    self.say(&[wait_ended(&closed, self.title())])?;
                }
                is_open
            }
            Some(Event::AgentStopped(_)) => {
                let open = self.open.as_ref();
                open.is_some_and(|open| open.dialog.wait.agent_id == envelope.agent_id)
            }
            Some(Event::Rewound(_) | Event::SessionClosed(_)) => true,
            Some(_) | None => return Ok(()),
        };
        let soon = Instant::now();
        self.look_at = Some(self.look_at.map_or(soon, |at| at.max(soon)));
        if is_over { self.close(display) } else { Ok(()) }
    }

    fn is_open(&self, id: &CallId) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|open| open.dialog.wait.id == *id)
    }

    fn title(&self) -> Option<&str> {
        Some(self.open.as_ref()?.dialog.wait.title.as_str())
    }

    /// Takes the open question off the screen, and writes the output that was held back.
    pub fn close(&mut self, display: &mut EventDisplay) -> io::Result<()> {
        let open = self.open.take();
        self.typing.end_question();
        if open.is_some_and(|open| open.counts_at.is_none()) {
            self.to.draw(&self.erased())?;
        }
        self.next.clear();
        display.release()
    }

    /// Handles an event, until it is done or the person interrupts. `shown` is the number of the latest
    /// event of the session that was shown.
    pub async fn handle(
        &mut self,
        event: AskEvent,
        shown: Seq,
        display: &mut EventDisplay,
        interrupted: &mut Signal,
    ) -> anyhow::Result<Asked> {
        let step = match event {
            AskEvent::Look => {
                return tokio::select! {
                    done = self.look(shown, display) => done.map(|()| Asked::Stays),
                    _ = interrupted.recv() => Ok(Asked::Interrupted),
                };
            }
            AskEvent::Quiet => {
                if let Some(open) = &mut self.open {
                    open.counts_at = None;
                }
                DialogStep::Prompt
            }
            AskEvent::Typed(bytes) => {
                let keys = self.typing.decode(&bytes);
                match self.press(&keys) {
                    Some(step) => step,
                    None if self.typing.keep(&keys) => return Ok(Asked::Aborts),
                    None => return Ok(Asked::Stays),
                }
            }
            AskEvent::Gone if self.open.is_none() => {
                self.typing.give_up();
                return Ok(Asked::Stays);
            }
            AskEvent::Gone => DialogStep::Leave,
        };
        match step {
            DialogStep::Prompt => {}
            DialogStep::Say(text) => self.say(&[text])?,
            DialogStep::Help => self.help()?,
            DialogStep::Request => {
                self.to.draw(&self.erased())?;
                self.request(display)?;
            }
            DialogStep::Edit(text) => self.edit(&text, display, interrupted).await?,
            DialogStep::Send(answer) => {
                tokio::select! {
                    sent = self.send(&answer, display) => sent?,
                    _ = interrupted.recv() => return Ok(Asked::Interrupted),
                }
            }
            DialogStep::Leave => {
                self.close(display)?;
                return Ok(Asked::Left);
            }
        }
        self.prompt()?;
        Ok(Asked::Stays)
    }

    /// Opens the next question, if there is one.
    async fn look(&mut self, shown: Seq, display: &mut EventDisplay) -> anyhow::Result<()> {
        self.look_at = None;
        self.typing.listen()?;
        let filter = ListWaits {
            session: Some(self.session.to_string()),
            limit: Some(PAGE),
            ..ListWaits::default()
        };
        match self.client.waits(&filter).await {
            Ok(page) => self.next = page.waits.into(),
            // The watch ends by itself if the session cannot be followed any longer.
            Err(error) => {
                self.look_at = Some(Instant::now() + LOOK_AGAIN);
                tracing::debug!(%error, "cannot list the waits of the session");
                return Ok(());
            }
        }
        // A wait that a later event opened is asked about after the events before it, such as the text
        // of the same message. That event makes the asker look again.
        self.next.retain(|wait| wait.seq <= shown);
        while let Some(wait) = self.next.pop_front() {
            if let Some(dialog) = Dialog::of(wait, self.by.clone()) {
                return Ok(self.begin(dialog, display)?);
            }
        }
        Ok(())
    }

    fn begin(&mut self, dialog: Dialog, display: &mut EventDisplay) -> io::Result<()> {
        self.typing.begin()?;
        display.learn_wait(&dialog.wait);
        display.hold()?;
        self.open = Some(OpenQuestion {
            dialog,
            counts_at: Some(Instant::now() + QUIET),
        });
        self.request(display)
    }

    /// Passes keys to the open question. Returns `None` if they are no answer, because there is no
    /// question or its prompt is not drawn yet.
    fn press(&mut self, keys: &[KeyPress]) -> Option<DialogStep> {
        let open = self.open.as_mut()?;
        if open.counts_at.is_some() {
            open.counts_at = Some(Instant::now() + QUIET);
            return None;
        }
        Some(open.dialog.press(keys))
    }

    /// Edits the arguments. The editor has the terminal meanwhile.
    async fn edit(
        &mut self,
        text: &str,
        display: &mut EventDisplay,
        interrupted: &mut Signal,
    ) -> anyhow::Result<()> {
        let Some(OpenQuestion { mut dialog, .. }) = self.open.take() else {
            return Ok(());
        };
        self.typing.leave();
        let edited = open_editor(text).await;
        // Interrupts that were typed meanwhile were for the editor.
        while interrupted.recv().now_or_never().flatten().is_some() {}
        let step = match edited {
            Ok(edited) => dialog.edited(&edited),
            Err(error) => DialogStep::Say(format!("{error:#}; nothing is changed")),
        };
        self.typing.begin()?;
        self.open = Some(OpenQuestion {
            dialog,
            counts_at: None,
        });
        if let DialogStep::Say(text) = step {
            return Ok(self.say(&[text])?);
        }
        self.to.draw(&self.erased())?;
        Ok(self.request(display)?)
    }

    /// Sends an answer. If it is not accepted, says why.
    async fn send(&mut self, answer: &Answer, display: &mut EventDisplay) -> anyhow::Result<()> {
        let why = match self.client.answer(&self.session, answer).await {
            Ok(answered) => {
                self.look_at = Some(Instant::now() + NEXT);
                if display.is_silent() {
                    self.say(&[answered.decision.name().into()])?;
                }
                return Ok(self.close(display)?);
            }
            Err(ClientError::Refused(refusal))
                if matches!(refusal.code, Code::Exists | Code::NotFound) =>
            {
                self.look_at = Some(Instant::now());
                self.say(&[refusal.message])?;
                return Ok(self.close(display)?);
            }
            Err(error) => error.to_string(),
        };
        Ok(self.say(&[format!("the answer is not accepted: {why}")])?)
    }
}

/// Waits until a time, or for ever if there is none.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl Asker {
    /// Returns what takes the prompt's line off the screen, or ends the line.
    fn erased(&self) -> Drawing {
        match self.style.in_place {
            true => Drawing::control(ERASE_LINE),
            false => Drawing::text("\n"),
        }
    }

    /// Draws the request of the open question.
    fn request(&self, display: &EventDisplay) -> io::Result<()> {
        let Some(OpenQuestion { dialog, .. }) = &self.open else {
            return Ok(());
        };
        let agent = display.name_of(&dialog.wait.agent_id);
        let args = dialog.args.as_deref();
        let mut drawing = request::block(&dialog.wait, args, agent.as_deref(), self.style);
        let more = self.next.len();
        if more > 0 {
            let more = format!("    {} more\n", counted(more, "question"));
            drawing += &self.style.paint(Paint::Dim, &more);
        }
        self.to.draw(&drawing)
    }

    /// Draws the prompt, in place of the last one.
    fn prompt(&self) -> io::Result<()> {
        let Some(open) = &self.open else {
            return Ok(());
        };
        if open.counts_at.is_some() {
            return Ok(());
        }
        let start = match self.style.in_place {
            true => Drawing::control(ERASE_LINE),
            false => Drawing::default(),
        };
        self.to.draw(&(start + open.dialog.prompt(self.style)))
    }

    /// Shows the output that was held back if there is much of it, and then the question again.
    pub fn make_room(&mut self, display: &mut EventDisplay) -> io::Result<()> {
        if self.open.is_none() || !display.is_full() {
            return Ok(());
        }
        self.to.draw(&self.erased())?;
        display.release()?;
        display.hold()?;
        self.request(display)?;
        self.prompt()
    }

    /// Draws lines in place of the prompt.
    fn say(&self, lines: &[String]) -> io::Result<()> {
        let lines = lines.iter();
        let lines = lines.map(|line| self.style.paint(Paint::Dim, &format!("    {line}")) + "\n");
        self.to.draw(&(self.erased() + lines.collect::<Drawing>()))
    }

    fn help(&self) -> io::Result<()> {
        let Some(OpenQuestion { dialog, .. }) = &self.open else {
            return Ok(());
        };
        let whole = request::whole(&dialog.wait, dialog.args.as_deref(), self.style);
        self.to.draw(&(self.erased() + whole))?;
        let lines = dialog.help().into_iter();
        let lines = lines.map(|line| self.style.paint(Paint::Dim, &format!("    {line}")) + "\n");
        self.to.draw(&lines.collect())
    }
}

/// Returns the command of the person's editor, from `VISUAL` or `EDITOR`, or `vi` as for Git.
fn editor_command() -> OsString {
    let named = ["VISUAL", "EDITOR"].into_iter();
    let mut named = named.filter_map(environment::variable);
    let named = named.find(|command| !command.is_empty());
    named.unwrap_or_else(|| "vi".into())
}

/// Opens the person's editor with a text, and returns the text when the editor has ended.
async fn open_editor(text: &str) -> anyhow::Result<String> {
    edit_with(editor_command(), text).await
}

/// Opens an editor. Arguments in the text become one line each. Fails if the editor reports a failure.
async fn edit_with(editor: OsString, text: &str) -> anyhow::Result<String> {
    let mut file = tempfile::Builder::new()
        .prefix("planck-arguments-")
        .suffix(".json")
        .tempfile()
        .context("cannot create a file for the arguments")?;
    file.write_all(pretty_json(text).as_bytes())?;
    // As for Git, the command may have arguments of its own, such as `code --wait`.
    let mut script = editor;
    script.push(" \"$1\"");
    let status = Command::new("sh")
        .arg("-c")
        .arg(script)
        .arg("planck")
        .arg(file.path())
        .kill_on_drop(true)
        .status()
        .await
        .context("cannot start the editor")?;
    anyhow::ensure!(status.success(), "the editor ended with {status}");
    // An editor may replace the file, so it is opened again by its name.
    let read: io::Result<String> = std::fs::read_to_string(file.path());
    read.context("cannot read the edited arguments")
}

fn pretty_json(text: &str) -> String {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let pretty = value.and_then(|value| serde_json::to_string_pretty(&value).ok());
    pretty.unwrap_or_else(|| text.to_owned()) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn edited_text_is_returned_and_a_failure_is_not() {
        let sed = "sed -i s/ls/pwd/".into();
        let text = edit_with(sed, r#"{"command":"ls"}"#).await.unwrap();
        assert_eq!(text, "{\n  \"command\": \"pwd\"\n}\n");
        let text = edit_with("true".into(), "no JSON").await.unwrap();
        assert_eq!(text, "no JSON\n");
        let error = edit_with("false".into(), "{}").await.unwrap_err();
        assert!(
            error.to_string().contains("the editor ended with"),
            "{error}"
        );
    }
}
