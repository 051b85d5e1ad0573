//! The tokens and costs of model calls.

use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Tokens and costs. `input_tokens` are those neither read from nor written to a prompt cache.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// The costs in US dollars by the catalogue's prices; 0 if the model's prices are unknown.
    pub cost_usd: f64,
}

impl Usage {
    /// Returns the number of all tokens, including cached ones.
    pub fn tokens(&self) -> u64 {
        self.context_tokens().saturating_add(self.output_tokens)
    }

    /// Returns the size of the prompt in tokens, as the provider counted them.
    pub fn context_tokens(&self) -> u64 {
        let cached = self
            .cache_read_tokens
            .saturating_add(self.cache_write_tokens);
        self.input_tokens.saturating_add(cached)
    }
}

// A server may report any count, so sums end at the greatest number.
impl Add for Usage {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self
                .cache_read_tokens
                .saturating_add(other.cache_read_tokens),
            cache_write_tokens: self
                .cache_write_tokens
                .saturating_add(other.cache_write_tokens),
            cost_usd: self.cost_usd + other.cost_usd,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
