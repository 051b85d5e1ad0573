//! The place of a call in its caller's trace.

use std::future::Future;

/// The name of the header, from W3C Trace Context.
pub const HEADER: &str = "traceparent";

/// Begins and runs the work of a call with the caller's span as OpenTelemetry's current span.
/// Without a valid `traceparent`, the current context stays.
#[cfg(feature = "opentelemetry")]
pub fn within<F: Future>(
    traceparent: Option<&str>,
    work: impl FnOnce() -> F,
) -> impl Future<Output = F::Output> {
    use opentelemetry::{
        Context,
        trace::{FutureExt as _, TraceContextExt as _},
    };

    let context = match traceparent.and_then(parse) {
        Some(parent) => Context::current().with_remote_span_context(parent),
        None => Context::current(),
    };
    let begun = {
        let _current = context.clone().attach();
        work()
    };
    begun.with_context(context)
}

/// Begins the work. Without OpenTelemetry there is no current span.
#[cfg(not(feature = "opentelemetry"))]
pub fn within<F: Future>(_traceparent: Option<&str>, work: impl FnOnce() -> F) -> F {
    work()
}

/// Parses a `traceparent` header. Returns `None` if the header is malformed. Ignores further fields
/// at its end, because a later version may add some.
#[cfg(feature = "opentelemetry")]
fn parse(header: &str) -> Option<opentelemetry::trace::SpanContext> {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    if !hex(version, 2) || version == "ff" || !hex(trace, 32) || !hex(span, 16) || !hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let parent = SpanContext::new(trace, span, flags, true, TraceState::default());
    parent.is_valid().then_some(parent)
}

#[cfg(all(test, feature = "opentelemetry"))]
mod tests {
    use opentelemetry::{Context, trace::TraceContextExt as _};

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn current() -> String {
        let context = Context::current();
        let span = context.span().span_context().clone();
        format!("{}-{}", span.trace_id(), span.span_id())
    }

    #[tokio::test]
    async fn work_runs_with_the_span_of_its_caller() {
        let work = || async {
            tokio::task::yield_now().await;
            current()
        };
        assert_eq!(within(Some(PARENT), work).await, PARENT[3..52]);
        let none = current();
        for malformed in [
            "",
            "00-0af7-b7ad-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            &"0".repeat(55),
        ] {
            assert_eq!(within(Some(malformed), work).await, none, "{malformed}");
        }
    }
}
