//! The command `planck session ls`, and the description by which a person recognises a session.

use std::cmp::Reverse;

use clap::{Args, ValueEnum};
use planck_client::Client;
use planck_common::{
    Timestamp,
    command::{ListSessions, SessionActivity, SessionRow, SessionState},
};
use planck_node::config::Period;
use unicode_width::UnicodeWidthStr as _;

use super::state;
use crate::{
    choose::every_session,
    exit::{Exit, UsageError},
    output::{Format, Output, Stream, json, say, table, warn},
    render::{
        Style,
        style::{cut, one_line},
    },
};

/// The number of sessions in one request.
const PAGE: u32 = 500;
/// The number of columns of the words of a session where no terminal has a width.
const OF_A_GLANCE: usize = 120;

const COLUMNS: [&str; 5] = ["name", "state", "used", "cost", "first prompt → last line"];

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  planck session ls                        # those used last
  planck session ls --state failed --since 2d
  planck session ls --name 'review-*' --limit 500 -o json")]
pub struct Ls {
    /// Only sessions in this state
    #[arg(long, value_enum)]
    state: Option<WantedState>,
    /// Only sessions used since: 2h, 30d, 2026-11-22
    #[arg(long, value_name = "TIME")]
    since: Option<Since>,
    /// Only sessions whose name matches; `*` stands for any text, `?` for one character
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,
    /// The most sessions to list, the most recently used first
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WantedState {
    Open,
    Closed,
    /// An agent is at work
    Working,
    /// The process in which agents were at work has ended
    Interrupted,
    /// The orchestrator's last turn ended with an error or at a limit
    Failed,
    /// Input waits for an agent, and no agent is at work
    Waiting,
}

/// Sessions that were last used before this time are left out.
#[derive(Debug, Clone, Copy)]
struct Since(Timestamp);

impl std::str::FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(Period(ago)) = text.parse() {
            let millis = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
            return Ok(Self(Timestamp::from_millis(
                Timestamp::now().millis().saturating_sub(millis),
            )));
        }
        let midnight = format!("{text}T00:00:00Z");
        let time = Timestamp::parse(text)
            .or_else(|_| Timestamp::parse(&midnight))
            .ok();
        time.map(Self)
            .ok_or_else(|| "write how long ago (2h, 30d), a day in UTC (2026-11-22), or a time (2026-11-22T10:00:00Z)".into())
    }
}

impl Ls {
    pub async fn perform(self, client: &Client) -> anyhow::Result<Exit> {
        if self.limit == 0 {
            return Err(UsageError("--limit is at least 1".into()).into());
        }
        let state = match self.state {
            Some(WantedState::Open) => Some(SessionState::Open),
            Some(WantedState::Closed) => Some(SessionState::Closed),
            Some(
                WantedState::Working
                | WantedState::Interrupted
                | WantedState::Failed
                | WantedState::Waiting,
            )
            | None => None,
        };
        let mut rows = every_session(
            client,
            &ListSessions {
                state,
                limit: Some(PAGE),
                after: None,
            },
        )
        .await?;
        rows.retain(|row| self.since.is_none_or(|since| row.updated_at >= since.0));
        rows.retain(|row| {
            self.name
                .as_deref()
                .is_none_or(|glob| fits(glob.as_bytes(), row.name.as_bytes()))
        });
        rows.sort_by_key(|row| Reverse(row.updated_at));
        let (mut listed, mut older) = (Vec::new(), 0);
        for row in rows {
            if listed.len() == self.limit {
                older += 1;
            } else if self.wants(row.activity) {
                listed.push(row);
            }
        }
        match self.output.output {
            Format::Json => json(&listed)?,
            Format::Table => say(&table_of(&listed))?,
        }
        if older > 0 {
            warn(&format!(
                "planck: {older} older ones are not listed; raise --limit, or say --since or --name"
            ));
        }
        Ok(Exit::Done)
    }

    fn wants(&self, activity: SessionActivity) -> bool {
        match self.state {
            None | Some(WantedState::Open | WantedState::Closed) => true,
            Some(WantedState::Working) => activity == SessionActivity::Working,
            Some(WantedState::Interrupted) => activity == SessionActivity::Interrupted,
            Some(WantedState::Failed) => activity == SessionActivity::Failed,
            Some(WantedState::Waiting) => activity == SessionActivity::Waiting,
        }
    }
}

/// Formats sessions as a table in which a person finds one. On a terminal it is as wide as the
/// terminal.
fn table_of(rows: &[SessionRow]) -> String {
    let previews: Vec<SessionDescription> = rows.iter().map(SessionDescription::of).collect();
    let mut cells: Vec<Vec<String>> = rows.iter().zip(&previews).map(cells).collect();
    let widest = |at: usize| {
        let cells = cells.iter().filter_map(|row| row.get(at));
        let head = COLUMNS.get(at).map_or(0, |head| head.width());
        cells.map(|cell| cell.width()).max().unwrap_or(0).max(head)
    };
    let before: usize = (0..COLUMNS.len() - 1).map(|at| widest(at) + 2).sum();
    let columns = match Stream::Out.is_terminal() {
        true => Style::of_stdout().width.saturating_sub(before).max(20),
        false => OF_A_GLANCE,
    };
    for (row, preview) in cells.iter_mut().zip(&previews) {
        row.push(preview.words(columns));
    }
    table(&COLUMNS, &cells)
}

