//! Reads the model options (`opts`) of a member. Options that several providers share become typed
//! fields. The encoders add all other options to the request.

use serde_json::{Map, Value};

/// The sampling options and limits of a member's requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Opts {
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub max_output_tokens: Option<u64>,
    pub thinking_budget: Option<u64>,
    pub stop: Vec<String>,
    /// How long the provider caches the prompt. Only the encoder of Anthropic's wire format uses
    /// this option.
    pub cache: Cache,
    /// All other options. The encoder of each wire format adds them to the request.
    pub rest: Map<String, Value>,
}

/// How long the provider caches a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    #[default]
    FiveMinutes,
    OneHour,
    Off,
}

/// The fields of a request that a member's options may not set, because Planck sets them.
const OURS: &[&str] = &[
    "model",
    "messages",
    "contents",
    "input",
    "system",
    "systemInstruction",
    "instructions",
    "tools",
    "stream",
    "stream_options",
    "store",
    "include",
    "conversation",
    "previous_response_id",
];

impl Opts {
    /// Reads the known options. An option that is listed in [`OURS`], or that must be a number and
    /// is none, is dropped with a warning.
    pub fn read(mut opts: Map<String, Value>) -> Self {
        let mut take = |name: &str| opts.remove(name).filter(|value| !value.is_null());
        let read = Self {
            temperature: number(take("temperature"), "temperature", Value::as_f64),
            top_p: number(take("top_p"), "top_p", Value::as_f64),
            max_output_tokens: number(
                take("max_output_tokens"),
                "max_output_tokens",
                Value::as_u64,
            ),
            thinking_budget: number(take("thinking_budget"), "thinking_budget", Value::as_u64),
            stop: take("stop").map(strings).unwrap_or_default(),
            cache: take("cache").map(cache).unwrap_or_default(),
            rest: Map::new(),
        };
        opts.retain(|name, _| {
            let kept = !OURS.contains(&name.as_str());
            if !kept {
                tracing::warn!(
                    opt = name,
                    "left out an option of an agent: it would overwrite the request"
                );
            }
            kept
        });
        Self { rest: opts, ..read }
    }
}

fn number<T>(value: Option<Value>, name: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
    let value = value?;
    let number = read(&value);
    if number.is_none() {
        tracing::warn!(opt = name, %value, "left out an option of an agent: its value is not a number in range");
    }
    number
}

fn cache(value: Value) -> Cache {
    match value.as_str() {
        Some("5m") => Cache::FiveMinutes,
        Some("1h") => Cache::OneHour,
        Some("off") => Cache::Off,
        Some(_) | None => {
            tracing::warn!(opt = "cache", %value, "an option of an agent must be 5m, 1h or off; using 5m");
            Cache::FiveMinutes
        }
    }
}

fn strings(value: Value) -> Vec<String> {
    match value {
        Value::String(one) => vec![one],
        Value::Array(many) => many
            .into_iter()
            .filter_map(|item| item.as_str().map(str::to_owned))
            .collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// Sets a field of an object if there is a value.
pub fn set<T: Into<Value>>(object: &mut Map<String, Value>, name: &str, value: Option<T>) {
    if let Some(value) = value {
        object.insert(name.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn known_options_are_read_and_others_kept() {
        let Value::Object(opts) = json!({"temperature": 0, "max_output_tokens": 10, "stop": "x", "cache": "1h", "seed": 3, "messages": [], "top_p": "no"})
        else {
            unreachable!()
        };
        let read = Opts::read(opts);
        assert_eq!(read.temperature, Some(0.0));
        assert_eq!(read.max_output_tokens, Some(10));
        assert_eq!(read.top_p, None);
        assert_eq!(
            (read.stop, read.cache),
            (vec!["x".to_owned()], Cache::OneHour)
        );
        assert_eq!(Value::Object(read.rest), json!({"seed": 3}));
    }
}
