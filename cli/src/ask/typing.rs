//! Reads what the person types: as answers to a question, and as text for the next prompt. While a
//! question is open, keys arrive one by one and are not echoed.

use std::{
    collections::VecDeque,
    future::pending,
    io::{self, IsTerminal as _, stdin},
    os::fd::{AsFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr},
    unistd::{getpgrp, read, tcgetpgrp},
};
use planck_host::terminal::Drawing;
use tokio::io::unix::AsyncFd;

use super::line::{KeyDecoder, KeyPress, LineInput, LineStep};
use crate::output::Stream;

/// The line that aborts the work while it runs. Other lines wait for the next prompt.
const ABORT: &str = "/abort";

/// The keys of the terminal.
pub struct Typing {
    /// The terminal, while this process reads keys from it.
    tty: Option<Tty>,
    /// The stream on which pasted texts are marked while keys are read, or `None` if they are marked
    /// anyway.
    marks: Option<Stream>,
    /// Whether keys are also read while no question is open.
    listens: bool,
    decoder: KeyDecoder,
    type_ahead: TypeAhead,
}

impl Typing {
    pub fn new(marks: Option<Stream>, listens: bool) -> Self {
        Self {
            tty: None,
            marks,
            listens,
            decoder: KeyDecoder::default(),
            type_ahead: TypeAhead::default(),
        }
    }

    /// Reads keys from now on, for a question.
    pub fn begin(&mut self) -> io::Result<()> {
        if self.tty.is_none() {
            self.tty = Some(Tty::open(self.marks)?);
        }
        Ok(())
    }

    /// Reads keys from now on if they are read between questions too.
    pub fn listen(&mut self) -> io::Result<()> {
        match self.listens {
            true => self.begin(),
            false => Ok(()),
        }
    }

    /// Ends a question.
    pub fn end_question(&mut self) {
        if !self.listens {
            self.tty = None;
        }
    }

    /// Leaves the terminal to another program, until keys are read again.
    pub fn leave(&mut self) {
        self.tty = None;
    }

    /// Reads no keys between questions any more, because the terminal cannot be read.
    pub fn give_up(&mut self) {
        self.listens = false;
        self.tty = None;
    }

    /// Returns the next bytes, or none at the end of the input. Waits for ever while no keys are
    /// read. The method is cancel safe.
    pub async fn read(&self) -> io::Result<Vec<u8>> {
        match &self.tty {
            Some(tty) => tty.read().await,
            None => pending().await,
        }
    }

    pub fn decode(&mut self, bytes: &[u8]) -> Vec<KeyPress> {
        self.decoder.add(bytes)
    }

    /// Keeps keys for the next prompt. Returns whether a line of them aborts the work, which is the
    /// case only in a chat.
    pub fn keep(&mut self, keys: &[KeyPress]) -> bool {
        self.type_ahead.add(keys);
        self.listens && self.type_ahead.take(ABORT)
    }

    pub fn into_type_ahead(self) -> TypeAhead {
        self.type_ahead
    }
}

/// The number of lines that are kept. Later ones are dropped.
const MOST_LINES: usize = 64;

#[derive(Debug, Default)]
pub struct TypeAhead {
    lines: VecDeque<String>,
    line: LineInput,
    /// Whether the end of the input was typed.
    is_over: bool,
}

impl TypeAhead {
    pub fn add(&mut self, keys: &[KeyPress]) {
        for key in keys {
            match self.line.apply(key) {
                LineStep::Changed => {}
                // The prompt continues on the next line.
                LineStep::Done if self.line.text().ends_with('\\') => {
                    self.line.apply(&KeyPress::Paste("\n".into()));
                }
                LineStep::Done => {
                    let line = std::mem::take(&mut self.line).text();
                    if self.lines.len() < MOST_LINES {
                        self.lines.push_back(line);
                    }
                }
                LineStep::EndOfInput => self.is_over |= self.line.is_empty(),
            }
        }
    }

    /// Removes the complete lines that consist of this text. Returns whether there was one.
    pub fn take(&mut self, text: &str) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| line.trim_end() != text);
        self.lines.len() < before
    }

    /// Adds what was typed later.
    pub fn append(&mut self, later: Self) {
        let keys = later
            .lines
            .into_iter()
            .flat_map(|line| [KeyPress::Paste(line), KeyPress::Enter]);
        self.add(&keys.collect::<Vec<_>>());
        self.add(&[KeyPress::End, KeyPress::Paste(later.line.text())]);
        self.is_over |= later.is_over;
    }

    /// Returns the first complete line.
    pub fn line(&mut self) -> Option<String> {
        self.lines.pop_front()
    }

    /// Returns whether the end of the input was typed, which counts after all lines.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the text of the line that is not complete.
    pub fn unfinished_line(&mut self) -> String {
        std::mem::take(&mut self.line).text()
    }
}

