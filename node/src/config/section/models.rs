//! `[models]`

use crate::config::setting::{Address, ModelsFile, Named};

section! {
    /// The default model, and what the built-in catalogue does not know.
    Models {
        /// `provider:model` for agents that name none. Unset: the standard model of the first
        /// provider that has a key.
        default: Option<String> = None;
        /// A file of models, with limits and prices, in place of the one that comes with the binary
        /// (docs/models.md).
        catalogue: Option<ModelsFile> = None;
        /// A model under a name of your choice; what is unset comes from the catalogue.
        entries: Named<ModelEntry> = Named::default();
        /// Origins, or addresses with the beginning of a path, that agents, templates and clients
        /// may name as `base_url`, beside those of providers and entries. No key goes there.
        allowed_base_urls: Vec<Address> = Vec::new();
    }
}

section! {
    /// One model.
    ModelEntry {
        /// Who serves it: the name of a provider.
        provider: Option<String> = None;
        /// The provider's name of it; the entry's own name unless said.
        model: Option<String> = None;
        /// Where it is served, if not where the provider is.
        base_url: Option<Address> = None;
        /// Tokens of prompt and answer together.
        context_window: Option<u64> = None;
        /// Tokens of an answer.
        max_output: Option<u64> = None;
        /// US dollars per million tokens.
        prices: Prices = Prices::default();
    }
}

section! {
    /// US dollars per million tokens.
    Prices {
        /// US dollars per million tokens of prompt.
        input: Option<f64> = None;
        /// US dollars per million tokens of answer.
        output: Option<f64> = None;
        /// US dollars per million tokens read from the prompt cache.
        cache_read: Option<f64> = None;
        /// US dollars per million tokens written to the prompt cache.
        cache_write: Option<f64> = None;
    }
}
