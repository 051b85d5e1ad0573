//! Sums up the tokens and the cost of all events that were received, and describes the duration and
//! the cost of each turn.

use std::collections::HashMap;

use planck_common::{AgentId, Timestamp, envelope::Envelope, event::Event, usage::Usage};

use super::style::{Paint, Style, count, duration};
use planck_host::terminal::Drawing;

#[derive(Debug, Default)]
pub struct Summary {
    /// The time at which each agent's open turn started.
    began: HashMap<AgentId, Timestamp>,
    first: Option<Timestamp>,
    last: Option<Timestamp>,
    usage: Usage,
    /// Whether a line with the duration and the cost is written at the end of each turn.
    pub each_turn: bool,
}

impl Summary {
    pub(super) fn note(&mut self, envelope: &Envelope, event: &Event) {
        if let Event::TurnStart(_) = event {
            self.began.insert(envelope.agent_id.clone(), envelope.at);
            self.first.get_or_insert(envelope.at);
        }
        if let Event::UsageDelta(usage) = event {
            self.usage += usage.delta;
        }
        self.last = Some(envelope.at);
    }

    /// Returns the line with the duration and cost of the turn that the event ends. Returns `None`
    /// for other events, and if no line is written for each turn.
    pub(super) fn turn_line(
        &mut self,
        envelope: &Envelope,
        event: &Event,
        style: Style,
    ) -> Option<Drawing> {
        let Event::TurnEnd(end) = event else {
            return None;
        };
        let began = self.began.remove(&envelope.agent_id).unwrap_or(envelope.at);
        if !self.each_turn {
            return None;
        }
        let took = duration(envelope.at.millis_since(began));
        Some(style.paint(Paint::Dim, &format!("  {took} · {}", consumed(&end.usage))))
    }

    /// Returns the sum of the tokens and the cost of all events that were received.
    pub fn usage(&self) -> Usage {
        self.usage
    }
}

/// Returns the usage with its cost rounded to a millionth of a cent. A sum of costs has further
/// digits, which are those of the arithmetic.
pub fn rounded(usage: Usage) -> Usage {
    const PARTS: f64 = 1e8;
    let cost_usd = (usage.cost_usd * PARTS).round() / PARTS;
    Usage { cost_usd, ..usage }
}

/// Formats tokens and cost as `1,204 tokens in (90 % cached) · 330 out · $0.0123`.
pub fn consumed(usage: &Usage) -> String {
    let prompt = usage.context_tokens();
    let cached = match usage.cache_read_tokens {
        0 => String::new(),
        read => format!(" ({} % cached)", read.saturating_mul(100) / prompt.max(1)),
    };
    let cost = if usage.cost_usd > 0.0 {
        format!(" · ${:.4}", usage.cost_usd)
    } else {
        String::new()
    };
    format!(
        "{} tokens in{cached} · {} out{cost}",
        count(prompt),
        count(usage.output_tokens)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_written_without_the_digits_of_the_arithmetic() {
        let sum: f64 = [0.000_334, 0.001].iter().sum::<f64>() + 3e-19;
        for (cost_usd, written) in [(0.1 + 0.2, "0.3"), (sum, "0.001334"), (0.0, "0.0")] {
            let usage = rounded(Usage {
                cost_usd,
                ..Usage::default()
            });
            assert_eq!(serde_json::to_string(&usage.cost_usd).unwrap(), written);
        }
    }
}