/// The control sequences that turn bracketed paste on and off, by which a pasted text is told from
/// typed keys.
pub const MARK_PASTES: &str = "\x1b[?2004h";
pub const MARK_NO_PASTES: &str = "\x1b[?2004l";

/// The number of bytes of one read.
const MOST: usize = 4096;

/// The guard of the terminal's settings. Dropping it restores the settings from before.
struct Tty {
    input: AsyncFd<OwnedFd>,
    before: Termios,
    /// The stream on which pasted texts were marked, if this guard had that done.
    marked: Option<Stream>,
}

/// Returns whether a person at the terminal can be asked: standard input is a terminal, and this
/// process may read from it.
pub fn can_ask() -> bool {
    // Without a controlling terminal there is no foreground, and every process may read.
    let is_behind = tcgetpgrp(stdin()).is_ok_and(|foreground| foreground != getpgrp());
    stdin().is_terminal() && !is_behind
}

impl Tty {
    /// Changes the terminal's settings. Interrupts still work. If `marks` names a stream, pasted
    /// texts are marked meanwhile.
    fn open(marks: Option<Stream>) -> io::Result<Self> {
        #[allow(
            deprecated,
            reason = "the deprecation is about descriptors that may be closed early, and this one is owned"
        )]
        let input = AsyncFd::new(stdin().as_fd().try_clone_to_owned()?)?;
        let before = tcgetattr(stdin())?;
        let mut keys = before.clone();
        keys.local_flags
            .remove(LocalFlags::ECHO | LocalFlags::ICANON);
        keys.local_flags.insert(LocalFlags::NOFLSH);
        // A read returns what is there, also if that is nothing, so it never blocks.
        for at in [
            SpecialCharacterIndices::VMIN,
            SpecialCharacterIndices::VTIME,
        ] {
            if let Some(setting) = keys.control_chars.get_mut(at as usize) {
                *setting = 0;
            }
        }
        tcsetattr(stdin(), SetArg::TCSADRAIN, &keys)?;
        let tty = Self {
            input,
            before,
            marked: marks,
        };
        if let Some(stream) = marks {
            stream.draw(&Drawing::control(MARK_PASTES))?;
        }
        Ok(tty)
    }

    /// Returns the next bytes, or none at the end of the input. The method is cancel safe.
    async fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; MOST];
        loop {
            let mut ready = self.input.readable().await?;
            let is_over = ready.ready().is_read_closed();
            match read(self.input.get_ref(), &mut bytes) {
                Ok(0) if is_over => return Ok(Vec::new()),
                Ok(0) | Err(Errno::EAGAIN | Errno::EINTR) => ready.clear_ready(),
                Ok(length) => {
                    bytes.truncate(length);
                    return Ok(bytes);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        let _ended = tcsetattr(stdin(), SetArg::TCSADRAIN, &self.before);
        if let Some(stream) = self.marked {
            let _closed = stream.draw(&Drawing::control(MARK_NO_PASTES));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::line::KeyDecoder;

    #[test]
    fn complete_lines_come_first_and_then_the_rest() {
        let of = |bytes: &str| {
            let mut ahead = TypeAhead::default();
            ahead.add(&KeyDecoder::default().add(bytes.as_bytes()));
            ahead
        };
        let mut ahead = of("one\rtw\x7fwo\r\x1b[200~thr\nee\x1b[201~");
        ahead.append(of("!\rfour"));
        let lines: Vec<String> = std::iter::from_fn(|| ahead.line()).collect();
        assert_eq!(lines, ["one", "two", "thr\nee!"]);
        assert_eq!(ahead.unfinished_line(), "four");
        assert_eq!(ahead.unfinished_line(), "");
    }

    #[test]
    fn commands_continued_lines_and_the_end_are_recognised() {
        let mut ahead = TypeAhead::default();
        ahead.add(&KeyDecoder::default().add(b"one \\\rmore\r/abort\rtwo\r\x04"));
        assert!(ahead.take("/abort") && !ahead.take("/abort"));
        let lines: Vec<String> = std::iter::from_fn(|| ahead.line()).collect();
        assert_eq!(lines, ["one \\\nmore", "two"]);
        assert!(ahead.is_over());
    }
}
