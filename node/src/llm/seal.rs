//! A provider's opaque tokens carry its name while they are with us, so that another provider's are
//! never sent to it after a change of model.

/// The token as it is kept.
pub fn seal(provider: &str, token: &str) -> String {
    format!("{provider}:{token}")
}

/// The token as the provider gave it, if it was this one.
pub fn open<'a>(provider: &str, sealed: &'a str) -> Option<&'a str> {
    sealed.strip_prefix(provider)?.strip_prefix(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_provider_gets_a_token_back() {
        let sealed = seal("google", "a:b");
        assert_eq!(open("google", &sealed), Some("a:b"));
        assert_eq!(open("anthropic", &sealed), None);
        assert_eq!(open("goo", &sealed), None);
    }
}
