//! The keys of the HTTP front.

use planck_common::id::is_id;
use serde::{Deserialize, Serialize};

use super::{InvalidValue, Setting, plain, references::held as held_by, shown_list};
use crate::config::values::{Raw, ValueContext};

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

impl Setting for KeyChoice {
    fn kind() -> String {
        "a list of keys, in the environment as JSON or as `file:PATH` of a file with JSON; or `none`"
            .into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        if plain::text(raw) == Some(OFF) {
            return Ok(Self::Off);
        }
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

fn refused(what: &str) -> InvalidValue {
    InvalidValue {
        what: what.into(),
        remedy: "write keys like { name = \"ann\", hash = \"…\", role = \"use\" }, which `planck serve key NAME` prints, or `none`"
            .into(),
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
