//! The providers that Planck knows by name: the wire format of each, its address, and how it
//! deviates from that format.
//!
//! The facts about a vendor come from its documentation and from issue threads that quote its
//! answers.

use super::wire::{
    AddressStyle, CallIdForm, Limit, Quirks, ReasoningReturn, ThinkingRequest, ToolDemand, WireKind,
};

/// A provider that Planck knows by name.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    pub name: &'static str,
    pub wire: WireKind,
    /// Whether requests to the vendor's own address use the Responses API for models that the
    /// catalogue lists for it.
    pub responses: bool,
    /// The base URL, or `None` if the configuration must name one.
    pub base_url: Option<&'static str>,
    /// The environment variable that usually holds the key.
    pub key_variable: Option<&'static str>,
    /// The environment variable from which other programs read the address.
    pub address_variable: Option<&'static str>,
    /// Whether the vendor's own address refuses requests without a key.
    pub needs_key: bool,
    /// Whether the provider is available at its usual address even if the configuration does not
    /// mention it.
    pub assumed: bool,
    pub serves: ServedModels,
    pub quirks: Quirks,
}

/// The vendors whose models a provider serves. They determine where the catalogue looks up the
/// facts about a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedModels {
    /// The provider's own models.
    Own,
    /// Models of several vendors. A model's name may begin with its vendor, as in `openai/gpt-5`.
    Any,
    /// Model weights that a user downloaded. Their names tell little about the model.
    Weights,
}

const PLAIN: Quirks = Quirks {
    reasoning: ReasoningReturn::AsItCame,
    thinking: ThinkingRequest::Effort,
    limit: Limit::ByModel,
    call_ids: CallIdForm::Any,
    demand: ToolDemand::Named,
    addresses: AddressStyle::Plain,
};
const SERVER: Quirks = Quirks {
    thinking: ThinkingRequest::Template,
    limit: Limit::MaxTokens,
    ..PLAIN
};

/// The template for a vendor's hosted service that speaks chat completions.
const CLOUD: Preset = Preset {
    name: "",
    wire: WireKind::Chat,
    responses: false,
    base_url: None,
    key_variable: None,
    address_variable: None,
    needs_key: true,
    assumed: false,
    serves: ServedModels::Own,
    quirks: Quirks {
        limit: Limit::MaxTokens,
        ..PLAIN
    },
};

/// The template for a server that users run themselves.
const LOCAL: Preset = Preset {
    needs_key: false,
    serves: ServedModels::Weights,
    quirks: SERVER,
    ..CLOUD
};

