//! The digest of what a person is asked about: the same request has the same digest, whatever the
//! order of the keys in its arguments.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Returns the SHA-256 hash of a call and of its tool's description, in hexadecimal.
pub(super) fn of_call(tool: &str, description: &str, args: &str) -> String {
    let mut hash = Sha256::new();
    text(tool, &mut hash);
    text(description, &mut hash);
    match serde_json::from_str(args) {
        Ok(args) => value(&args, &mut hash),
        Err(_) => text(args, &mut hash),
    }
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes a text with its length, so that no two lists of texts give the same bytes.
fn text(text: &str, hash: &mut Sha256) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

fn value(of: &Value, hash: &mut Sha256) {
    match of {
        Value::Null | Value::Bool(_) | Value::Number(_) => text(&of.to_string(), hash),
        Value::String(string) => {
            hash.update(b"\"");
            text(string, hash);
        }
        Value::Array(items) => {
            hash.update(b"[");
            text(&items.len().to_string(), hash);
            items.iter().for_each(|item| value(item, hash));
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            hash.update(b"{");
            text(&sorted.len().to_string(), hash);
            for (key, item) in sorted {
                text(key, hash);
                value(item, hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_keys_does_not_matter_and_everything_else_does() {
        let digest = of_call(
            "edit",
            "Edits a file.",
            r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
        );
        assert_eq!(digest.len(), 64);
        assert_eq!(
            digest,
            of_call(
                "edit",
                "Edits a file.",
                r#"{ "b": {"d":"x","c":[1,2]}, "a": 1 }"#
            )
        );
        for (tool, description, args) in [
            (
                "edits",
                "Edits a file.",
                r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file!",
                r#"{"a":1,"b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":2,"b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":1,"b":{"c":[2,1],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":"1","b":{"c":[1,2],"d":"x"}}"#,
            ),
            (
                "edit",
                "Edits a file.",
                r#"{"a":1,"b":{"c":[1,2],"d":"x"},"e":null}"#,
            ),
            ("edit", "Edits a file.", "{broken"),
        ] {
            assert_ne!(digest, of_call(tool, description, args), "{tool} {args}");
        }
    }
}
