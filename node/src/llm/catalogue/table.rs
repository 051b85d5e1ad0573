//! The built-in table: limits and list prices as far as they were known when it was written. Vendors change both; what the
//! configuration says of a model goes before it.

use planck_common::command::Prices;

use super::{Entry, Thinking};

/// A model of the table.
#[derive(Debug)]
pub struct Row {
    pub provider: &'static str,
    pub model: &'static str,
    pub entry: Entry,
}

const CLAUDE: Family = Family { provider: "anthropic", window: 1_000_000, output: 128_000, thinking: Thinking::Bound };
const CLAUDE_5: Family = Family { thinking: Thinking::Adaptive, ..CLAUDE };
const CLAUDE_4: Family = Family { window: 200_000, output: 64_000, thinking: Thinking::Budget, ..CLAUDE };
const GPT: Family = Family { provider: "openai", window: 1_050_000, output: 128_000, thinking: Thinking::Adaptive };
const GPT_5: Family = Family { window: 400_000, ..GPT };
const GPT_4: Family = Family { window: 1_047_576, output: 32_768, thinking: Thinking::None, ..GPT };
const GEMINI: Family = Family { provider: "google", window: 1_048_576, output: 65_536, thinking: Thinking::Budget };

/// Prices are input, output, cache read and cache write (kept five minutes, where writing has a price of its own). Where a
/// vendor asks more for a very long prompt, or less for a time, the usual price stands.
pub const ROWS: &[Row] = &[
    CLAUDE.row("claude-fable-5-1", [10.0, 50.0, 0.25, 12.5]),
    CLAUDE.row("claude-opus-5-5", [4.0, 20.0, 0.2, 5.0]),
    CLAUDE.row("claude-sonnet-5-5", [2.0, 10.0, 0.1, 2.5]),
    CLAUDE.row("claude-haiku-5-5", [0.1, 0.5, 0.01, 0.125]),
    CLAUDE_5.row("claude-opus-5", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-sonnet-5", [2.0, 10.0, 0.2, 2.5]),
    CLAUDE_5.row("claude-opus-4-8", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-opus-4-7", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-opus-4-6", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-sonnet-4-6", [3.0, 15.0, 0.3, 3.75]),
    CLAUDE_4.row("claude-opus-4-5", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_4.row("claude-sonnet-4-5", [3.0, 15.0, 0.3, 3.75]),
    CLAUDE_4.row("claude-haiku-4-5", [1.0, 5.0, 0.1, 1.25]),
    GPT.row("gpt-6-astra", [10.0, 50.0, 1.0, 12.5]),
    GPT.row("gpt-6.1-sol", [2.0, 10.0, 0.1, 2.5]),
    GPT.row("gpt-6-sol", [2.0, 10.0, 0.2, 2.5]),
    GPT.row("gpt-6-luna", [0.1, 0.5, 0.01, 0.125]),
    GPT_5.row("gpt-5", [1.25, 10.0, 0.125, 1.25]),
    GPT_5.row("gpt-5-mini", [0.25, 2.0, 0.025, 0.25]),
    GPT_4.row("gpt-4.1", [2.0, 8.0, 0.5, 2.0]),
    GPT_4.row("gpt-4.1-mini", [0.4, 1.6, 0.1, 0.4]),
    GEMINI.row("gemini-3.8-flash", [1.5, 7.5, 0.15, 1.5]),
    GEMINI.row("gemini-3.5-flash", [1.5, 9.0, 0.15, 1.5]),
    GEMINI.row("gemini-3.1-pro-preview", [2.0, 12.0, 0.2, 2.0]),
    GEMINI.row("gemini-2.5-pro", [1.25, 10.0, 0.125, 1.25]),
    GEMINI.row("gemini-2.5-flash", [0.3, 2.5, 0.03, 0.3]),
];

/// Models that differ in their prices only.
struct Family {
    provider: &'static str,
    window: u64,
    output: u64,
    thinking: Thinking,
}

impl Family {
    const fn row(&self, model: &'static str, prices: [f64; 4]) -> Row {
        let [input, output, cache_read, cache_write] = prices;
        let prices = Some(Prices { input, output, cache_read, cache_write });
        let Self { provider, window, output: max_output, thinking } = *self;
        Row { provider, model, entry: Entry { context_window: window, max_output, prices, images: true, thinking } }
    }
}
