//! Carries a trace across a request: `traceparent` is written from the current span, and read into
//! the span that handles the request.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use planck_bus::telemetry::TRACEPARENT;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of spans that appear only in logs.
pub const UNTRACED: &str = "planck_node::untraced";

/// Returns the current span as the value of a header, or `None` if nothing is traced.
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

/// Makes a span that is not yet entered a child of the caller's span.
pub fn set_parent(span: &Span, traceparent: &str) {
    let headers = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let _not_traced = span.set_parent(TraceContextPropagator::new().extract(&headers));
}
