//! Colours, widths, and formats for numbers and durations.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::output::Stream;
use planck_host::terminal::{Drawing, clean};

/// The capabilities of an output, and its width in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    /// Whether a line may be erased and written again.
    pub in_place: bool,
    pub width: usize,
}

impl Style {
    /// Returns the style for the current standard output.
    pub fn of_stdout() -> Self {
        Self::of(Stream::Out)
    }

    /// Returns the style for one of the streams. A terminal of type `dumb` has no cursor movements.
    pub fn of(stream: Stream) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = terminal_size::terminal_size()
            .map_or(100, |(terminal_size::Width(width), _)| usize::from(width));
        Self {
            colour: stream.has_colours(),
            in_place: stream.is_terminal() && !is_dumb,
            width: width.clamp(20, 200),
        }
    }

    /// Returns a style without colours and without cursor movements.
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
/// The escape sequence that moves the cursor to the start of the line and erases the line.
pub const ERASE_LINE: &str = "\r\x1b[2K";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Dim,
    Good,
    Bad,
    Warning,
    Strong,
    /// Emphasised text.
    Soft,
    Code,
    /// The colour of the agent with this index.
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

/// Replaces control characters, joins the lines, and cuts the result to a width in columns.
pub fn one_line(text: &str, width: usize) -> String {
    let words = clean(text).split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&words, width)
}

/// Cuts a text to a width in columns of the terminal.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut room = width.saturating_sub(1);
    let first = text.chars().take_while(|c| {
        let width = c.width().unwrap_or(0);
        let fits = width <= room;
        room = room.saturating_sub(width);
        fits
    });
    first.chain(['…']).collect()
}

/// Formats a duration as `950 ms`, `12.3 s` or `4 m 05 s`.
pub fn duration(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        _ => format!("{} m {:02} s", millis / 60_000, millis % 60_000 / 1_000),
    }
}

/// Formats a number with its noun, which gets a plural `s` unless the number is 1.
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Formats a number with its digits in groups of three.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}
