//! The built-in table: limits and list prices as far as public pages and price lists told them in October 2026. Vendors change
//! both; what the configuration says of a model goes before it. Where a vendor's prices vary by the hour the dearest stands,
//! and limits of answers are cut to what leaves room for a prompt.

use planck_common::command::Prices;

use super::{Entry, Thinking};

/// A model of the table.
#[derive(Debug)]
pub struct Row {
    pub provider: &'static str,
    pub model: &'static str,
    pub entry: Entry,
}

/// The vendors whose models other providers serve too.
pub const VENDORS: &[&str] = &["anthropic", "openai", "google", "deepseek", "mistral", "moonshot", "xai", "zai"];

const CLAUDE: Family = Family {
    vendor: "anthropic",
    start: "claude-",
    window: 1_000_000,
    output: 128_000,
    thinking: Thinking::Bound,
    responses: false,
};
const CLAUDE_5: Family = Family { thinking: Thinking::Adaptive, ..CLAUDE };
const CLAUDE_4: Family = Family { window: 200_000, output: 64_000, thinking: Thinking::Budget, ..CLAUDE };
const GPT: Family =
    Family { vendor: "openai", start: "gpt-", window: 1_050_000, output: 128_000, thinking: Thinking::Adaptive, responses: true };
const GPT_5: Family = Family { window: 400_000, responses: false, ..GPT };
const GPT_5_4: Family = Family { responses: true, ..GPT_5 };
const O: Family = Family { start: "o", window: 200_000, output: 100_000, ..GPT_5 };
const GPT_4: Family = Family { window: 1_047_576, output: 32_768, thinking: Thinking::None, responses: false, ..GPT };
const GEMINI: Family = Family {
    vendor: "google",
    start: "gemini-",
    window: 1_048_576,
    output: 65_536,
    thinking: Thinking::Budget,
    responses: false,
};

const GPT_4O: Family = Family { window: 128_000, output: 16_384, ..GPT_4 };
const CLAUDE_OPUS_4: Family = Family { output: 32_000, ..CLAUDE_4 };
const DEEPSEEK: Family = Family { vendor: "deepseek", start: "deepseek-", window: 1_000_000, output: 131_072, ..GEMINI };
const KIMI: Family = Family { vendor: "moonshot", start: "kimi-", window: 262_144, output: 65_536, ..GEMINI };
const MISTRAL: Family = Family { vendor: "mistral", start: "mistral-", window: 262_144, output: 32_768, ..GEMINI };

/// What models whose names begin alike have in common, as cautious as the newest of them allow.
pub const FAMILIES: &[Family] = &[
    Family { window: 200_000, output: 64_000, ..CLAUDE_5 },
    Family { window: 400_000, ..GPT },
    GEMINI,
    Family { window: 131_072, output: 32_768, ..DEEPSEEK },
    KIMI,
    Family { window: 131_072, ..MISTRAL },
    Family { vendor: "xai", start: "grok-", window: 131_072, output: 32_768, ..GEMINI },
    Family { vendor: "zai", start: "glm-", window: 131_072, output: 32_768, ..GEMINI },
];

