//! Continues a trace across a request. The sender writes the current span to the header
//! `traceparent`, and the receiver makes that span the parent of its own span.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use planck_bus::telemetry::TRACEPARENT;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of spans that appear in logs but are not sent to the collector.
pub const UNTRACED: &str = "planck_telemetry::untraced";

/// Returns the value of the header `traceparent` for the current span, or `None` if there is no
/// trace.
pub fn traceparent() -> Option<String> {
    let span = Span::current();
    if span.is_none() {
        return None;
    }
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut headers);
    headers.remove(TRACEPARENT)
}

/// Makes `span` a child of the caller's span. `span` must not have been entered yet.
pub fn set_parent(span: &Span, traceparent: &str) {
    let headers = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let _not_traced = span.set_parent(TraceContextPropagator::new().extract(&headers));
}
