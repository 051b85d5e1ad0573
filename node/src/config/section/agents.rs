//! The sections about agents: their models and providers, limits, permissions and waits.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use planck_common::{
    permission::{self, PermissionMode},
    spec,
};

use crate::config::{
    Secret,
    setting::{
        Authorities, ConfiguredUrl, Field, HeaderText, LimitReaction, ModelsFile, NamedSettings,
        Period, ProxyRule, RuleList, Size,
    },
    values::{KeyDescription, KeyPath, Values},
};
use planck_providers::{PRESETS, Preset, WireKind};

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

/// The configured services that serve models, by name. A name is that of a preset, or one that the
/// user chooses.
#[derive(Debug, Clone, PartialEq)]
pub struct Providers {
    pub by_name: BTreeMap<String, Provider>,
    pub connect_timeout: Period,
}

/// The key that is directly in `[providers]`, next to the tables of the providers.
const CONNECT_TIMEOUT: &str = "connect_timeout";

section! {
    /// One provider.
    Provider {
        /// The preset that supplies address and deviations, if the provider does not have a
        /// preset's name.
        preset: Option<String> = None;
        /// The wire format, if not the preset's: `chat` is OpenAI's chat completions, `responses`
        /// its Responses API.
        wire: Option<WireKind> = None;
        /// The key, as `env:NAME` or `file:PATH`.
        api_key: Option<Secret> = None;
        /// The address, if it is not the preset's usual one. A query in it is sent with every
        /// request.
        base_url: Option<ConfiguredUrl> = None;
        /// A header for every request: text, `env:NAME` or `file:PATH`.
        headers: NamedSettings<HeaderText> = NamedSettings::default();
        /// The proxy for requests to it: an address, or `env` to use `HTTPS_PROXY`, `HTTP_PROXY`
        /// and `NO_PROXY`. Loopback addresses are reached without a proxy.
        proxy: Option<ProxyRule> = None;
        /// A PEM file with certificates of authorities that are trusted in addition to the
        /// system's.
        ca: Option<Authorities> = None;
        /// The version of Azure's API, for addresses that name a deployment.
        api_version: Option<String> = None;
        /// How long an answer may take to begin; a local server may have to load the model first.
        first_byte_timeout: Period = Period::seconds(300);
        /// How long a stream may bring nothing new; pings, comments and empty pieces do not count.
        /// Before the first piece, `first_byte_timeout` applies if it is longer.
        idle_timeout: Period = Period::seconds(120);
        /// How long one request may take as a whole.
        request_timeout: Period = Period::seconds(1_800);
        /// The maximum number of attempts of one request, including the first.
        max_attempts: u32 = 5;
        /// The longest wait between two attempts.
        max_retry_delay: Period = Period::seconds(60);
        /// The maximum number of requests of this node that run at once.
        max_concurrent: u32 = 256;
    }
}

impl Default for Providers {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            connect_timeout: Period::seconds(10),
        }
    }
}

impl Field for Providers {
    fn keys(&self, at: &KeyPath, _: &'static str) -> Vec<KeyDescription> {
        let mut keys = Provider::default().keys(&at.then("*"), "");
        keys.extend(self.connect_timeout.keys(
            &at.then(CONNECT_TIMEOUT),
            "How long a connection to any of them may take.",
        ));
        keys
    }

    fn read(self, at: &KeyPath, values: &mut Values) -> Self {
        let names = values
            .children(at)
            .into_iter()
            .filter(|name| name != CONNECT_TIMEOUT);
        let by_name = names
            .map(|name| {
                (
                    name.clone(),
                    Provider::default().read(&at.then(&name), values),
                )
            })
            .collect();
        Self {
            by_name,
            connect_timeout: Field::read(self.connect_timeout, &at.then(CONNECT_TIMEOUT), values),
        }
    }

    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>) {
        self.by_name
            .iter()
            .for_each(|(name, provider)| provider.show(&at.then(name), into));
        Field::show(&self.connect_timeout, &at.then(CONNECT_TIMEOUT), into);
    }
}

impl Providers {
    pub fn find(&self, name: &str) -> Option<&Provider> {
        self.by_name.get(name)
    }

    /// Returns the provider of this name for changes. Adds a provider with default values if none
    /// of this name is configured.
    pub fn entry(&mut self, name: &str) -> &mut Provider {
        self.by_name.entry(name.to_owned()).or_default()
    }

    /// Returns whether a provider of this name is configured or has a preset.
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || Preset::find(name).is_some()
    }

    /// Returns whether the configuration names the provider's address.
    pub fn has_address(&self, name: &str) -> bool {
        self.find(name)
            .is_some_and(|provider| provider.base_url.is_some())
    }

    /// Returns the names of all presets and configured providers.
    pub fn names(&self) -> BTreeSet<&str> {
        let configured = self.by_name.keys().map(String::as_str);
        PRESETS
            .iter()
            .map(|preset| preset.name)
            .chain(configured)
            .collect()
    }

    /// Returns whether the provider can be used, because it has a key or needs none.
    pub fn is_ready(&self, name: &str) -> bool {
        let provider = self.find(name);
        let has_key = provider.is_some_and(|provider| provider.api_key.is_some());
        let preset = Preset::find(
            provider
                .and_then(|provider| provider.preset.as_deref())
                .unwrap_or(name),
        );
        let needs_key = preset.is_some_and(|preset| preset.needs_key)
            && provider.is_none_or(|it| it.base_url.is_none());
        self.has(name) && (has_key || !needs_key)
    }

    /// Returns the providers with a key, in the order of the presets and then by name.
    pub fn keyed(&self) -> Vec<&str> {
        let has_key = |name: &&str| {
            self.find(name)
                .is_some_and(|provider| provider.api_key.is_some())
        };
        let presets = PRESETS.iter().map(|preset| preset.name);
        let others = self
            .by_name
            .keys()
            .map(String::as_str)
            .filter(|name| Preset::find(name).is_none());
        presets.chain(others).filter(has_key).collect()
    }
}

