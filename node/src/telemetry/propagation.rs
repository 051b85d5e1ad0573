//! Carries a trace over a request: `traceparent` out of the current span, and into the span that
//! handles it.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use planck_bus::telemetry::TRACEPARENT;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of spans that are for logs only.
pub const UNTRACED: &str = "planck_node::untraced";

/// The current span as a header's value; `None` when nothing is traced.
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

/// Makes a span, not yet entered, a child of the caller's.
pub fn set_parent(span: &Span, traceparent: &str) {
    let headers = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let _not_traced = span.set_parent(TraceContextPropagator::new().extract(&headers));
}