/// Prices are input, output, cache read and cache write (kept five minutes, where writing has a price of its own). Where a
/// vendor asks more for a very long prompt, or less for a time, the usual price stands.
pub const ROWS: &[Row] = &[
    CLAUDE.row("claude-fable-5-1", [10.0, 50.0, 0.25, 12.5]),
    CLAUDE.row("claude-opus-5-5", [4.0, 20.0, 0.2, 5.0]),
    CLAUDE.row("claude-sonnet-5-5", [2.0, 10.0, 0.1, 2.5]),
    CLAUDE.row("claude-haiku-5-5", [0.1, 0.5, 0.01, 0.125]),
    CLAUDE_5.row("claude-fable-5", [10.0, 50.0, 1.0, 12.5]),
    CLAUDE_5.row("claude-opus-5", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-sonnet-5", [2.0, 10.0, 0.2, 2.5]),
    CLAUDE_5.row("claude-opus-4-8", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-opus-4-7", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-opus-4-6", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_5.row("claude-sonnet-4-6", [3.0, 15.0, 0.3, 3.75]),
    CLAUDE_4.row("claude-opus-4-5", [5.0, 25.0, 0.5, 6.25]),
    CLAUDE_OPUS_4.row("claude-opus-4-1", [15.0, 75.0, 1.5, 18.75]),
    CLAUDE_4.row("claude-sonnet-4-5", [3.0, 15.0, 0.3, 3.75]),
    CLAUDE_4.row("claude-haiku-4-5", [1.0, 5.0, 0.1, 1.25]),
    GPT.row("gpt-6-astra", [10.0, 50.0, 1.0, 12.5]),
    GPT.row("gpt-6.1-sol", [2.0, 10.0, 0.1, 2.5]),
    GPT.row("gpt-6-sol", [2.0, 10.0, 0.2, 2.5]),
    GPT.row("gpt-6-luna", [0.1, 0.5, 0.01, 0.125]),
    GPT.row("gpt-5.6-sol", [4.0, 20.0, 0.4, 5.0]),
    GPT.row("gpt-5.6-terra", [2.0, 12.0, 0.2, 2.5]),
    GPT.row("gpt-5.6-luna", [0.2, 1.2, 0.02, 0.25]),
    GPT.row("gpt-5.5", [5.0, 30.0, 0.5, 5.0]),
    GPT.row("gpt-5.4", [2.5, 15.0, 0.25, 2.5]),
    GPT_5_4.row("gpt-5.4-mini", [0.75, 4.5, 0.075, 0.75]),
    GPT_5_4.row("gpt-5.4-nano", [0.2, 1.25, 0.02, 0.2]),
    GPT_5.row("gpt-5.2", [1.75, 14.0, 0.175, 1.75]),
    GPT_5.row("gpt-5.1", [1.25, 10.0, 0.125, 1.25]),
    GPT_5.row("gpt-5", [1.25, 10.0, 0.125, 1.25]),
    GPT_5.row("gpt-5-mini", [0.25, 2.0, 0.025, 0.25]),
    GPT_5.row("gpt-5-nano", [0.05, 0.4, 0.005, 0.05]),
    GPT_4.row("gpt-4.1", [2.0, 8.0, 0.5, 2.0]),
    GPT_4.row("gpt-4.1-mini", [0.4, 1.6, 0.1, 0.4]),
    GPT_4.row("gpt-4.1-nano", [0.1, 0.4, 0.025, 0.1]),
    GPT_4O.row("gpt-4o", [2.5, 10.0, 1.25, 2.5]),
    GPT_4O.row("gpt-4o-mini", [0.15, 0.6, 0.075, 0.15]),
    O.row("o3", [2.0, 8.0, 0.5, 2.0]),
    O.row("o4-mini", [1.1, 4.4, 0.275, 1.1]),
    GEMINI.row("gemini-3.8-flash", [1.5, 7.5, 0.15, 1.5]),
    GEMINI.row("gemini-3.5-flash", [1.5, 9.0, 0.15, 1.5]),
    GEMINI.row("gemini-3.1-pro-preview", [2.0, 12.0, 0.2, 2.0]),
    GEMINI.row("gemini-2.5-pro", [1.25, 10.0, 0.125, 1.25]),
    GEMINI.row("gemini-2.5-flash", [0.3, 2.5, 0.03, 0.3]),
    DEEPSEEK.row("deepseek-v4-pro", [1.32, 3.96, 0.044, 1.32]),
    DEEPSEEK.row("deepseek-v4-flash", [0.3, 1.2, 0.006, 0.3]),
    DEEPSEEK.row("deepseek-flash", [0.3, 1.2, 0.006, 0.3]),
    KIMI.row("kimi-k3", [3.0, 15.0, 0.3, 3.0]),
    KIMI.row("kimi-k2.7-code", [0.95, 4.0, 0.19, 0.95]),
    KIMI.row("kimi-k2.6", [0.95, 4.0, 0.16, 0.95]),
    MISTRAL.row("mistral-large", [0.5, 1.5, 0.05, 0.5]),
    MISTRAL.row("mistral-medium-3.5", [1.5, 7.5, 0.15, 1.5]),
    MISTRAL.row("mistral-medium", [1.5, 7.5, 0.15, 1.5]),
    MISTRAL.row("mistral-small", [0.15, 0.6, 0.015, 0.15]),
    MISTRAL.row("devstral", [0.4, 2.0, 0.04, 0.4]),
];

/// Models that differ in their prices only.
pub struct Family {
    vendor: &'static str,
    /// How the names of models that are not in the table begin, if they belong to it.
    pub start: &'static str,
    window: u64,
    output: u64,
    thinking: Thinking,
    responses: bool,
}

impl Family {
    /// Whether a model of one of these vendors belongs to it. OpenAI's open weights are served by others, within other limits.
    pub fn has(&self, vendors: &[&str], model: &str) -> bool {
        vendors.contains(&self.vendor) && model.starts_with(self.start) && !model.starts_with("gpt-oss")
    }

    pub const fn entry(&self) -> Entry {
        let Self { window, output, thinking, responses, .. } = *self;
        Entry { context_window: window, max_output: output, prices: None, images: true, thinking, responses }
    }

    const fn row(&self, model: &'static str, prices: [f64; 4]) -> Row {
        let [input, output, cache_read, cache_write] = prices;
        let prices = Some(Prices { input, output, cache_read, cache_write });
        Row { provider: self.vendor, model, entry: Entry { prices, ..self.entry() } }
    }
}
