//! `[sidecars]`

use crate::config::setting::{Named, Period};

section! {
    /// Who may offer tools and compactors over NATS.
    Sidecars {
        /// Names that may; all may unless said.
        allow: Option<Vec<String>> = None;
        /// How long a sidecar's tool may be silent.
        tool_timeout: Period = Period::seconds(300);
        /// A plain NATS subject as a tool, by the tool's name.
        tools: Named<PlainTool> = Named::default();
    }
}

section! {
    /// A subject that answers requests.
    PlainTool {
        /// The subject that is asked.
        subject: String = String::new();
        /// What the model is told of it.
        description: String = String::new();
        /// JSON Schema of the arguments, as text.
        parameters: String = r#"{"type":"object"}"#.into();
        /// What a second run would do: pure, idempotent or mutating.
        effect: String = "mutating".into();
        /// How long it may be silent; `sidecars.tool_timeout` unless said.
        timeout: Option<Period> = None;
    }
}
