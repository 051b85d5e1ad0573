//! The members of an item that go back with it and are not text. The signature of the item's part
//! holds them as JSON.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::llm::{seal, wire::Target};

/// Of a reasoning item.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thought {
    pub id: String,
    /// Servers that show all of their reasoning give none, and want the text back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
}

/// Of a message: whether it was said on the way or is the answer.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spoken {
    pub phase: String,
}

/// The name under which this wire's tokens are kept. An endpoint may speak chat completions to
/// another of its models, and those must not be given them.
pub fn label(target: &Target) -> String {
    format!("{}/responses", target.label)
}

pub fn sealed<T: Serialize>(label: &str, of: &T) -> Option<String> {
    Some(seal::seal(label, &serde_json::to_string(of).ok()?))
}

pub fn opened<T: DeserializeOwned>(label: &str, sealed: Option<&str>) -> Option<T> {
    serde_json::from_str(seal::open(label, sealed?)?).ok()
}
