//! Colours, widths and numbers.

use crate::{
    cli::output::Stream,
    terminal::{Drawing, clean},
};

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    /// Lines may be drawn over.
    pub in_place: bool,
    pub width: usize,
}

impl Style {
    /// For what standard output is now.
    pub fn of_stdout() -> Self {
        Self::of(Stream::Out)
    }

    /// For what one of the outputs is now. A terminal that calls itself `dumb` obeys no movements.
    pub fn of(stream: Stream) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = terminal_size::terminal_size()
            .map_or(100, |(terminal_size::Width(width), _)| usize::from(width));
        Self {
            colour: stream.has_colours(),
            in_place: stream.is_terminal() && !is_dumb,
            width: width.clamp(40, 200),
        }
    }

    /// Without colours or movements.
    pub const fn plain(width: usize) -> Self {
        Self {
            colour: false,
            in_place: false,
            width,
        }
    }

    pub fn paint(self, paint: Paint, text: &str) -> Drawing {
        match self.colour {
            true => Drawing::control(paint.code()) + text + Drawing::control(RESET),
            false => Drawing::text(text),
        }
    }
}

pub const RESET: &str = "\x1b[0m";
/// Back to the line's start, and the line away.
pub const ERASE_LINE: &str = "\r\x1b[2K";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Dim,
    Good,
    Bad,
    Warning,
    Strong,
    /// Emphasis.
    Soft,
    Code,
    /// One of the agents' colours.
    Agent(usize),
}

const AGENTS: [&str; 6] = [
    "\x1b[1;36m",
    "\x1b[1;35m",
    "\x1b[1;33m",
    "\x1b[1;32m",
    "\x1b[1;34m",
    "\x1b[1;31m",
];

impl Paint {
    pub fn code(self) -> &'static str {
        match self {
            Self::Dim => "\x1b[2m",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
            Self::Warning => "\x1b[33m",
            Self::Strong => "\x1b[1m",
            Self::Soft => "\x1b[3m",
            Self::Code => "\x1b[36m",
            Self::Agent(number) => AGENTS
                .get(number % AGENTS.len())
                .copied()
                .unwrap_or_default(),
        }
    }
}

/// Clean text on one line, cut to a width.
pub fn one_line(text: &str, width: usize) -> String {
    let words = clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&words, width)
}

pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// `950 ms`, `12.3 s`, `4 m 05 s`.
pub fn duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => format!("{} m {:02} s", millis / 60_000, millis % 60_000 / 1_000),
    }
}

/// A number and its noun, which gets a plural `s` unless the number is 1.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Digits in groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}
