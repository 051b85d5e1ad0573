//! Reads the prompts of a person: with an editor on a terminal, line by line elsewhere.

mod editor;
mod history;

use std::{
    io::{self, BufRead as _, IsTerminal as _, stdin},
    path::PathBuf,
};

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use self::{editor::Editor, history::History};
use crate::{
    cli::{
        output::{Stream, draw},
        render::{Style, style::Paint},
    },
    terminal::Drawing,
};

const PROMPT: &str = "› ";
/// While a turn runs no editor reads, so the terminal is asked here to mark pasted text for the
/// editor that reads it later.
const MARK_PASTES: &str = "\x1b[?2004h";
const MARK_NO_PASTES: &str = "\x1b[?2004l";

/// Where prompts come from. One at a time is read, on request: a read from a terminal cannot be
/// cancelled, so its thread ends with the process.
pub struct Keyboard {
    ask: std::sync::mpsc::Sender<()>,
    typed: mpsc::Receiver<Option<String>>,
    pub has_editor: bool,
    /// How the terminal was set when this began.
    before: Option<Termios>,
}

/// The sources of the line editor's history and completions.
pub struct Aids {
    /// Where the lines of earlier chats are kept.
    pub history: Option<PathBuf>,
    /// The directory that `@` names files of.
    pub dir: PathBuf,
}

impl Keyboard {
    pub fn start(aids: Aids) -> anyhow::Result<Self> {
        let has_editor = stdin().is_terminal() && Style::of_stdout().in_place;
        let (ask, asked) = std::sync::mpsc::channel();
        let (send, typed) = mpsc::channel(1);
        let read = move || {
            let mut next: Box<dyn FnMut() -> Option<String>> = match has_editor {
                true => {
                    let mut editor = Editor::new(aids.dir, History::open(aids.history));
                    Box::new(move || editor.line(PROMPT))
                }
                false => Box::new(line),
            };
            while asked.recv().is_ok() && send.blocking_send(next()).is_ok() {}
        };
        std::thread::Builder::new()
            .name("keyboard".into())
            .spawn(read)?;
        Ok(Self {
            ask,
            typed,
            has_editor,
            before: has_editor.then(|| tcgetattr(stdin()).ok()).flatten(),
        })
    }

    /// The next prompt; `None` at the end of the input, or where the person is done.
    pub async fn next(&mut self) -> io::Result<Option<String>> {
        if !self.has_editor && Stream::Out.is_terminal() && stdin().is_terminal() {
            draw(&Style::of_stdout().paint(Paint::Strong, PROMPT))?;
        }
        let _ends_with_the_process = self.ask.send(());
        Ok(self.typed.recv().await.flatten())
    }

    /// Keeps what is typed from now on off the screen. The editor reads it when this is dropped.
    pub fn hush(&self) -> io::Result<Option<Hush>> {
        let Some(before) = &self.before else {
            return Ok(None);
        };
        let mut silent = before.clone();
        silent
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ICANON);
        // An interrupt would take back the lines that were typed before it.
        silent.local_flags.insert(LocalFlags::NOFLSH);
        tcsetattr(stdin(), SetArg::TCSADRAIN, &silent)?;
        draw(&Drawing::control(MARK_PASTES))?;
        Ok(Some(Hush(before.clone())))
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        // The editor may be in the middle of a line when a signal ends the chat.
        if let Some(before) = &self.before {
            let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, before);
            let _closed = draw(&Drawing::control(MARK_NO_PASTES));
        }
    }
}

/// A terminal that shows nothing of what is typed; an interrupt still is one.
pub struct Hush(Termios);

impl Drop for Hush {
    fn drop(&mut self) {
        let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// A line of standard input; `None` at its end.
fn line() -> Option<String> {
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
}
