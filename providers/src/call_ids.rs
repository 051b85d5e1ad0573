//! Adapts the ids of tool calls to a provider. The adapted ids are unique in the whole history and
//! have the form that the provider accepts.
//!
//! Some servers restart their numbering in each answer, so several calls of a conversation have the
//! same id. After a change of model, the history contains ids of another provider. A call and its
//! result always get the same id.

use std::{borrow::Cow, collections::HashMap};

use planck_common::CallId;
use sha2::{Digest, Sha256};

/// The form of ids that a provider accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdRule {
    Any,
    /// At most `most` letters, digits, `_` and `-`.
    Words {
        most: usize,
    },
    /// Exactly nine letters and digits.
    Nine,
}

/// The ids of the calls in one conversation.
#[derive(Debug)]
pub struct CallIds {
    form: IdRule,
    /// The assigned ids. Each has the number of the last id that was derived from it, or 1 if there
    /// is none.
    wanted: HashMap<Box<str>, u32>,
    /// The assigned ids that differ from the id in the message, by call.
    given: HashMap<CallId, Box<str>>,
}

impl CallIds {
    pub fn new(form: IdRule) -> Self {
        Self {
            form,
            wanted: HashMap::new(),
            given: HashMap::new(),
        }
    }

    /// Assigns an id to a call and returns it. Calls must be passed in the order of the
    /// conversation.
    pub fn of_call<'a>(&mut self, id: &'a str, call_id: &CallId) -> Cow<'a, str> {
        let made = self.unique(self.form.fitted(id));
        if made != id {
            self.given.insert(call_id.clone(), made.as_ref().into());
        }
        made
    }

    /// Returns the id for the result of a call. The call must have been passed to [`Self::of_call`]
    /// before.
    pub fn of_result<'a>(&'a self, id: &'a str, call_id: &CallId) -> &'a str {
        self.given.get(call_id).map_or(id, |given| given)
    }

    fn unique<'a>(&mut self, id: Cow<'a, str>) -> Cow<'a, str> {
        let Some(times) = self.wanted.get_mut(id.as_ref()) else {
            self.wanted.insert(id.as_ref().into(), 1);
            return id;
        };
        let mut number = *times;
        let made = loop {
            number = number.saturating_add(1);
            let made = self.form.numbered(&id, number);
            if !self.wanted.contains_key(made.as_str()) {
                break made;
            }
        };
        self.wanted.insert(id.as_ref().into(), number);
        self.wanted.insert(made.as_str().into(), 1);
        made.into()
    }
}

impl IdRule {
    fn fitted(self, id: &str) -> Cow<'_, str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        match self {
            Self::Any if id.is_empty() => "_".into(),
            Self::Any => id.into(),
            Self::Words { most }
                if !id.is_empty() && id.len() <= most && id.chars().all(is_word) =>
            {
                id.into()
            }
            Self::Words { most } => {
                let made: String = id
                    .chars()
                    .take(most)
                    .map(|c| if is_word(c) { c } else { '_' })
                    .collect();
                if made.is_empty() {
                    "_".into()
                } else {
                    made.into()
                }
            }
            Self::Nine if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
                id.into()
            }
            Self::Nine => nine(id).into(),
        }
    }

    /// Derives another id from `id` and a number.
    fn numbered(self, id: &str, number: u32) -> String {
        let end = format!("_{number}");
        match self {
            Self::Any => format!("{id}{end}"),
            Self::Words { most } => {
                let kept: String = id.chars().take(most.saturating_sub(end.len())).collect();
                kept + &end
            }
            Self::Nine => nine(&format!("{id}{end}")),
        }
    }
}

/// Derives an id of nine letters and digits from a text.
fn nine(text: &str) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digest = Sha256::digest(text.as_bytes());
    let letter = |byte: &u8| {
        LETTERS
            .get(usize::from(*byte) % LETTERS.len())
            .copied()
            .map_or('0', char::from)
    };
    digest.iter().take(9).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn call(number: usize) -> CallId {
        CallId::parse(&format!("c-{number}")).unwrap()
    }

    #[test]
    fn each_call_has_a_unique_id_that_its_result_shares() {
        for form in [IdRule::Any, IdRule::Words { most: 12 }, IdRule::Nine] {
            let mut ids = CallIds::new(form);
            let wanted = [
                "functions.read:0",
                "functions.read:0",
                "functions_read_0",
                "functions.read:0_2",
                "",
                "",
                "abcdefghi",
            ];
            let made: Vec<String> = wanted
                .iter()
                .enumerate()
                .map(|(at, id)| ids.of_call(id, &call(at)).into_owned())
                .collect();
            assert_eq!(
                made.iter().collect::<HashSet<_>>().len(),
                wanted.len(),
                "{form:?}: {made:?}"
            );
            assert_eq!(made[6], "abcdefghi", "{form:?}");
            for (at, id) in wanted.iter().enumerate() {
                assert_eq!(ids.of_result(id, &call(at)), made[at], "{form:?}");
            }
            let fits = |id: &String| match form {
                IdRule::Any => !id.is_empty(),
                IdRule::Words { most } => id.len() <= most && !id.contains([':', '.']),
                IdRule::Nine => {
                    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
                }
            };
            assert!(made.iter().all(fits), "{form:?}: {made:?}");
        }
    }

    #[test]
    fn an_id_that_fits_is_kept() {
        let mut ids = CallIds::new(IdRule::Any);
        assert_eq!(
            ids.of_call("functions.read:0", &call(0)),
            "functions.read:0"
        );
        assert_eq!(
            ids.of_call("functions.read:0", &call(1)),
            "functions.read:0_2"
        );
    }
}
