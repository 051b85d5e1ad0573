//! Keys and passwords, which must never appear in any output.

use std::fmt;

use base64::{
    Engine as _,
    engine::{
        GeneralPurpose,
        general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
    },
};

/// The minimum length in bytes of a secret that is removed from texts. A shorter one would also
/// match unrelated text.
const SHORTEST: usize = 8;

/// A key or a password. It does not implement `Display`, and its `Debug` output does not contain
/// the value.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the value, for the header or handshake that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Replaces the secret in a text with `***`, because errors of some providers and proxies
    /// repeat the key. The function recognises the key itself and its encodings in base64 (both
    /// alphabets, at any offset in a longer text), hexadecimal, percent-encoding and JSON. The
    /// function does not recognise a key that is split by spaces, reversed, shortened or encoded
    /// twice, or that has fewer than 8 bytes.
    pub fn scrub(&self, text: String) -> String {
        if self.0.len() < SHORTEST {
            return text;
        }
        self.forms().iter().fold(text, |text, form| {
            if text.contains(form) {
                text.replace(form, "***")
            } else {
                text
            }
        })
    }

    fn forms(&self) -> Vec<String> {
        let bytes = self.0.as_bytes();
        let lower: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let percent = |form: fn(u8) -> String| {
            bytes
                .iter()
                .map(|byte| percent_encoded(*byte, form))
                .collect::<String>()
        };
        let json = serde_json::Value::from(self.0.as_str()).to_string();
        let mut forms = vec![
            self.0.clone(),
            percent(|byte| format!("%{byte:02X}")),
            percent(|byte| format!("%{byte:02x}")),
        ];
        forms.extend([
            json.trim_matches('"').to_owned(),
            lower.to_uppercase(),
            lower,
        ]);
        forms.extend((0..3).flat_map(|before| {
            [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD].map(|engine| within(engine, before, bytes))
        }));
        forms
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

fn percent_encoded(byte: u8, form: fn(u8) -> String) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        other => form(other),
    }
}

/// Returns those base64 characters that depend only on these bytes when they follow `before` other
/// bytes.
fn within(engine: &GeneralPurpose, before: usize, bytes: &[u8]) -> String {
    let padded: Vec<u8> = std::iter::repeat_n(0, before)
        .chain(bytes.iter().copied())
        .collect();
    let (first, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
    engine
        .encode(&padded)
        .get(first..end)
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::new("sk-123456789");
        assert_eq!(format!("{:?}", Some(&secret)), "Some(Secret(***))");
        assert_eq!(secret.scrub("bad key sk-123456789.".into()), "bad key ***.");
    }

    #[test]
    fn encoded_forms_are_found_too() {
        let secret = Secret::new("sk-\"12/34+56789\u{fc}");
        for before in ["", "x", "Bearer ", "user:"] {
            for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
                let encoded = engine.encode(format!("{before}{} and more", secret.reveal()));
                assert!(
                    secret.scrub(encoded.clone()).contains("***"),
                    "{before}: {encoded}"
                );
            }
        }
        for text in [
            "sk-%2212%2F34%2B56789%C3%BC",
            "sk-%2212%2f34%2b56789%c3%bc",
            "sk-\\\"12/34+56789\u{fc}",
        ] {
            assert_eq!(secret.scrub(format!("<{text}>")), "<***>", "{text}");
        }
        let hex: String = secret
            .reveal()
            .bytes()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(secret.scrub(hex.to_uppercase() + &hex), "******");
        assert_eq!(secret.scrub("nothing of it".into()), "nothing of it");
    }
}
