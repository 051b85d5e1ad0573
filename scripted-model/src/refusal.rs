//! Why a request is refused, before a provider's own error format is applied.

use serde_json::Value;

/// A refusal. Each provider writes it in its own format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireRefusal {
    pub status: u16,
    pub kind: RefusalKind,
    pub message: String,
    /// The faulty field, for providers that name it separately.
    pub field: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    Invalid,
    /// Messages in an order that the model's template does not support.
    Order,
    Auth,
    NotFound,
    RateLimit,
    Overloaded,
    Internal,
}

impl WireRefusal {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            status: 400,
            kind: RefusalKind::Invalid,
            message: message.into(),
            field: None,
        }
    }

    pub fn at(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::invalid(message)
        }
    }

    pub fn auth(status: u16, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: RefusalKind::Auth,
            message: message.into(),
            field: None,
        }
    }

    /// Returns the refusal that a provider sends with the status that a script asks for.
    pub fn of_status(status: u16) -> Self {
        let (kind, message) = match status {
            401 | 403 => (RefusalKind::Auth, "invalid key"),
            404 => (RefusalKind::NotFound, "not found"),
            429 => (
                RefusalKind::RateLimit,
                "rate limit reached, please try again later",
            ),
            503 | 529 => (RefusalKind::Overloaded, "Overloaded"),
            500..=599 => (RefusalKind::Internal, "Internal server error"),
            _ => (RefusalKind::Invalid, "invalid request"),
        };
        Self {
            status,
            kind,
            message: message.to_owned(),
            field: None,
        }
    }
}

/// Checks that an object has only known fields. Fails with the name of the first unknown one.
pub fn only_fields<'a>(
    object: &'a serde_json::Map<String, Value>,
    known: &[&str],
) -> Result<(), &'a str> {
    object
        .keys()
        .find(|key| !known.contains(&key.as_str()))
        .map_or(Ok(()), |key| Err(key.as_str()))
}
