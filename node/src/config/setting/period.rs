//! Lengths of time in the configuration.

use planck_common::period::Period;

use super::{InvalidValue, Setting, plain::text};
use crate::config::values::{Raw, ValueContext};

impl Setting for Period {
    fn kind() -> String {
        "a time like 500ms, 30s, 10m, 2h or 30d".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        text(raw)
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}
