//! The keys of the HTTP front.

use planck_common::id::is_id;
use serde::{Deserialize, Serialize};

use super::{InvalidValue, Setting, references::held as held_by, shown_list};
use crate::config::values::{Raw, ValueContext};

/// A key as it is configured. The front parses `hash` and `role`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    pub name: String,
    pub hash: String,
    pub role: String,
}

/// A list of keys. In an environment variable it is written as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyList(pub Vec<KeyEntry>);

impl Setting for KeyList {
    fn kind() -> String {
        "a list of keys, in the environment as JSON or as `file:PATH` of a file with JSON".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let keys: Vec<KeyEntry> = match raw {
            Raw::Toml(value @ toml::Value::Array(_)) => value
                .clone()
                .try_into()
                .map_err(|error: toml::de::Error| refused(error.message()))?,
            Raw::Toml(_) => return Err(InvalidValue::kind::<Self>(raw)),
            Raw::Text(text) => {
                let held = text.strip_prefix("file:");
                let held = held.map(|path| held_by(path, world)).transpose()?;
                let text = held.as_ref().map_or(text, |(_, text)| text);
                serde_json::from_str(text).map_err(|error| refused(&error.to_string()))?
            }
        };
        for (at, key) in keys.iter().enumerate() {
            if !is_id(&key.name) {
                return Err(refused(&format!("[{at}]: `{}` is no name", key.name)));
            }
            if keys.iter().take(at).any(|other| other.name == key.name) {
                return Err(refused(&format!("two keys have the name `{}`", key.name)));
            }
        }
        Ok(Self(keys))
    }

    fn show(&self) -> Option<String> {
        Some(shown_list(&self.0))
    }
}

fn refused(what: &str) -> InvalidValue {
    InvalidValue {
        what: what.into(),
        remedy: "write keys like { name = \"ann\", hash = \"…\", role = \"use\" }, which `planck serve key NAME` prints"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<KeyList, InvalidValue> {
        KeyList::parse(&Raw::Text(text.into()), &ValueContext::default())
    }

    #[test]
    fn keys_have_different_names() {
        let key = r#"{"name":"ann","hash":"00","role":"use"}"#;
        assert_eq!(read(&format!("[{key}]")).unwrap().0.len(), 1);
        assert_eq!(read("[]"), Ok(KeyList::default()));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("[{key}]\n")).unwrap();
        let held = read(&format!("file:{}", file.path().display())).unwrap();
        assert_eq!(held.0.len(), 1);
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
