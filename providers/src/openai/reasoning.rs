//! The forms in which chat completions carry reasoning. Reasoning is sent back in the field and the
//! form in which it arrived.

use serde_json::{Map, Value, value::RawValue};

use planck_common::message::Part;

use crate::wire::unseal;

/// The field in which a server sent its reasoning.
#[derive(Debug, Clone, PartialEq)]
pub enum ReasoningMember {
    /// The field `reasoning_content`.
    ReasoningContent,
    /// The field `reasoning`.
    Reasoning,
    /// Items of type `thinking` in a `content` that is a list.
    List,
    /// The items of `reasoning_details`. Their pieces are joined.
    Details(Details),
}

const REASONING_CONTENT: &str = "reasoning_content";
const REASONING: &str = "reasoning";
const LIST: &str = "list";

impl ReasoningMember {
    /// Returns whether [`Self::token`] is final only when the part is complete.
    pub fn grows(&self) -> bool {
        matches!(self, Self::Details(_))
    }

    /// Adds the form of a later piece of the same part. `reasoning_details` take precedence over
    /// the other forms.
    pub fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Details(details), Self::Details(more)) => details.add(more),
            (_, Self::Details(details)) => *self = Self::Details(details),
            (_, Self::ReasoningContent | Self::Reasoning | Self::List) => {}
        }
    }

    /// Returns the form as a token, which is stored as the signature of the part.
    pub fn token(&self) -> String {
        match self {
            Self::ReasoningContent => REASONING_CONTENT.to_owned(),
            Self::Reasoning => REASONING.to_owned(),
            Self::List => LIST.to_owned(),
            Self::Details(Details(items)) => {
                Value::Array(items.iter().cloned().map(Value::Object).collect()).to_string()
            }
        }
    }
}

/// The items of OpenRouter's `reasoning_details`: text, summaries and encrypted reasoning.
#[derive(Debug, Clone, PartialEq)]
pub struct Details(Vec<Map<String, Value>>);

impl Details {
    /// Returns the items of `reasoning_details` in a delta, or `None` if there are none.
    pub fn read(raw: &RawValue) -> Option<Self> {
        let items: Vec<Map<String, Value>> = serde_json::from_str(raw.get()).ok()?;
        (!items.is_empty()).then_some(Self(items))
    }

    /// Returns the texts and summaries of the items.
    pub fn text(&self) -> String {
        let texts = self.0.iter().flat_map(|item| {
            ["text", "summary"].map(|name| item.get(name).and_then(Value::as_str))
        });
        texts.flatten().collect()
    }

    fn add(&mut self, more: Self) {
        for item in more.0 {
            match self.0.last_mut().filter(|last| continues(last, &item)) {
                Some(last) => join(last, item),
                None => self.0.push(item),
            }
        }
    }
}

/// Returns whether an item continues the item `last`. Encrypted reasoning arrives whole, so it
/// never continues another item.
fn continues(last: &Map<String, Value>, item: &Map<String, Value>) -> bool {
    let same = |name: &str| last.get(name) == item.get(name);
    let kind = item.get("type").and_then(Value::as_str);
    same("type") && same("index") && matches!(kind, Some("reasoning.text" | "reasoning.summary"))
}

fn join(last: &mut Map<String, Value>, item: Map<String, Value>) {
    for (name, value) in item {
        match (last.get_mut(&name), value) {
            (_, Value::Null) => {}
            (Some(Value::String(text)), Value::String(more))
                if name == "text" || name == "summary" =>
            {
                text.push_str(&more)
            }
            (_, value) => {
                last.insert(name, value);
            }
        }
    }
}

/// The reasoning of a message in the form in which it is sent back to one endpoint.
#[derive(Debug, Default)]
pub struct Reasoning<'a> {
    pub reasoning_content: String,
    pub reasoning: String,
    /// The texts that are sent back as items of a `content` that is a list.
    pub list: Vec<&'a str>,
    /// The items of `reasoning_details`.
    pub details: Vec<Value>,
}

impl<'a> Reasoning<'a> {
    /// Collects the reasoning of the parts that came from the endpoint with this label.
    pub fn of(parts: &'a [Part], label: &str) -> Self {
        let mut reasoning = Self::default();
        for part in parts {
            let Part::Thinking {
                text,
                signature: Some(sealed),
                ..
            } = part
            else {
                continue;
            };
            match unseal(label, sealed) {
                Some(REASONING_CONTENT) => reasoning.reasoning_content.push_str(text),
                Some(REASONING) => reasoning.reasoning.push_str(text),
                Some(LIST) => reasoning.list.push(text),
                Some(details) => reasoning
                    .details
                    .extend(serde_json::from_str::<Vec<Value>>(details).unwrap_or_default()),
                None => {}
            }
        }
        reasoning
    }
}
