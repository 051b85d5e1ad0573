//! The loop guard, which counts consecutive equal calls. The order of the keys in a call's
//! arguments does not matter.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

/// How many identical tool calls in a row are allowed. From call `note_from` on the result contains
/// a remark, and from call `refuse_from` on the call is refused.
#[derive(Debug, Clone, Copy)]
pub struct LoopLimits {
    pub note_from: u32,
    pub refuse_from: u32,
}

/// The last call of a turn, and how many times in a row it was made.
#[derive(Debug, Default)]
pub(super) struct LoopGuard {
    last: Option<u64>,
    count: u32,
}

/// The decision whether a call may run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LoopVerdict {
    Run,
    /// The call runs, and this remark is added to its result.
    Remark(String),
    Refuse(String),
}

impl LoopGuard {
    /// Counts a call, and returns whether the call may run.
    pub(super) fn judge(&mut self, name: &str, args: &str, limits: LoopLimits) -> LoopVerdict {
        let call = fingerprint(name, args);
        self.count = if self.last == Some(call) {
            self.count.saturating_add(1)
        } else {
            1
        };
        self.last = Some(call);
        let count = self.count;
        if count >= limits.refuse_from {
            LoopVerdict::Refuse(format!(
                "not run: this is call {count} in a row of {name} with the same arguments; do something else"
            ))
        } else if count >= limits.note_from {
            LoopVerdict::Remark(format!(
                "[this is call {count} in a row of {name} with the same arguments; the result will not change by repeating it]"
            ))
        } else {
            LoopVerdict::Run
        }
    }
}

fn fingerprint(name: &str, args: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    match serde_json::from_str(args) {
        Ok(value) => hash_value(&value, &mut hasher),
        Err(_) => args.hash(&mut hasher),
    }
    hasher.finish()
}

fn hash_value(value: &Value, hasher: &mut DefaultHasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        Value::Null => {}
        Value::Bool(bool) => bool.hash(hasher),
        Value::Number(number) => number.to_string().hash(hasher),
        Value::String(text) => text.hash(hasher),
        Value::Array(items) => {
            items.len().hash(hasher);
            items.iter().for_each(|item| hash_value(item, hasher));
        }
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            sorted.len().hash(hasher);
            for (key, item) in sorted {
                key.hash(hasher);
                hash_value(item, hasher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LoopLimits = LoopLimits {
        note_from: 3,
        refuse_from: 5,
    };

    fn judge_all(calls: &[(&str, &str)]) -> String {
        let mut guard = LoopGuard::default();
        let letters = calls
            .iter()
            .map(|(name, args)| match guard.judge(name, args, LIMITS) {
                LoopVerdict::Run => '.',
                LoopVerdict::Remark(_) => 'n',
                LoopVerdict::Refuse(_) => 'x',
            });
        letters.collect()
    }

    #[test]
    fn repeated_call_gets_a_remark_and_is_then_refused() {
        assert_eq!(judge_all(&[("read", r#"{"a":1}"#); 6]), "..nnxx");
    }

    #[test]
    fn order_of_keys_does_not_matter() {
        let (one, other) = (
            r#"{"a":1,"b":{"c":2,"d":[3]}}"#,
            r#"{ "b": {"d":[3],"c":2}, "a": 1 }"#,
        );
        assert_eq!(
            judge_all(&[("read", one), ("read", other), ("read", one)]),
            "..n"
        );
    }

    #[test]
    fn different_call_in_between_resets_the_count() {
        assert_eq!(
            judge_all(&[
                ("a", "{}"),
                ("a", "{}"),
                ("b", "{}"),
                ("a", "{}"),
                ("a", "{}"),
                ("a", "{}")
            ]),
            ".....n"
        );
        assert_eq!(
            judge_all(&[
                ("a", r#"{"x":[1,2]}"#),
                ("a", r#"{"x":[2,1]}"#),
                ("a", r#"{"x":"[1,2]"}"#)
            ]),
            "..."
        );
    }
}
