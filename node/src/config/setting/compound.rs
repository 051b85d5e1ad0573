//! Settings with a form of their own: what requests to a provider need, the keys of the HTTP front, and
//! the rules about tool calls.

use std::{fs, path::PathBuf};

use planck_common::{id::is_id, permission::Rule};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{InvalidValue, Setting, address::held, text};
use crate::config::{
    Secret,
    values::{Raw, ValueContext},
};
use planck_providers::{ModelTable, Proxy, check_authorities};
use planck_toolbox::is_of_loader;

/// Returns a list as JSON for users, or an empty text if the list is empty.
fn shown_list<T: Serialize>(list: &[T]) -> String {
    match list.is_empty() {
        true => String::new(),
        false => planck_common::event::json(&list),
    }
}

/// The value of an HTTP header. It is never shown, because many headers contain keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderText {
    pub value: Secret,
    /// The text, or the reference from which the value can be read again.
    pub source: Secret,
}

impl Default for HeaderText {
    fn default() -> Self {
        Self {
            value: Secret::new(""),
            source: Secret::new(""),
        }
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
        let value = if refers {
            Secret::parse(raw, world)?
        } else {
            Secret::new(written)
        };
        if value
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
        let source = match written.strip_prefix("file:") {
            Some(path) => {
                let path = PathBuf::parse(&Raw::Text(path.into()), world)?;
                Secret::new(format!("file:{}", path.display()))
            }
            None => Secret::new(written),
        };
        Ok(Self { value, source })
    }

    fn show(&self) -> Option<String> {
        Some("(set)".into())
    }
}

/// A variable of an MCP server: one of the node, or one with a value of its own, which is never shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVariable {
    pub name: String,
    pub value: Option<Secret>,
}

impl ServerVariable {
    pub fn of(written: &str) -> Self {
        let (name, value) = match written.split_once('=') {
            Some((name, value)) => (name, Some(Secret::new(value))),
            None => (written, None),
        };
        Self {
            name: name.into(),
            value,
        }
    }
}

impl Setting for ServerVariable {
    fn kind() -> String {
        "`NAME` or `NAME=value`".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let written = text(raw).ok_or_else(|| InvalidValue::kind::<Self>(raw))?;
        let variable = Self::of(written);
        let name = &variable.name;
        let what = if name.is_empty() || written.contains('\0') {
            format!("`{}` names no variable", name.escape_debug())
        } else if is_of_loader(name) {
            format!("`{name}` could run code outside of the sandbox")
        } else {
            return Ok(variable);
        };
        let remedy = "write the name of another variable, or take it out".into();
        Err(InvalidValue { what, remedy })
    }

    fn show(&self) -> Option<String> {
        let value = self.value.as_ref().map_or("", |_| "=(set)");
        Some(format!("{}{value}", self.name))
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

/// The maximum size of a table in bytes. The built-in table has 6 KB.
const MOST_BYTES: u64 = 1 << 20;

/// A valid file of models, together with its contents.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelsFile {
    path: PathBuf,
    pub table: ModelTable,
}

impl Setting for ModelsFile {
    fn kind() -> String {
        "the path of a file of models".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let path = PathBuf::parse(raw, world)?;
        let refused = |what: String| InvalidValue {
            what: format!("{}: {what}", path.display()),
            remedy: "name a file of the form that docs/models.md describes, or take the key out"
                .into(),
        };
        let status = fs::metadata(&path).map_err(|error| refused(error.to_string()))?;
        if !status.is_file() || status.len() > MOST_BYTES {
            return Err(refused(format!(
                "it is no regular file of at most {MOST_BYTES} bytes"
            )));
        }
        let text = fs::read_to_string(&path).map_err(|error| refused(error.to_string()))?;
        let table = text
            .parse()
            .map_err(|error: planck_providers::BadTable| refused(error.to_string()))?;
        Ok(Self { path, table })
    }

