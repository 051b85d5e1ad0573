//! The section `[sidecars]`.

use crate::config::setting::{NamedSettings, Period};

section! {
    /// The sidecars that may offer tools and compactors over NATS.
    Sidecars {
        /// Names of the sidecars that may offer tools and compactors. Unset: all of them.
        allow: Option<Vec<String>> = None;
        /// How long a sidecar's tool may be silent.
        tool_timeout: Period = Period::seconds(300);
        /// A plain NATS subject as a tool, by the tool's name.
        tools: NamedSettings<PlainTool> = NamedSettings::default();
    }
}

section! {
    /// A NATS subject that answers requests.
    PlainTool {
        /// The subject that requests are sent to.
        subject: String = String::new();
        /// The description of the tool for the model.
        description: String = String::new();
        /// JSON Schema of the arguments, as text.
        parameters: String = r#"{"type":"object"}"#.into();
        /// The effect of a second run: pure, idempotent or mutating.
        effect: String = "mutating".into();
        /// How long it may be silent. Unset: `sidecars.tool_timeout`.
        timeout: Option<Period> = None;
    }
}
