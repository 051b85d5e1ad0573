"""The place of a call in its caller's trace."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

# The name of the header, from W3C Trace Context.
HEADER = "traceparent"

try:
    from opentelemetry import context as _context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    _propagator: Any = TraceContextTextMapPropagator()
except ImportError:  # OpenTelemetry is optional
    _propagator = None


@contextmanager
def within(traceparent: str | None) -> Iterator[None]:
    """Makes the caller's span the current one of OpenTelemetry, if that is installed."""
    if _propagator is None or not traceparent:
        yield
        return
    token = _context.attach(_propagator.extract({HEADER: traceparent}))
    try:
        yield
    finally:
        _context.detach(token)
