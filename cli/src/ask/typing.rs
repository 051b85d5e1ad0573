//! The keys that the person types: as answers to a question, and as text for the next prompt.

use std::{future::pending, io};

use super::{
    keys::{Key, KeyDecoder},
    tty::Tty,
    type_ahead::TypeAhead,
};
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

    pub fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.decoder.add(bytes)
    }

    /// Keeps keys for the next prompt. Returns whether a line of them aborts the work, which is the
    /// case only in a chat.
    pub fn keep(&mut self, keys: &[Key]) -> bool {
        self.type_ahead.add(keys);
        self.listens && self.type_ahead.take(ABORT)
    }

    pub fn into_type_ahead(self) -> TypeAhead {
        self.type_ahead
    }
}
