"""A call's place in its caller's trace."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

# The header, as W3C Trace Context names it.
HEADER = "traceparent"

try:
    from opentelemetry import context as _context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    _propagator: Any = TraceContextTextMapPropagator()
except ImportError:  # a sidecar needs no OpenTelemetry
    _propagator = None


@contextmanager
def within(traceparent: str | None) -> Iterator[None]:
    """Makes the caller's span the current one of OpenTelemetry, where that is installed."""
    if _propagator is None or not traceparent:
        yield
        return
    token = _context.attach(_propagator.extract({HEADER: traceparent}))
    try:
        yield
    finally:
        _context.detach(token)