section! {
    /// The limits of a turn, an agent, a session, a prompt and an answer. A team, a start or an
    /// orchestrator can lower those of an agent and of a session, and not raise them.
    Limits {
        /// The maximum number of model calls in one turn of an agent.
        max_requests_per_turn: u32 = 200;
        /// The maximum number of tokens that one agent may use.
        max_tokens: Option<u64> = None;
        /// The highest cost of one agent in US dollars.
        max_cost_usd: Option<f64> = None;
        /// The longest duration of one turn in seconds.
        max_turn_seconds: Option<u64> = None;
        /// What happens when an agent reaches `max_requests_per_turn`, `max_tokens` or
        /// `max_cost_usd`: its turn ends (`end`), or waits until a person raises the limit (`ask`).
        on_limit: LimitReaction = LimitReaction::End;
        /// The limits over all agents of a session.
        session: SessionLimits = SessionLimits::default();
        /// The largest prompt, as JSON. NATS refuses prompts beyond its own `max_payload`.
        max_prompt: Size = Size::mebibytes(8);
        /// The limits of inboxes.
        inbox: InboxLimits = InboxLimits::default();
        /// The limits of answers.
        answer: AnswerLimits = AnswerLimits::default();
    }
}

section! {
    /// The limits of unread inputs. An input that exceeds one is refused.
    InboxLimits {
        /// The largest total size of the unread inputs of one agent.
        max_bytes: Size = Size::mebibytes(64);
        /// The maximum number of unread inputs of one agent.
        max_inputs: u32 = 10_000;
        /// The largest total size of the unread inputs of all agents of a session.
        max_session_bytes: Size = Size::mebibytes(256);
    }
}

section! {
    /// The limits of one answer of a model. An answer that exceeds one is cut and discarded, and
    /// the turn ends with an error.
    AnswerLimits {
        /// The largest size of the text, thoughts and arguments of one answer.
        max_bytes: Size = Size::mebibytes(8);
        /// The maximum number of tool calls in one answer.
        max_calls: u32 = 128;
    }
}

section! {
    /// The limits of a session over all its agents.
    SessionLimits {
        /// The maximum number of tokens that all agents of a session may use together.
        max_tokens: Option<u64> = None;
        /// The highest cost of all agents of a session together, in US dollars.
        max_cost_usd: Option<f64> = None;
        /// The maximum number of agents in a session.
        max_agents: u32 = 1_000;
        /// The longest chain of agents that wait for answers to their questions.
        max_ask_depth: u32 = 16;
    }
}

section! {
    /// When and how a conversation that has grown too long is summarised.
    Compaction {
        /// The share of the context window at which a conversation is compacted.
        ratio: f64 = 0.8;
        /// The minimum number of recent messages that are kept unchanged.
        keep_recent: u32 = 10;
    }
}

impl Limits {
    pub fn of_agent(&self) -> spec::AgentLimits {
        spec::AgentLimits {
            max_requests_per_turn: Some(self.max_requests_per_turn),
            max_tokens: self.max_tokens,
            max_cost_usd: self.max_cost_usd,
            max_turn_seconds: self.max_turn_seconds,
            on_limit: (self.on_limit == LimitReaction::Ask).then_some(spec::OnLimit::Ask),
        }
    }

    pub fn of_session(&self) -> spec::SessionLimits {
        spec::SessionLimits {
            max_tokens: self.session.max_tokens,
            max_cost_usd: self.session.max_cost_usd,
            max_agents: Some(self.session.max_agents),
            max_ask_depth: Some(self.session.max_ask_depth),
        }
    }
}

section! {
    /// Which tool calls run, which wait for an approval, and which are refused.
    Permissions {
        /// What happens to the calls that no rule matches: all run (`auto`), those that may change
        /// something ask (`careful`), or those are refused (`read-only`).
        mode: PermissionMode = PermissionMode::Auto;
        /// The rules for the agents of sessions that start on this node. The first rule that
        /// matches a call decides. `docs/permissions.md` describes the fields.
        rules: RuleList = RuleList::default();
    }
}

section! {
    /// How long agents wait for a person or a client.
    Waits {
        /// How long a tool call waits for its approval before it is denied, and how long a question
        /// waits for its answer. `0s` means without end.
        expire_after: Period = Period::seconds(24 * 3_600);
    }
}

impl Permissions {
    /// Returns the layer that comes first in the permissions of every agent.
    pub fn layer(&self) -> permission::Permissions {
        permission::Permissions {
            mode: self.mode,
            rules: self.rules.0.clone(),
        }
    }
}

impl Waits {
    /// Returns how long a wait is open, or `None` if it does not expire.
    pub fn expiry(&self) -> Option<Duration> {
        Some(self.expire_after.0).filter(|period| !period.is_zero())
    }
}
