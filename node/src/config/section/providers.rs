//! `[providers]`

use crate::config::Secret;
use crate::config::setting::{Address, Period};

section! {
    /// Who serves models.
    Providers {
        /// Anthropic.
        anthropic: Provider = Provider::default();
        /// OpenAI, and whatever speaks its chat completions.
        openai: Provider = Provider::default();
        /// Google.
        google: Provider = Provider::default();
        /// Ollama.
        ollama: Provider = Provider::at("http://127.0.0.1:11434");
        /// A llama.cpp server.
        llama_cpp: Provider = Provider::at("http://127.0.0.1:8080");
        /// A script instead of a model, for demos and tests; `base_url` names the script.
        scripted: Provider = Provider::default();
        /// How long a connection to any of them may take.
        connect_timeout: Period = Period::seconds(10);
    }
}

section! {
    /// One provider.
    Provider {
        /// `env:NAME` or `file:PATH`.
        api_key: Option<Secret> = None;
        /// Where it is, if not at its usual address.
        base_url: Option<Address> = None;
        /// How long an answer may take to begin; a local server may load the model first.
        first_byte_timeout: Period = Period::seconds(300);
        /// How long a stream may bring nothing new; pings, comments and empty pieces do not count. Before the first piece it is
        /// `first_byte_timeout`, where that is longer.
        idle_timeout: Period = Period::seconds(120);
        /// How long one request may take as a whole.
        request_timeout: Period = Period::seconds(1_800);
        /// Tries of one request, the first counted.
        max_attempts: u32 = 5;
        /// The longest wait between two tries.
        max_retry_delay: Period = Period::seconds(60);
        /// Requests of this node at once.
        max_concurrent: u32 = 64;
    }
}

impl Provider {
    fn at(url: &str) -> Self {
        Self { base_url: Some(Address::new(url)), ..Self::default() }
    }
}

/// Every provider's name.
pub const NAMES: [&str; 6] = ["anthropic", "openai", "google", "ollama", "llama_cpp", "scripted"];

impl Providers {
    pub fn find(&self, name: &str) -> Option<&Provider> {
        match name {
            "anthropic" => Some(&self.anthropic),
            "openai" => Some(&self.openai),
            "google" => Some(&self.google),
            "ollama" => Some(&self.ollama),
            "llama_cpp" => Some(&self.llama_cpp),
            "scripted" => Some(&self.scripted),
            _ => None,
        }
    }

    /// Whether a request to it can be made: it has its key, or needs none.
    pub fn is_ready(&self, name: &str) -> bool {
        let needs_key = matches!(name, "anthropic" | "openai" | "google");
        self.find(name).is_some_and(|provider| !needs_key || provider.api_key.is_some())
    }
}
