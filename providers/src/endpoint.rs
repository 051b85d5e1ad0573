//! A provider at one address. It sends requests and reads the streams of their replies to the end.

use std::sync::Arc;

use futures_util::{Stream, StreamExt, future::Either, stream, stream::BoxStream};
use reqwest::{
    Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};

use super::{
    Encoder, Provider, ReplyProgress, RequestHead, WireRequest,
    answer_bounds::AnswerBounds,
    catalogue::{ModelCatalogue, ModelFacts},
    client::{Clients, LentClient, Route},
    concurrency::ConcurrencyLimit,
    http::{self, Destination, HttpCall},
    options::Times,
    preset::Preset,
    wire::{WireFormat, WireKind, WireTarget},
};
use crate::secret::Secret;
use planck_agent::model::{Failure, FailureKind};
use planck_telemetry::metrics::RequestMeter;

/// The header in which Anthropic's clients list the features that they use.
const FEATURES: &str = "anthropic-beta";

/// One configured provider at one address.
pub struct ProviderEndpoint {
    pub(super) name: Arc<str>,
    pub(super) speaks: WireChoice,
    pub(super) base: Url,
    pub(super) target: WireTarget,
    /// The headers that the configuration adds to every request. There are none if the key may not
    /// be sent to this address.
    pub(super) headers: HeaderMap,
    pub(super) key: Option<Secret>,
    /// Whether the address belongs to the provider or is allowed by the configuration. Only then do
    /// users see the server's error messages.
    pub(super) configured: bool,
    pub(super) times: Times,
    pub(super) answer: AnswerBounds,
    pub(super) concurrency: Arc<ConcurrencyLimit>,
    pub(super) catalogue: Arc<ModelCatalogue>,
    pub(super) route: Route,
}

/// The facts that determine the wire format of an endpoint's requests.
pub struct WireChoice {
    pub preset: Preset,
    /// The wire format that the configuration names. If it is `None`, the preset or the catalogue's
    /// entry for the model determines the format.
    pub wire: Option<WireKind>,
}

impl ProviderEndpoint {
    fn entry(&self, model: &str) -> ModelFacts {
        self.catalogue
            .find(&self.name, &self.speaks.preset, model)
            .entry
    }

    fn wire(&self, entry: &ModelFacts) -> &'static dyn WireFormat {
        let WireChoice { preset, wire } = &self.speaks;
        let by_catalogue = preset.responses && self.target.is_vendor && entry.responses;
        let usual = if by_catalogue {
            WireKind::Responses
        } else {
            preset.wire
        };
        wire.unwrap_or(usual).wire()
    }

    /// Returns the headers of a request: those of the wire format, those of the request, the key,
    /// and those that the configuration adds.
    fn headers(&self, wire: &dyn WireFormat, of_request: HeaderMap) -> Result<HeaderMap, String> {
        let mut headers = wire.headers();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(of_request);
        if let Some(key) = &self.key {
            let (name, before) = wire.key_header(&self.target);
            headers.insert(
                name,
                value(
                    &format!("{before}{}", key.reveal()),
                    "the key holds characters that no header can carry",
                )?,
            );
        }
        for (name, value) in &self.headers {
            let listed = headers
                .get(name)
                .filter(|_| *name == FEATURES)
                .and_then(|ours| joined(ours, value));
            headers.insert(name, listed.unwrap_or_else(|| value.clone()));
        }
        Ok(headers)
    }
}

impl Provider for ProviderEndpoint {
    fn name(&self) -> &str {
        &self.name
    }

    fn server(&self) -> Option<(&str, u16)> {
        self.base.host_str().zip(self.base.port_or_known_default())
    }

    fn encoder(&self, head: RequestHead) -> Box<dyn Encoder> {
        let entry = self.entry(&head.model);
        self.wire(&entry).encoder(head, &entry, &self.target)
    }

    fn stream(
        &self,
        clients: &Clients,
        model: &str,
        request: WireRequest,
    ) -> BoxStream<'static, Result<ReplyProgress, Failure>> {
        let mut watch = RequestMeter::begin(Arc::clone(&self.name), model.to_owned());
        let watched = self
            .send(clients, model, request)
            .inspect(move |progress| match progress {
                Ok(ReplyProgress::Chunks(_)) => watch.piece(),
                Ok(ReplyProgress::Finished(finish)) => watch.end(Ok(finish)),
                Err(failure) => watch.end(Err(failure)),
            });
        watched.boxed()
    }
}

impl ProviderEndpoint {
    fn send(
        &self,
        clients: &Clients,
        model: &str,
        request: WireRequest,
    ) -> impl Stream<Item = Result<ReplyProgress, Failure>> + Send + 'static + use<> {
        let entry = self.entry(model);
        let wire = self.wire(&entry);
        let url = wire.url(&self.base, model, &self.target);
        let lent = clients.lend(&self.route).map_err(|error| error.to_string());
        let headers = self.headers(wire, request.headers);
        let (LentClient { client, place }, headers) = match (lent, headers) {
            (Ok(lent), Ok(headers)) => (lent, headers),
            (Err(what), _) | (_, Err(what)) => {
                return Either::Left(stream::iter([Err(self.cannot_send(&what))]));
            }
        };
        Either::Right(http::stream(HttpCall {
            name: Arc::clone(&self.name),
            request: client.post(url.clone()).headers(headers).body(request.body),
            place,
            destination: Destination {
                address: shown(&url),
                proxy: self.route.proxy_for(&url),
                model: model.to_owned(),
            },
            configured: self.configured,
            wire,
            target: self.target.clone(),
            key: self.key.clone(),
            times: self.times,
            answer: self.answer,
            concurrency: Arc::clone(&self.concurrency),
            entry,
        }))
    }

    fn cannot_send(&self, what: &str) -> Failure {
        Failure::new(FailureKind::Refused, format!("{}: {what}", self.name))
    }
}

/// Returns an address for error messages, without user name and query, which may contain secrets.
fn shown(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// Parses the headers that the configuration adds.
pub fn configured(headers: &[(String, Secret)]) -> Result<HeaderMap, String> {
    let read = headers.iter().map(|(name, text)| {
        let bad = format!("`{name}` is no header that can be sent");
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad.clone())?;
        Ok((header, value(text.reveal(), &bad)?))
    });
    read.collect()
}

fn value(text: &str, otherwise: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text).map_err(|_| otherwise.to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Joins two comma-separated lists of features into one header value.
fn joined(ours: &HeaderValue, theirs: &HeaderValue) -> Option<HeaderValue> {
    let list = [ours.as_bytes(), b",", theirs.as_bytes()].concat();
    HeaderValue::from_bytes(&list).ok()
}
