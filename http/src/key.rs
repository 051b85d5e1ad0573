//! Keys, the roles that they give, and the caller of a request.

use std::fmt;

use axum::{
    extract::FromRequestParts,
    http::{Extensions, HeaderMap, header::AUTHORIZATION, request::Parts},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::problem::Problem;

/// The rights of a caller. A role includes all roles before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Read sessions, agents, waits and nodes.
    Observe,
    /// Start and resume sessions, send prompts, answer waits, abort turns and rewind.
    Use,
    /// Everything else: close and delete sessions, change agents and drain nodes.
    Operate,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Use => "use",
            Self::Operate => "operate",
        }
    }
}

/// The SHA-256 digest of a key, written in 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyHash([u8; 32]);

/// The error for a text that is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 64 hexadecimal digits; `planck serve key NAME` makes a key and its hash")]
pub struct MalformedHash;

impl KeyHash {
    /// Returns the digest of a key.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Compares two digests in a time that does not depend on their first difference.
    fn is(&self, other: &Self) -> bool {
        let differences = self.0.iter().zip(other.0).map(|(a, b)| a ^ b);
        differences.fold(0, |all, one| all | one) == 0
    }
}

impl TryFrom<String> for KeyHash {
    type Error = MalformedHash;

    fn try_from(text: String) -> Result<Self, MalformedHash> {
        let mut digest = [0; 32];
        let digits: Option<Vec<u8>> = text
            .chars()
            .map(|digit| u8::try_from(digit.to_digit(16)?).ok())
            .collect();
        let digits = digits
            .filter(|digits| digits.len() == 64)
            .ok_or(MalformedHash)?;
        for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
            *byte = pair.iter().fold(0, |value, digit| value << 4 | digit);
        }
        Ok(Self(digest))
    }
}

impl From<KeyHash> for String {
    fn from(hash: KeyHash) -> Self {
        hash.to_string()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A key of the configuration. Its text is known only to those who use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The name under which the log shows the caller.
    pub name: String,
    pub hash: KeyHash,
    pub role: Role,
}

impl Key {
    fn caller(&self) -> Caller {
        Caller {
            name: Some(self.name.clone()),
            role: self.role,
        }
    }
}

/// The caller of a request: the name of its key, or `None` if the front has no key for each caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub name: Option<String>,
    pub role: Role,
}

impl Caller {
    /// Returns the caller that the guard has put into the extensions of a request.
    pub fn of(extensions: &Extensions) -> Result<&Self, Problem> {
        let caller = extensions.get::<Self>();
        caller.ok_or_else(|| Problem::unauthorized("this request has no caller"))
    }

    /// Refuses a caller with a lower role than `what` needs.
    pub fn needs(&self, role: Role, what: &str) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        Err(Problem::denied(format!(
            "the key `{}` has the role `{}`, and {what} needs `{}`",
            self.name.as_deref().unwrap_or_default(),
            self.role.name(),
            role.name(),
        )))
    }

    /// Returns the name that is recorded with a command: that of the caller's key. If the key has
    /// none, it is the one that the body of the request says.
    pub fn author(self, said: Option<String>) -> Option<String> {
        self.name.or(said)
    }

    /// Returns the reason of a command with the name of the caller, so that the log says who sent
    /// the command.
    pub fn reason(self, given: Option<String>) -> Option<String> {
        match (given, self.name) {
            (Some(given), Some(name)) => Some(format!("{given} (by {name})")),
            (None, Some(name)) => Some(format!("by {name}")),
            (given, None) => given,
        }
    }
}

/// The keys of a front.
#[derive(Debug, Clone, Default)]
pub enum Keys {
    /// Everybody who reaches the front may do everything.
    #[default]
    Off,
    /// The key of the user who runs the front, which names no caller and permits everything.
    Own(KeyHash),
    /// A key for each caller.
    Listed(Vec<Key>),
}

impl Keys {
    /// Returns the caller that the headers of a request name.
    pub fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let user = Caller {
            name: None,
            role: Role::Operate,
        };
        let known = match self {
            Self::Off => return Ok(user),
            Self::Own(hash) => presented(headers)?.is(hash).then_some(user),
            Self::Listed(keys) => {
                let presented = presented(headers)?;
                let known = keys.iter().find(|key| key.hash.is(&presented));
                known.map(Key::caller)
            }
        };
        known.ok_or_else(|| {
            Problem::unauthorized("no key of this front is like the one that was sent")
        })
    }
}

/// Returns the digest of the key that the headers of a request have.
fn presented(headers: &HeaderMap) -> Result<KeyHash, Problem> {
    let text = headers
        .get(AUTHORIZATION)
        .and_then(|text| text.to_str().ok());
    text.and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| KeyHash::of(key.trim()))
        .ok_or_else(|| {
            Problem::unauthorized(
                "this front needs a key: `Authorization: Bearer KEY`; on its machine `planck serve key` \
                 prints it, unless `http.keys` lists others",
            )
        })
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::of(&parts.extensions).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::Listed(vec![Key {
            name: "ann".into(),
            hash: KeyHash::of("secret"),
            role: Role::Use,
        }])
    }

    fn headers(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
    }

    #[test]
    fn caller_is_the_one_whose_key_was_sent() {
        let ann = Caller {
            name: Some("ann".into()),
            role: Role::Use,
        };
        assert_eq!(keys().caller(&headers("Bearer secret")).unwrap(), ann);
        assert_eq!(keys().caller(&headers("bearer  secret ")).unwrap(), ann);
        for wrong in ["Bearer Secret", "Bearer ", "Basic secret", "secret"] {
            assert!(keys().caller(&headers(wrong)).is_err(), "{wrong}");
        }
        assert!(keys().caller(&HeaderMap::new()).is_err());
    }

    #[test]
    fn front_without_keys_admits_everybody() {
        let caller = Keys::Off.caller(&HeaderMap::new()).unwrap();
        assert_eq!(caller.role, Role::Operate);
    }

    #[test]
    fn own_key_names_no_caller_and_permits_everything() {
        let keys = Keys::Own(KeyHash::of("secret"));
        let user = keys.caller(&headers("Bearer secret")).unwrap();
        assert_eq!((user.name, user.role), (None, Role::Operate));
        assert!(keys.caller(&headers("Bearer other")).is_err());
        let refused = keys.caller(&HeaderMap::new()).unwrap_err();
        assert!(format!("{refused:?}").contains("planck serve key"));
    }

    #[test]
    fn hash_is_read_as_it_was_written() {
        let hash = KeyHash::of("secret");
        assert_eq!(KeyHash::try_from(hash.to_string()), Ok(hash));
        for wrong in ["", "ab", &"x".repeat(64), &"a".repeat(65)] {
            assert_eq!(KeyHash::try_from(wrong.to_owned()), Err(MalformedHash));
        }
    }
}