/// All presets. If no default model is configured, agents that name no model get the standard model
/// of the first provider that has both a key and a standard model. The providers of these presets
/// come first, in this order.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "anthropic",
        key_variable: Some("ANTHROPIC_API_KEY"),
        address_variable: Some("ANTHROPIC_BASE_URL"),
        wire: WireKind::Anthropic,
        base_url: Some("https://api.anthropic.com"),
        quirks: PLAIN,
        ..CLOUD
    },
    Preset {
        name: "openai",
        key_variable: Some("OPENAI_API_KEY"),
        address_variable: Some("OPENAI_BASE_URL"),
        responses: true,
        base_url: Some("https://api.openai.com/v1"),
        quirks: PLAIN,
        ..CLOUD
    },
    Preset {
        name: "google",
        key_variable: Some("GOOGLE_API_KEY"),
        address_variable: Some("GOOGLE_BASE_URL"),
        wire: WireKind::Google,
        base_url: Some("https://generativelanguage.googleapis.com"),
        quirks: PLAIN,
        ..CLOUD
    },
    Preset {
        name: "ollama",
        address_variable: Some("OLLAMA_HOST"),
        wire: WireKind::Ollama,
        base_url: Some("http://127.0.0.1:11434"),
        assumed: true,
        quirks: PLAIN,
        ..LOCAL
    },
    Preset {
        name: "llama_cpp",
        base_url: Some("http://127.0.0.1:8080"),
        assumed: true,
        quirks: Quirks {
            demand: ToolDemand::Required,
            ..SERVER
        },
        ..LOCAL
    },
    Preset {
        name: "scripted",
        quirks: PLAIN,
        ..LOCAL
    },
    Preset {
        name: "azure",
        key_variable: Some("AZURE_API_KEY"),
        serves: ServedModels::Any,
        quirks: Quirks {
            reasoning: ReasoningReturn::Never,
            limit: Limit::MaxCompletionTokens,
            addresses: AddressStyle::Azure,
            ..PLAIN
        },
        ..CLOUD
    },
    Preset {
        name: "deepseek",
        key_variable: Some("DEEPSEEK_API_KEY"),
        base_url: Some("https://api.deepseek.com/v1"),
        quirks: Quirks {
            thinking: ThinkingRequest::Switch,
            demand: ToolDemand::Never,
            ..CLOUD.quirks
        },
        ..CLOUD
    },
    Preset {
        name: "fireworks",
        key_variable: Some("FIREWORKS_API_KEY"),
        serves: ServedModels::Any,
        base_url: Some("https://api.fireworks.ai/inference/v1"),
        ..CLOUD
    },
    Preset {
        name: "groq",
        key_variable: Some("GROQ_API_KEY"),
        serves: ServedModels::Any,
        base_url: Some("https://api.groq.com/openai/v1"),
        quirks: Quirks {
            reasoning: ReasoningReturn::Never,
            limit: Limit::MaxCompletionTokens,
            ..PLAIN
        },
        ..CLOUD
    },
    Preset {
        name: "lm_studio",
        base_url: Some("http://127.0.0.1:1234/v1"),
        quirks: Quirks {
            demand: ToolDemand::Required,
            ..CLOUD.quirks
        },
        ..LOCAL
    },
    Preset {
        name: "mistral",
        key_variable: Some("MISTRAL_API_KEY"),
        base_url: Some("https://api.mistral.ai/v1"),
        quirks: Quirks {
            call_ids: CallIdForm::Nine,
            ..CLOUD.quirks
        },
        ..CLOUD
    },
    Preset {
        name: "moonshot",
        key_variable: Some("MOONSHOT_API_KEY"),
        base_url: Some("https://api.moonshot.ai/v1"),
        quirks: Quirks {
            thinking: ThinkingRequest::Switch,
            demand: ToolDemand::Never,
            ..CLOUD.quirks
        },
        ..CLOUD
    },
    Preset {
        name: "openrouter",
        key_variable: Some("OPENROUTER_API_KEY"),
        base_url: Some("https://openrouter.ai/api/v1"),
        serves: ServedModels::Any,
        quirks: Quirks {
            thinking: ThinkingRequest::Budget,
            ..CLOUD.quirks
        },
        ..CLOUD
    },
    Preset {
        name: "sglang",
        base_url: Some("http://127.0.0.1:30000/v1"),
        ..LOCAL
    },
    Preset {
        name: "together",
        key_variable: Some("TOGETHER_API_KEY"),
        serves: ServedModels::Any,
        base_url: Some("https://api.together.xyz/v1"),
        ..CLOUD
    },
    Preset {
        name: "vllm",
        base_url: Some("http://127.0.0.1:8000/v1"),
        ..LOCAL
    },
    Preset {
        name: "xai",
        key_variable: Some("XAI_API_KEY"),
        base_url: Some("https://api.x.ai/v1"),
        ..CLOUD
    },
    Preset {
        name: "zai",
        key_variable: Some("ZAI_API_KEY"),
        base_url: Some("https://api.z.ai/api/paas/v4"),
        quirks: Quirks {
            thinking: ThinkingRequest::Switch,
            demand: ToolDemand::Never,
            ..CLOUD.quirks
        },
        ..CLOUD
    },
];

/// Returns the environment variables for the keys of the first three presets that have one, as a
/// list for error messages.
pub fn key_variables() -> String {
    let variables = PRESETS.iter().filter_map(|preset| preset.key_variable);
    variables.take(3).collect::<Vec<_>>().join(", ")
}

/// Returns the names of the providers that are available without any configuration, as a list for
/// error messages.
pub fn keyless() -> String {
    let names = PRESETS.iter().filter(|preset| preset.assumed);
    names
        .map(|preset| preset.name)
        .collect::<Vec<_>>()
        .join(" and ")
}

impl Preset {
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Returns the preset for a provider that has no preset of its own.
    pub fn unnamed(wire: WireKind) -> Self {
        Self {
            wire,
            needs_key: false,
            serves: ServedModels::Any,
            quirks: PLAIN,
            ..CLOUD
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_every_preset() {
        let page = include_str!("../../docs/models.md");
        for preset in PRESETS {
            let wire = match preset.wire {
                WireKind::Chat if preset.responses => "`chat`, `responses` by the catalogue",
                WireKind::Chat => "`chat`",
                WireKind::Responses => "`responses`",
                WireKind::Anthropic => "`anthropic`",
                WireKind::Google => "`google`",
                WireKind::Ollama => "`ollama`",
            };
            let address = preset
                .base_url
                .map_or_else(|| "–".to_owned(), |url| format!("`{url}`"));
            let models = match preset.serves {
                ServedModels::Own => "its own",
                ServedModels::Any => "of several vendors",
                ServedModels::Weights => "downloaded weights",
            };
            let key = preset
                .key_variable
                .map_or_else(|| "–".to_owned(), |name| format!("`{name}`"));
            let row = format!(
                "| `{}` | {wire} | {address} | {key} | {models} |",
                preset.name
            );
            assert!(page.contains(&row), "docs/models.md has no row {row}");
        }
        assert_eq!(
            page.matches("\n| `").count(),
            PRESETS.len() + 5 + 5,
            "rows of presets, of wires, and of options with their head"
        );
    }
}