fn cells((row, preview): (&SessionRow, &SessionDescription)) -> Vec<String> {
    let state = match row.activity {
        SessionActivity::Idle => state(row.state).into(),
        SessionActivity::Working => "working".into(),
        SessionActivity::Interrupted => "interrupted".into(),
        SessionActivity::Waiting => "waiting".into(),
        SessionActivity::Failed => format!("{}, failed", state(row.state)),
    };
    vec![
        row.name.to_string(),
        state,
        ago(row.updated_at),
        preview.cost(),
    ]
}

/// Returns whether a name matches a pattern with the wildcards `*` and `?`.
fn fits(glob: &[u8], name: &[u8]) -> bool {
    // `star` is where matching continues after a mismatch: the position after the last star in the
    // pattern, and the position of the first character of the name that the star does not match.
    let (mut at, mut of, mut star) = (0, 0, None);
    while at < name.len() {
        match glob.get(of) {
            Some(b'*') => {
                star = Some((of + 1, at));
                of += 1;
            }
            Some(b'?') => (at, of) = (at + 1, of + 1),
            Some(wanted) if name.get(at) == Some(wanted) => (at, of) = (at + 1, of + 1),
            Some(_) | None => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    (of, at) = (after, taken + 1);
                }
                None => return false,
            },
        }
    }
    glob.get(of..)
        .unwrap_or_default()
        .iter()
        .all(|rest| *rest == b'*')
}

/// The number of columns of a text that are kept.
const OF_A_TEXT: usize = 200;

/// A look at a session. A text that its row does not have is empty.
#[derive(Debug, Clone, Default)]
pub struct SessionDescription {
    /// The title, or the first prompt of a session without one.
    pub first: String,
    /// The last line, or why the session failed.
    pub last: String,
    pub cost_usd: f64,
}

impl SessionDescription {
    pub fn of(row: &SessionRow) -> Self {
        let text = |text: Option<&String>| text.map(|text| one_line(text, OF_A_TEXT));
        Self {
            first: text(row.title.as_ref().or(row.first_prompt.as_ref())).unwrap_or_default(),
            last: text(row.failure.as_ref().or(row.last_line.as_ref())).unwrap_or_default(),
            cost_usd: row.cost_usd,
        }
    }

    pub fn cost(&self) -> String {
        match self.cost_usd {
            cost if cost > 0.0 => format!("${cost:.2}"),
            _ => "–".into(),
        }
    }

    /// Returns both texts in this many columns, of which each gets half unless the other needs less.
    pub fn words(&self, columns: usize) -> String {
        const ARROW: &str = " → ";
        if self.last.is_empty() {
            return cut(&self.first, columns);
        }
        let room = columns.saturating_sub(ARROW.chars().count());
        let lengths = [&self.first, &self.last].map(|text| text.chars().count());
        let [first, last] = lengths.map(|length| length.min(room));
        let first = first.min((room / 2).max(room - last));
        format!(
            "{}{ARROW}{}",
            cut(&self.first, first),
            cut(&self.last, room - first)
        )
    }
}

/// Formats how long ago a time is, in its largest unit.
pub fn ago(at: Timestamp) -> String {
    match Timestamp::now().millis_since(at) / 1_000 {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (glob, name, expected) in [
            ("bold-oak", "bold-oak", true),
            ("bold-*", "bold-oak", true),
            ("*oak*", "bold-oak", true),
            ("*-o?k", "bold-oak", true),
            ("b*d*k", "bold-oak", true),
            ("*", "x", true),
            ("bold", "bold-oak", false),
            ("*elm", "bold-oak", false),
            ("b?ld", "bld", false),
            ("", "x", false),
        ] {
            assert_eq!(
                fits(glob.as_bytes(), name.as_bytes()),
                expected,
                "{glob} {name}"
            );
        }
    }

    #[test]
    fn times_are_parsed_as_people_write_them() {
        let since = |text: &str| text.parse::<Since>().map(|since| since.0);
        let ago = Timestamp::now().millis() - since("2h").unwrap().millis();
        assert!((7_199_000..7_201_000).contains(&ago), "{ago}");
        assert_eq!(
            since("2026-11-22").unwrap().to_string(),
            "2026-11-22T00:00:00.000Z"
        );
        assert_eq!(
            since("2026-11-22T10:00:00Z").unwrap().to_string(),
            "2026-11-22T10:00:00.000Z"
        );
        assert!(since("yesterday").unwrap_err().contains("2h, 30d"));
    }

    #[test]
    fn both_texts_share_the_columns() {
        let words = |first: &str, last: &str, columns| {
            let preview = SessionDescription {
                first: first.into(),
                last: last.into(),
                cost_usd: 0.0,
            };
            preview.words(columns)
        };
        assert_eq!(words("count it", "", 6), "count…");
        assert_eq!(words("count it", "Done.", 20), "count it → Done.");
        assert_eq!(words("count all of it", "Done.", 17), "count al… → Done.");
        assert_eq!(words("count", "It is all done.", 17), "count → It is al…");
        assert_eq!(
            words("count all of it", "It is all done.", 17),
            "count … → It is …"
        );
    }
}
