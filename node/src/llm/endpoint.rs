//! A provider at an address: sends requests and reads their streams to the end.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use super::{
    Encoder, Head, Progress, Provider,
    allowance::AnswerBounds,
    catalogue::{Catalogue, UNKNOWN},
    client::{Clients, Lent},
    gate::Gate,
    http::{self, Call},
    options::Times,
    wire::Wire,
};
use crate::{model::Failure, secret::Secret};

/// One configured provider.
pub struct Endpoint {
    pub(super) name: &'static str,
    pub(super) wire: Arc<dyn Wire>,
    /// Without a trailing slash.
    pub(super) base: String,
    /// The key among them.
    pub(super) headers: HeaderMap,
    pub(super) key: Option<Secret>,
    /// Whether the configuration, or the provider itself, names this address.
    pub(super) configured: bool,
    pub(super) times: Times,
    pub(super) answer: AnswerBounds,
    pub(super) gate: Arc<Gate>,
    pub(super) catalogue: Arc<Catalogue>,
}

impl Provider for Endpoint {
    fn name(&self) -> &'static str {
        self.name
    }

    fn encoder(&self, head: Head) -> Box<dyn Encoder> {
        let entry = self.catalogue.find(self.name, &head.model).unwrap_or(UNKNOWN);
        self.wire.encoder(head, &entry)
    }

    fn stream(&self, clients: &Clients, model: &str, body: Bytes) -> BoxStream<'static, Result<Progress, Failure>> {
        let url = self.wire.url(&self.base, model);
        let Lent { client, place } = clients.lend();
        let request = client.post(&url).headers(self.headers.clone()).body(body);
        http::stream(Call {
            name: self.name,
            request,
            place,
            address: url,
            configured: self.configured,
            wire: Arc::clone(&self.wire),
            key: self.key.clone(),
            times: self.times,
            answer: self.answer,
            gate: Arc::clone(&self.gate),
            entry: self.catalogue.find(self.name, model).unwrap_or(UNKNOWN),
        })
        .boxed()
    }
}

/// The headers of every request: ours, the wire's, the key, and those of the configuration.
pub fn headers(wire: &dyn Wire, key: Option<&Secret>, extra: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = wire.headers();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = key {
        let (name, before) = wire.key_header();
        let value = HeaderValue::from_str(&format!("{before}{}", key.reveal()));
        let mut value = value.map_err(|_| "the key holds characters that no header can carry".to_owned())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    for (name, value) in extra {
        let bad = || format!("`{name}` is no header that can be sent");
        let header = reqwest::header::HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}
