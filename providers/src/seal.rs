//! Labels opaque tokens, such as signatures and encrypted reasoning, with the endpoint that issued
//! them, so that after a change of model they are not sent to another endpoint.

/// Returns the token with its label, as it is stored. `provider` is the label of the endpoint.
pub fn seal(provider: &str, token: &str) -> String {
    format!("{provider}:{token}")
}

/// Returns the token without its label, or `None` if it belongs to another endpoint.
pub fn open<'a>(provider: &str, sealed: &'a str) -> Option<&'a str> {
    sealed.strip_prefix(provider)?.strip_prefix(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_opened_only_for_its_own_provider() {
        let sealed = seal("google", "a:b");
        assert_eq!(open("google", &sealed), Some("a:b"));
        assert_eq!(open("anthropic", &sealed), None);
        assert_eq!(open("goo", &sealed), None);
    }
}
