//! Settings for requests to a provider: headers, proxies and certificate authorities.

use std::path::PathBuf;

use super::{InvalidValue, Setting, plain::text};
use crate::config::{
    Secret,
    values::{Raw, ValueContext},
};
use planck_providers::{Proxy, WireKind, check_authorities};

/// The value of an HTTP header. It is never shown, because many headers contain keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderText(pub Secret);

impl Default for HeaderText {
    fn default() -> Self {
        Self(Secret::new(""))
    }
}

impl Setting for HeaderText {
    fn kind() -> String {
        "text, `env:NAME` or `file:PATH`".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let written = text(raw).ok_or_else(|| InvalidValue::kind::<Self>(raw))?;
        let refers = ["env:", "file:"]
            .iter()
            .any(|start| written.starts_with(start));
        let text = if refers {
            Secret::parse(raw, world)?
        } else {
            Secret::new(written)
        };
        if text
            .reveal()
            .bytes()
            .any(|byte| byte < b' ' || byte == 0x7f)
        {
            let what = "a header cannot hold control characters".into();
            return Err(InvalidValue {
                what,
                remedy: "write it on one line".into(),
            });
        }
        Ok(Self(text))
    }

    fn show(&self) -> Option<String> {
        Some("(set)".into())
    }
}

/// The proxies of one provider, and whether the setting is `env` instead of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRule {
    from_environment: bool,
    pub proxy: Proxy,
}

impl Setting for ProxyRule {
    fn kind() -> String {
        "an address like http://host:port, or `env`".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let written = text(raw).ok_or_else(|| InvalidValue::kind::<Self>(raw))?;
        if written == "env" {
            return Ok(Self {
                from_environment: true,
                proxy: from_environment(world)?,
            });
        }
        let url = Secret::new(written);
        check(&url, || InvalidValue::kind::<Self>(raw))?;
        Ok(Self {
            from_environment: false,
            proxy: Proxy {
                https: Some(url.clone()),
                http: Some(url),
                except: String::new(),
            },
        })
    }

    fn show(&self) -> Option<String> {
        Some(if self.from_environment {
            "env".into()
        } else {
            "(set)".into()
        })
    }
}

fn from_environment(world: &ValueContext) -> Result<Proxy, InvalidValue> {
    let find = |name: &str| {
        let found = [name.to_owned(), name.to_lowercase()]
            .into_iter()
            .find_map(|name| world.environment.get(&name));
        found.filter(|text| !text.is_empty()).cloned()
    };
    let read = |name: &str| {
        let Some(text) = find(name) else {
            return Ok(None);
        };
        let url = Secret::new(if text.contains("://") {
            text
        } else {
            format!("http://{text}")
        });
        check(&url, || InvalidValue {
            what: format!("{name} is not the address of a proxy"),
            remedy: "correct it, or unset it".into(),
        })?;
        Ok(Some(url))
    };
    Ok(Proxy {
        https: read("HTTPS_PROXY")?,
        http: read("HTTP_PROXY")?,
        except: find("NO_PROXY").unwrap_or_default(),
    })
}

fn check(url: &Secret, wrong: impl Fn() -> InvalidValue) -> Result<(), InvalidValue> {
    let parsed = reqwest::Url::parse(url.reveal()).map_err(|_| wrong())?;
    let fits = matches!(parsed.scheme(), "http" | "https") && parsed.has_host();
    if fits { Ok(()) } else { Err(wrong()) }
}

/// The path of a valid file of certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorities(pub PathBuf);

impl Setting for Authorities {
    fn kind() -> String {
        "the path of a PEM file".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let path = PathBuf::parse(raw, world)?;
        match check_authorities(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(InvalidValue {
                what: error.to_string(),
                remedy: "name a file with certificates in PEM".into(),
            }),
        }
    }

    fn show(&self) -> Option<String> {
        Some(self.0.display().to_string())
    }
}

/// The wire formats by name. `openai` is the older name of `chat`.
const WIRES: [(&str, WireKind); 6] = [
    ("chat", WireKind::Chat),
    ("responses", WireKind::Responses),
    ("anthropic", WireKind::Anthropic),
    ("google", WireKind::Google),
    ("ollama", WireKind::Ollama),
    ("openai", WireKind::Chat),
];

impl Setting for WireKind {
    fn kind() -> String {
        "chat, responses, anthropic, google or ollama".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = text(raw).and_then(|text| WIRES.iter().find(|(name, _)| *name == text));
        found
            .map(|(_, wire)| *wire)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        WIRES
            .iter()
            .find(|(_, wire)| wire == self)
            .map(|(name, _)| (*name).to_owned())
    }
}
