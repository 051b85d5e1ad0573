//! The members of an item that are sent back with it and are not text. They are stored as JSON in
//! the signature of the item's part.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::llm::{seal, wire::WireTarget};

/// The members of a reasoning item.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedReasoning {
    pub id: String,
    /// Absent from servers that show all of their reasoning; they require the text back instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// The members of a message: whether it is commentary on the way or the answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessagePhase {
    pub phase: String,
}

/// Returns the label under which tokens of this wire format are stored. It differs from that of
/// chat completions, because an endpoint may speak those with another of its models, which must not
/// receive these tokens.
pub fn label(target: &WireTarget) -> String {
    format!("{}/responses", target.label)
}

pub fn sealed<T: Serialize>(label: &str, of: &T) -> Option<String> {
    Some(seal::seal(label, &serde_json::to_string(of).ok()?))
}

pub fn opened<T: DeserializeOwned>(label: &str, sealed: Option<&str>) -> Option<T> {
    serde_json::from_str(seal::open(label, sealed?)?).ok()
}
