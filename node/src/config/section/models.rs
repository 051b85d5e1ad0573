//! The section `[models]`.

use crate::config::setting::{ConfiguredUrl, ModelsFile, NamedSettings};

section! {
    /// The default model, and models that the built-in catalogue does not have.
    Models {
        /// `provider:model` for agents that name none. Unset: the standard model of the first
        /// provider that has a key.
        default: Option<String> = None;
        /// A file of models with limits and prices. It replaces the table that is part of the
        /// binary (docs/models.md).
        catalogue: Option<ModelsFile> = None;
        /// A model under a name of your choice. The catalogue supplies the keys that are unset.
        entries: NamedSettings<ModelEntry> = NamedSettings::default();
        /// Origins, or addresses with the beginning of a path, that agents, templates and clients
        /// may name as `base_url`, in addition to those of providers and entries. No key is sent
        /// there.
        allowed_base_urls: Vec<ConfiguredUrl> = Vec::new();
    }
}

section! {
    /// One model.
    ModelEntry {
        /// The name of the provider that serves it.
        provider: Option<String> = None;
        /// The provider's name of the model. Unset: the name of the entry.
        model: Option<String> = None;
        /// The address that serves it, if it differs from the provider's.
        base_url: Option<ConfiguredUrl> = None;
        /// The maximum number of tokens of prompt and answer together.
        context_window: Option<u64> = None;
        /// The maximum number of tokens of an answer.
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
