"""OpenTelemetry: a producer span where a job is enqueued, a consumer span around each attempt, joined by headers.

`instrument(app)` is the public face. Needs the extra `otel`, the API only: the SDK that your program sets up, in each
process that runs handlers (`@app.on_startup`), decides where spans and metrics go. Built on `app.on_enqueue` and
`app.around`. Never records arguments or results, nor the names of groups and keys.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from . import __version__
from .context import Bury, CancelRequested, Context, Retry, Snooze
from .errors import ConfigurationError
from .headers import HEADERS_BYTES_MAX, HEADERS_MAX

try:
    from opentelemetry import context as current
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.metrics import _internal as _meters
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError as error:
    raise ConfigurationError(
        f"tracing needs {error.name}, which is not installed. Install it: pip install 'holdfast[otel]'."
    ) from None

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from .app import Holdfast
    from .job import BoundCall

__all__ = ["instrument"]

PROVIDED = (
    "OTEL_PYTHON_TRACER_PROVIDER",
    "OTEL_PYTHON_METER_PROVIDER",
)  # name providers that the API loads itself
SCHEMA = "https://opentelemetry.io/schemas/1.37.0"
# The conventions' own buckets up to 10 s, and more, because jobs run longer. The SDK's defaults are for milliseconds.
BOUNDS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 1800)
_instrumented: WeakSet[Holdfast] = WeakSet()


def instrument(
    app: Holdfast,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    parent: bool = True,
) -> None:
    """Trace what this app enqueues and runs. Call it once, where the app is made.

    Each attempt's span is a child of the span that enqueued the job, and linked to it. With `parent=False` it is only
    linked, and begins a trace of its own: for jobs that run hours or days later. Without providers, the global ones.
    """
    if app in _instrumented:
        raise ConfigurationError("this app is instrumented already. Call holdfast.otel.instrument() once.")
    _instrumented.add(app)
    tracing = _Tracing(tracer_provider, meter_provider, parent)
    app.on_enqueue(tracing.enqueue)
    app._hooks.add_around(tracing.call, tracing.acall, wanted=tracing.active)


class _Tracing:
    """The hooks of one app."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None, parent: bool) -> None:
        self._parent = parent
        self._given = tracers is not None or meters is not None or any(name in os.environ for name in PROVIDED)
        self._tracer = trace.get_tracer("holdfast", __version__, tracers, SCHEMA)
        meter = metrics.get_meter("holdfast", __version__, meters, SCHEMA)
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that were begun."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long handlers ran.",
            explicit_bucket_boundaries_advisory=BOUNDS_SECONDS,
        )

    def active(self) -> bool:
        """Whether spans go anywhere: an SDK is set up here. Without one nothing is done, because it costs time.

        Reads where the API keeps its providers: asking for them takes as long as storing a job. Should they move, the
        API's own no-ops are called instead.
        """
        return (
            self._given
            or getattr(trace, "_TRACER_PROVIDER", trace) is not None
            or getattr(_meters, "_METER_PROVIDER", metrics) is not None
        )

    # ------------------------------------------------------------------ enqueue

    def enqueue(self, call: BoundCall[Any], headers: dict[str, str]) -> None:
        """Make a span of this call and put its context into the headers."""
        if not (current.get_current() or self.active()):  # a context from elsewhere is handed on, SDK or not
            return
        about = _about("enqueue", call.queue, call.task)
        span = self._tracer.start_span(
            f"enqueue {call.queue}",
            kind=SpanKind.PRODUCER,
            attributes={**about, "messaging.operation.type": "send", "messaging.message.id": call.id},
        )
        carried: dict[str, str] = {}
        propagate.inject(carried, trace.set_span_in_context(span))
        span.end()
        self._sent.add(1, about)
        if carried:
            _add(carried, headers)

    # ------------------------------------------------------------------ attempts

    def call(self, ctx: Context, call_next: Callable[[], Any]) -> Any:
        with self._attempt(ctx):
            return call_next()

    async def acall(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        with self._attempt(ctx):
            return await call_next()

    @contextmanager
    def _attempt(self, ctx: Context) -> Iterator[None]:
        about = _about("process", ctx.queue, ctx.task)
        origin = propagate.extract(ctx.headers, current.Context())  # whatever else is current here is not its parent
        creation = trace.get_current_span(origin).get_span_context()
        inside = origin if self._parent else trace.set_span_in_context(trace.INVALID_SPAN, origin)
        span = self._tracer.start_span(
            f"process {ctx.queue}",
            inside,
            kind=SpanKind.CONSUMER,
            attributes={
                **about,
                "messaging.operation.type": "process",
                "messaging.message.id": ctx.id,
                "messaging.holdfast.attempt": ctx.attempt,
            },
            links=[Link(creation)] if creation.is_valid else None,
        )
        self._consumed.add(1, about)
        token, began = current.attach(trace.set_span_in_context(span, inside)), time.perf_counter()
        try:
            yield
        except BaseException as error:
            about = {**about, **_ended_badly(span, error)}
            raise
        finally:
            self._duration.record(time.perf_counter() - began, about)
            current.detach(token)
            span.end()


def _about(operation: str, queue: str, task: str) -> dict[str, str]:
    """What spans and metrics say: few distinct values."""
    return {
        "messaging.system": "holdfast",
        "messaging.operation.name": operation,
        "messaging.destination.name": queue,
        "messaging.holdfast.task": task,
    }


def _ended_badly(span: Span, error: BaseException) -> Mapping[str, str]:
    """Say on the span how the attempt ended. Return what metrics say about it: nothing if it is no error."""
    if isinstance(error, Retry | Snooze):
        span.set_attribute("messaging.holdfast.outcome", type(error).__name__.lower())
        return {}
    if isinstance(error, CancelRequested | asyncio.CancelledError):
        span.set_attribute("messaging.holdfast.outcome", "cancelled")
        return {}
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(error, Bury):
        name = "bury"
        span.set_attribute("messaging.holdfast.outcome", "bury")
    else:
        span.record_exception(error)
    span.set_attribute("error.type", name)
    span.set_status(Status(StatusCode.ERROR, name))
    return {"error.type": name}


def _add(carried: Mapping[str, str], headers: dict[str, str]) -> None:
    """Add what fits: a job is not refused because its baggage is too large. traceparent is short and comes first."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items() if name not in carried)
    for name, value in sorted(carried.items(), key=lambda pair: (pair[0] != "traceparent", pair[0] == "baggage")):
        size += len(name.encode()) + len(value.encode())
        if size <= HEADERS_BYTES_MAX and (name in headers or len(headers) < HEADERS_MAX):
            headers[name] = value