    fn show(&self) -> Option<String> {
        Some(self.path.display().to_string())
    }
}

/// Parses a list of tables, which is JSON in an environment variable because its entries may contain
/// commas. `remedy` says how an entry is written.
fn entries<T: DeserializeOwned, S: Setting>(
    raw: &Raw,
    remedy: &str,
) -> Result<Vec<T>, InvalidValue> {
    match raw {
        Raw::Toml(toml::Value::Array(items)) => {
            let read = |(at, item): (usize, &toml::Value)| {
                let read = item.clone().try_into();
                read.map_err(|error: toml::de::Error| {
                    refused(&format!("[{at}]: {}", error.message()), remedy)
                })
            };
            items.iter().enumerate().map(read).collect()
        }
        Raw::Toml(_) => Err(InvalidValue::kind::<S>(raw)),
        Raw::Text(text) => {
            serde_json::from_str(text).map_err(|error| refused(&error.to_string(), remedy))
        }
    }
}

fn refused(what: &str, remedy: &str) -> InvalidValue {
    InvalidValue {
        what: what.into(),
        remedy: remedy.into(),
    }
}

/// A list of rules about tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleList(pub Vec<Rule>);

const RULES: &str =
    "write rules like { tool = \"bash\", command = \"git push *\", action = \"ask\" }";

impl Setting for RuleList {
    fn kind() -> String {
        "a list of rules, in the environment as JSON".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        entries::<_, Self>(raw, RULES).map(Self)
    }

    fn show(&self) -> Option<String> {
        Some(shown_list(&self.0))
    }
}

/// A key as it is configured. The front parses `hash` and `role`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    pub name: String,
    pub hash: String,
    pub role: String,
}

/// The keys that the configuration gives to the front.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum KeyChoice {
    /// One that it makes itself. This is the empty list.
    #[default]
    Own,
    /// None.
    Off,
    /// These. In an environment variable the list is written as JSON.
    Listed(Vec<KeyEntry>),
}

const OFF: &str = "none";

const KEYS: &str = "write keys like { name = \"ann\", hash = \"…\", role = \"use\" }, which `planck serve key NAME` prints, or `none`";

impl Setting for KeyChoice {
    fn kind() -> String {
        "a list of keys, in the environment as JSON or as `file:PATH` of a file with JSON; or `none`"
            .into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        if text(raw) == Some(OFF) {
            return Ok(Self::Off);
        }
        let path = match raw {
            Raw::Text(text) => text.strip_prefix("file:"),
            Raw::Toml(_) => None,
        };
        let keys: Vec<KeyEntry> = match path {
            Some(path) => entries::<_, Self>(&Raw::Text(held(path, world)?.1), KEYS)?,
            None => entries::<_, Self>(raw, KEYS)?,
        };
        for (at, key) in keys.iter().enumerate() {
            if !is_id(&key.name) {
                let what = format!("[{at}]: `{}` is no name", key.name);
                return Err(refused(&what, KEYS));
            }
            if keys.iter().take(at).any(|other| other.name == key.name) {
                let what = format!("two keys have the name `{}`", key.name);
                return Err(refused(&what, KEYS));
            }
        }
        Ok(match keys.is_empty() {
            true => Self::Own,
            false => Self::Listed(keys),
        })
    }

    fn show(&self) -> Option<String> {
        Some(match self {
            Self::Own => String::new(),
            Self::Off => OFF.into(),
            Self::Listed(keys) => shown_list(keys),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<KeyChoice, InvalidValue> {
        KeyChoice::parse(&Raw::Text(text.into()), &ValueContext::default())
    }

    fn count(text: &str) -> usize {
        match read(text).unwrap() {
            KeyChoice::Listed(keys) => keys.len(),
            other @ (KeyChoice::Own | KeyChoice::Off) => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn front_without_a_key_is_asked_for_by_its_word_only() {
        let in_file = Raw::Toml(toml::Value::String("none".into()));
        let in_file = KeyChoice::parse(&in_file, &ValueContext::default());
        assert_eq!(in_file, Ok(KeyChoice::Off));
        assert_eq!(read("none"), Ok(KeyChoice::Off));
        assert_eq!(KeyChoice::Off.show().unwrap(), "none");
        assert_eq!(read("[]"), Ok(KeyChoice::Own));
        for wrong in ["None", "off", "\"none\"", "[\"none\"]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_have_different_names() {
        let key = r#"{"name":"ann","hash":"00","role":"use"}"#;
        assert_eq!(count(&format!("[{key}]")), 1);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("[{key}]\n")).unwrap();
        assert_eq!(count(&format!("file:{}", file.path().display())), 1);
        assert!(read("file:/nowhere").unwrap_err().what.contains("/nowhere"));
        let twice = read(&format!("[{key},{key}]")).unwrap_err();
        assert_eq!(twice.what, "two keys have the name `ann`");
        for wrong in [
            "",
            "{}",
            r#"[{"name":"a b","hash":"","role":""}]"#,
            r#"[{"name":"a"}]"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
