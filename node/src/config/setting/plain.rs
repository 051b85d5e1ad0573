//! Values that are texts, numbers, booleans, paths or lists.

use std::path::PathBuf;

use super::{InvalidValue, Setting};
use crate::config::values::{Raw, ValueContext};

/// Returns the text of a value, or `None` if the value is not a text.
pub(super) fn text(raw: &Raw) -> Option<&str> {
    match raw {
        Raw::Toml(value) => value.as_str(),
        Raw::Text(text) => Some(text),
    }
}

impl Setting for String {
    fn kind() -> String {
        "a text".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        text(raw)
            .map(Into::into)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Setting for bool {
    fn kind() -> String {
        "true or false".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = match raw {
            Raw::Toml(value) => value.as_bool(),
            Raw::Text(text) => match text.as_str() {
                "true" | "1" | "yes" => Some(true),
                "false" | "0" | "no" => Some(false),
                _ => None,
            },
        };
        found.ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

macro_rules! whole {
    ($($type:ty),+) => {$(
        impl Setting for $type {
            fn kind() -> String {
                "a whole number".into()
            }

            fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
                let found = match raw {
                    Raw::Toml(value) => value.as_integer().and_then(|number| number.try_into().ok()),
                    Raw::Text(text) => text.replace('_', "").parse().ok(),
                };
                found.ok_or_else(|| InvalidValue::kind::<Self>(raw))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+};
}

whole!(u32, u64, usize);

impl Setting for f64 {
    fn kind() -> String {
        "a number".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = match raw {
            Raw::Toml(toml::Value::Integer(number)) => number.to_string().parse().ok(),
            Raw::Toml(value) => value.as_float(),
            Raw::Text(text) => text.parse().ok(),
        };
        found
            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for PathBuf {
    fn kind() -> String {
        "a path".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let text = text(raw)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))?;
        Ok(Self::from(text).at_home(world))
    }

    fn show(&self) -> Option<String> {
        Some(self.display().to_string())
    }

    fn at_home(self, world: &ValueContext) -> Self {
        match (self.strip_prefix("~"), &world.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            (Ok(_), None) | (Err(_), _) => self,
        }
    }
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> String {
        T::kind()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        T::parse(raw, world).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Setting::show)
    }

    fn at_home(self, world: &ValueContext) -> Self {
        self.map(|value| value.at_home(world))
    }
}

/// In an environment variable, a flag or a setting of the embedding program, commas separate the
/// items of a list.
impl<T: Setting> Setting for Vec<T> {
    fn kind() -> String {
        format!("a list, each {}", T::kind())
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        match raw {
            Raw::Toml(toml::Value::Array(items)) => items
                .iter()
                .map(|item| T::parse(&Raw::Toml(item.clone()), world))
                .collect(),
            Raw::Toml(_) => Err(InvalidValue::kind::<Self>(raw)),
            Raw::Text(text) => {
                let words = text
                    .split(',')
                    .map(str::trim)
                    .filter(|word| !word.is_empty());
                words
                    .map(|word| T::parse(&Raw::Text(word.into()), world))
                    .collect()
            }
        }
    }

    fn show(&self) -> Option<String> {
        Some(
            self.iter()
                .filter_map(Setting::show)
                .collect::<Vec<_>>()
                .join(", "),
        )
    }

    fn at_home(self, world: &ValueContext) -> Self {
        self.into_iter().map(|value| value.at_home(world)).collect()
    }
}
