//! Describes a session so that a person recognises it: by its title or its first prompt, the last
//! thing that was said, and its cost.

use planck_common::{Timestamp, command::SessionRow};

use crate::render::style::{cut, one_line};

/// The number of columns of a text that are kept.
const OF_A_TEXT: usize = 200;

/// A look at a session. A text that its row does not have is empty.
#[derive(Debug, Clone, Default)]
pub struct SessionPreview {
    /// The title, or the first prompt of a session without one.
    pub first: String,
    /// The last line, or why the session failed.
    pub last: String,
    pub cost_usd: f64,
}

impl SessionPreview {
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
    fn both_texts_share_the_columns() {
        let words = |first: &str, last: &str, columns| {
            let preview = SessionPreview {
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
