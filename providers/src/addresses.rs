//! Decides which addresses agents and clients may name for a model. This module does no I/O.
//!
//! A `base_url` in `spawn_agent`, `change_model` or `sessions.start` makes this node send a request
//! whose address and text come from agents or clients. The address could be that of an internal
//! service or of an unknown server, so only addresses that the configuration allows are accepted.

use reqwest::Url;

/// The addresses that the configuration allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses(Vec<Url>);

impl Addresses {
    /// Parses the configured addresses. An address that cannot be parsed is skipped, so it allows
    /// nothing.
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        Self(urls.into_iter().filter_map(parse).collect())
    }

    /// Returns whether `url` is one of the allowed addresses, or has the same origin as one of them
    /// and a path below its path. Refuses a URL with a user name, a query, a fragment or an
    /// ambiguous path.
    pub fn allow(&self, url: &str) -> bool {
        parse(url)
            .filter(is_plain)
            .is_some_and(|url| self.0.iter().any(|known| is_within(&url, known)))
    }
}

/// Parses an address as [`super::registry`] does: an address without a scheme is plain HTTP.
/// Returns `None` for an address with white space or control characters, because the URL parser
/// removes some of them, and the parsed address would differ from the text.
fn parse(url: &str) -> Option<Url> {
    if url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return None;
    }
    let url = if url.contains("://") {
        url.to_owned()
    } else {
        format!("http://{url}")
    };
    Url::parse(&url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

/// Returns whether a URL has no parts that a server could interpret differently than this module. A
/// query or a user name may mean something to the server, and an encoded separator starts a new
/// path segment on some servers and is part of a name on others. The parser has already resolved
/// `..`.
fn is_plain(url: &Url) -> bool {
    let path = url.path().to_ascii_lowercase();
    let hides = ["%2f", "%5c", "%2e", "%00", "//", ";"]
        .iter()
        .any(|part| path.contains(part));
    url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && !hides
}

fn is_within(url: &Url, known: &Url) -> bool {
    let folder = known.path().trim_end_matches('/');
    let below = url
        .path()
        .strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    url.origin() == known.origin() && below
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::below;

    fn addresses() -> Addresses {
        Addresses::new([
            "https://proxy.example/v1/",
            "http://127.0.0.1:8080",
            "10.0.0.7:11434/llm",
            "no url at all",
            "ftp://x",
        ])
    }

    #[test]
    fn configured_origins_and_paths_are_allowed() {
        for url in [
            "https://proxy.example/v1",
            "https://PROXY.example:443/v1/team",
            "http://127.0.0.1:8080/any/path",
            "127.0.0.1:8080",
            "http://10.0.0.7:11434/llm",
        ] {
            assert!(addresses().allow(url), "{url}");
        }
    }

    #[test]
    fn look_alikes_are_refused() {
        for url in [
            "http://proxy.example/v1",
            "https://proxy.example/v10",
            "https://proxy.example/",
            "https://proxy.example/v1/../admin",
            "https://proxy.example/v1/%2e%2e/admin",
            "https://proxy.example/v1/..%2fadmin",
            "https://proxy.example/v1\\..\\admin",
            "https://proxy.example/v1?x=",
            "https://proxy.example/v1#",
            "https://proxy.example/v1 ",
            "https://proxy.example/v1\t/x",
            "https://proxy.example@evil.example/v1",
            "https://user@proxy.example/v1",
            "https://user:pass@proxy.example/v1",
            "https://proxy.example.evil.example/v1",
            "https://proxy.example:444/v1",
            "http://127.0.0.1:8081",
            "http://127.0.0.1",
            "http://169.254.169.254/latest",
            "file:///etc/passwd",
            "https://proxy.example//v1/x",
            "",
        ] {
            assert!(!addresses().allow(url), "{url}");
        }
        assert!(!Addresses::default().allow("http://127.0.0.1:8080"));
    }

    proptest! {
        #[test]
        fn what_is_allowed_goes_to_a_configured_origin(tail in "[a-zA-Z0-9/.:@?#%\\\\_ -]{0,40}", wire in "/v1/[a-z]{1,8}") {
            for start in ["https://proxy.example/v1", "https://proxy.example", "http://127.0.0.1:8080", ""] {
                let url = format!("{start}{tail}");
                if addresses().allow(&url) {
                    let sent = below(&parse(&url).unwrap(), "", &wire);
                    prop_assert!(sent.path().ends_with(&wire), "{url} -> {sent}");
                    prop_assert!(addresses().0.iter().any(|known| is_within(&sent, known)), "{url} -> {sent}");
                }
            }
        }
    }
}
