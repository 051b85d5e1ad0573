//! The fields of an item that are sent back with it and are not text. They are stored as JSON in
//! the signature of the item's part.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{seal, wire::WireTarget};

/// The fields of a reasoning item.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedReasoning {
    pub id: String,
    /// The encrypted reasoning. Servers that show all of their reasoning do not send it, and
    /// require the text back instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// The field of a message that tells commentary from the final answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagePhase {
    pub phase: String,
}

/// Returns the label that is stored with the signatures of this wire format. It differs from the
/// label for chat completions: an endpoint may use chat completions for another of its models, and
/// that model must not receive these signatures.
pub fn label(target: &WireTarget) -> String {
    format!("{}/responses", target.label)
}

pub fn sealed<T: Serialize>(label: &str, of: &T) -> Option<String> {
    Some(seal::seal(label, &serde_json::to_string(of).ok()?))
}

pub fn opened<T: DeserializeOwned>(label: &str, sealed: Option<&str>) -> Option<T> {
    serde_json::from_str(seal::open(label, sealed?)?).ok()
}
