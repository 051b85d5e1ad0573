//! Reads the user's prompts, with a line editor on a terminal and line by line otherwise.

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
    ask::{MARK_NO_PASTES, MARK_PASTES, TypeAhead},
    output::{Stream, draw, say},
    render::{Style, style::Paint},
};
use planck_host::terminal::Drawing;

const PROMPT: &str = "› ";

/// Reads a line that begins with a text.
type ReadLine = dyn FnMut(&str) -> Option<String>;

/// The source of prompts. Its thread reads a line only on request and never two at once, because a
/// read from a terminal cannot be cancelled. The thread is never joined, because it may block in a
/// read until the process ends.
pub struct Keyboard {
    /// Requests a line, which begins with this text.
    ask: std::sync::mpsc::Sender<String>,
    typed: mpsc::Receiver<Option<String>>,
    pub has_editor: bool,
    /// The terminal's settings when the chat began, or `None` if there is no editor or the settings
    /// cannot be read.
    before: Option<Termios>,
    /// What was typed and read from the terminal already.
    type_ahead: TypeAhead,
}

/// The paths from which the line editor takes its history and its completions.
pub struct EditorSources {
    /// The file with the lines of earlier chats, or `None` if the history is not stored.
    pub history: Option<PathBuf>,
    /// The directory that relative paths after `@` start from.
    pub dir: PathBuf,
    /// The models that `/model` completes.
    pub models: Vec<String>,
}

impl Keyboard {
    pub fn start(sources: EditorSources) -> anyhow::Result<Self> {
        let has_editor = stdin().is_terminal() && Style::of_stdout().in_place;
        let (ask, asked) = std::sync::mpsc::channel::<String>();
        let (send, typed) = mpsc::channel(1);
        let read = move || {
            let mut next: Box<ReadLine> = match has_editor {
                true => {
                    let history = History::open(sources.history);
                    let mut editor = Editor::new(sources.dir, sources.models, history);
                    Box::new(move |begin| editor.line(PROMPT, begin))
                }
                false => Box::new(line),
            };
            while let Ok(begin) = asked.recv()
                && send.blocking_send(next(&begin)).is_ok()
            {}
        };
        std::thread::Builder::new()
            .name("keyboard".into())
            .spawn(read)?;
        Ok(Self {
            ask,
            typed,
            has_editor,
            before: has_editor.then(|| tcgetattr(stdin()).ok()).flatten(),
            type_ahead: TypeAhead::default(),
        })
    }

    /// Puts back what was typed and read from the terminal during a turn.
    pub fn put_back(&mut self, typed: TypeAhead) {
        self.type_ahead.append(typed);
    }

    /// Returns the next prompt, or `None` at the end of the input or when the user leaves.
    pub async fn next(&mut self) -> io::Result<Option<String>> {
        let line = self.type_ahead.line();
        // The editor draws the prompt itself.
        if line.is_some() || !self.has_editor && Stream::Out.is_terminal() && stdin().is_terminal()
        {
            draw(&Style::of_stdout().paint(Paint::Strong, PROMPT))?;
        }
        if let Some(line) = line {
            say(&format!("{line}\n"))?;
            return Ok(Some(line));
        }
        if self.type_ahead.is_over() {
            return Ok(None);
        }
        let _ends_with_the_process = self.ask.send(self.type_ahead.unfinished_line());
        Ok(self.typed.recv().await.flatten())
    }

    /// Turns bracketed paste on, by which the editor recognises pasted text and which it uses only
    /// while it reads a line, and turns the terminal's echo off until the returned guard is
    /// dropped. Text that is typed meanwhile stays in the terminal's input, where the editor reads
    /// it later. Returns `None` if there is no editor.
    pub fn hush(&self) -> io::Result<Option<NoEcho>> {
        let Some(before) = &self.before else {
            return Ok(None);
        };
        let mut silent = before.clone();
        silent
            .local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ICANON);
        // Without this flag, an interrupt would discard the lines that were typed before it.
        silent.local_flags.insert(LocalFlags::NOFLSH);
        tcsetattr(stdin(), SetArg::TCSADRAIN, &silent)?;
        draw(&Drawing::control(MARK_PASTES))?;
        Ok(Some(NoEcho(before.clone())))
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        // A signal may end the chat while the editor reads a line and has changed the terminal's
        // settings.
        if let Some(before) = &self.before {
            let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, before);
            let _closed = draw(&Drawing::control(MARK_NO_PASTES));
        }
    }
}

/// The guard that [`Keyboard::hush`] returns. Until the guard is dropped, the terminal does not
/// echo, but interrupts still work. Dropping the guard restores the previous settings.
pub struct NoEcho(Termios);

impl Drop for NoEcho {
    fn drop(&mut self) {
        let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// Reads a line from standard input, after the text with which it begins. Returns `None` at the end
/// of the input, or if it cannot be read.
fn line(begin: &str) -> Option<String> {
    let mut line = begin.to_owned();
    let read = stdin().lock().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
}
