//! Describes a session so that a person recognises it: by its first prompt, the last thing that was
//! said, and its cost.

use planck_common::{
    Timestamp,
    command::{ReadEvents, ReadMessages, SessionInfo},
    envelope::Envelope,
    event::Event,
    message::{Message, MessageRole, text_of},
};

use crate::{
    render::style::{cut, one_line},
    which::orchestrator,
};
use planck_client::Client;

/// The number of events of the orchestrator in which its first prompt is searched for. Usually it is
/// the third one.
const FIRST_EVENTS: u32 = 16;
/// The number of its last messages in which a text is searched for. Others are results of tools.
const LAST_MESSAGES: u32 = 4;
/// The number of characters of a text that are kept.
const OF_A_TEXT: usize = 200;

/// A look at a session. A text that cannot be read is empty, because a list without it is still of
/// use.
#[derive(Debug, Clone, Default)]
pub struct Glance {
    pub first: String,
    pub last: String,
    pub cost_usd: f64,
}

impl Glance {
    pub async fn at(client: &Client, info: &SessionInfo) -> Self {
        let Some(agent) = orchestrator(info).map(|agent| agent.id.to_string()) else {
            return Self::default();
        };
        let read = ReadEvents {
            from: Some(1),
            limit: Some(FIRST_EVENTS),
            agent: Some(agent.clone()),
        };
        let latest = ReadMessages {
            agent: Some(agent),
            before: None,
            limit: Some(LAST_MESSAGES),
        };
        let (events, messages) = tokio::join!(
            client.events(&info.id, &read),
            client.messages(&info.id, &latest)
        );
        let events = events.map(|page| page.events).unwrap_or_default();
        let prompt = events.iter().find_map(|event| prompt(event.get()));
        let messages = messages.map(|page| page.messages).unwrap_or_default();
        let said = messages
            .iter()
            .rev()
            .find_map(|message| said(message.get()));
        Self {
            first: prompt.unwrap_or_default(),
            last: said.unwrap_or_default(),
            cost_usd: info.usage.cost_usd,
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

fn prompt(event: &str) -> Option<String> {
    let event: Envelope = serde_json::from_str(event).ok()?;
    let Event::Message(saved) = event.event()?.ok()? else {
        return None;
    };
    let is_prompt = event.hidden_by.is_none() && saved.message.role == MessageRole::User;
    is_prompt.then(|| one_line(&text_of(&saved.message.content), OF_A_TEXT))
}

/// Returns the last line of an answer.
fn said(message: &str) -> Option<String> {
    let message: Message = serde_json::from_str(message).ok()?;
    let text = text_of(&message.content);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    (message.role == MessageRole::Assistant).then(|| one_line(line, OF_A_TEXT))
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
            let glance = Glance {
                first: first.into(),
                last: last.into(),
                cost_usd: 0.0,
            };
            glance.words(columns)
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
