//! A value that is never shown: a key or a password.

use std::fmt;

/// A key or a password. It has no `Display`, and its `Debug` says nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the header or handshake that needs it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A text without it: some providers repeat a key in their errors.
    pub fn scrub(&self, text: String) -> String {
        if self.0.len() >= 8 && text.contains(&self.0) { text.replace(&self.0, "***") } else { text }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
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
}
