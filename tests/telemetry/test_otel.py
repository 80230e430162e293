"""OpenTelemetry: producer and consumer spans joined across the queue, also across the processes of a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Bury, ConfigurationError, Context, Holdfast, Retry, RetryPolicy, Snooze
from holdfast.otel import instrument

PATIENCE_SECONDS = 120


class Seen:
    """An instrumented app, and what it exported."""

    def __init__(self, **options: Any) -> None:
        self.app = Holdfast("memory://")
        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._metrics])
        instrument(self.app, tracer_provider=self.tracers, meter_provider=meters, **options)

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.kind is kind]

    def points(self, name: str) -> list[Any]:
        data = self._metrics.get_metrics_data()
        found = [metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics] if data else []
        return [point for metric in found if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def seen() -> Iterator[Seen]:
    made = Seen()
    with made.app:
        yield made


def test_an_attempt_is_a_child_of_the_enqueue_and_linked_to_it(seen: Seen) -> None:
    inner: list[Any] = []

    @seen.app.task(name="send", queue="mail")
    async def send(to: str) -> str:
        inner.append(trace.get_current_span().get_span_context())
        return str(baggage.get_baggage("tenant"))

    token = context.attach(baggage.set_baggage("tenant", "acme"))
    with seen.tracers.get_tracer("web").start_as_current_span("request") as request:
        job = send.enqueue("ann@example.com")
    context.detach(token)
    assert set(job.headers) == {"traceparent", "baggage"}
    seen.app.work(drain=True)
    [sent], [run] = seen.spans(SpanKind.PRODUCER), seen.spans(SpanKind.CONSUMER)
    assert (sent.name, run.name) == ("enqueue mail", "process mail")
    assert sent.parent is not None and sent.parent.span_id == request.get_span_context().span_id
    assert run.parent is not None and run.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in run.links] == [sent.context.span_id]
    assert run.context.trace_id == sent.context.trace_id
    assert inner == [run.context], "the handler's own spans are children of the attempt's"
    assert job.refresh().value == "acme"
    assert dict(run.attributes or {}) == {
        "messaging.system": "holdfast",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "messaging.holdfast.task": "send",
        "messaging.holdfast.attempt": 1,
    }
    assert (sent.attributes or {})["messaging.operation.type"] == "send"
    assert run.status.status_code is StatusCode.UNSET
    assert "ann@example.com" not in sent.to_json() + run.to_json()


@pytest.mark.parametrize("is_async", [False, True])
def test_each_retry_is_a_span_of_its_own_with_its_exception(seen: Seen, is_async: bool) -> None:
    def fail() -> None:
        raise ValueError("no")

    async def afail() -> None:
        raise ValueError("no")

    task = seen.app.task(name="fails", retry=RetryPolicy.fixed(0, limit=1))(afail if is_async else fail)
    task.enqueue()
    seen.app.work(drain=True)
    spans = seen.spans(SpanKind.CONSUMER)
    assert [(span.attributes or {})["messaging.holdfast.attempt"] for span in spans] == [1, 2]
    assert len({span.parent.span_id for span in spans if span.parent}) == 1
    for span in spans:
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert [event.name for event in span.events] == ["exception"]
    [failed] = seen.points("messaging.process.duration")
    assert failed.attributes["error.type"] == "ValueError" and failed.count == 2
    assert failed.explicit_bounds[0] == 0.005 and failed.explicit_bounds[-1] == 1800, "in seconds"
    assert [point.value for point in seen.points("messaging.client.sent.messages")] == [1]
    assert [point.value for point in seen.points("messaging.client.consumed.messages")] == [2]


@pytest.mark.parametrize(
    ("verdict", "outcome", "status"),
    [
        (Retry(after=3600), "retry", StatusCode.UNSET),
        (Snooze(3600), "snooze", StatusCode.UNSET),
        (Bury("enough"), "bury", StatusCode.ERROR),
    ],
)
def test_a_verdict_is_recorded_and_only_a_burial_is_an_error(
    seen: Seen, verdict: BaseException, outcome: str, status: StatusCode
) -> None:
    @seen.app.task(name="decides")
    def decides(ctx: Context) -> None:
        raise verdict

    decides.enqueue()
    seen.app.work(drain=True)
    [span] = seen.spans(SpanKind.CONSUMER)
    assert (span.attributes or {})["messaging.holdfast.outcome"] == outcome
    assert span.status.status_code is status
    assert not span.events


def test_without_parent_an_attempt_begins_a_trace_of_its_own_and_is_linked() -> None:
    seen = Seen(parent=False)

    @seen.app.task(name="later")
    def later() -> None: ...

    with seen.app:
        seen.app.enqueue_many(later.bind() for _ in range(3))
        seen.app.work(drain=True)
    sent = {span.context.span_id: span for span in seen.spans(SpanKind.PRODUCER)}
    runs = seen.spans(SpanKind.CONSUMER)
    assert len(sent) == len(runs) == 3
    assert {run.links[0].context.span_id for run in runs} == set(sent)
    assert all(run.parent is None for run in runs)
    assert len({span.context.trace_id for span in [*runs, *sent.values()]}) == 6


def test_baggage_that_is_too_large_is_left_behind_and_the_job_is_stored(seen: Seen) -> None:
    @seen.app.task(name="send")
    def send() -> None: ...

    token = context.attach(baggage.set_baggage("huge", "x" * 4000))
    job = send.using(headers={"mine": "y" * 5000}).enqueue()
    context.detach(token)
    assert set(job.headers) == {"mine", "traceparent"}


def test_without_an_sdk_nothing_is_added_and_a_context_from_elsewhere_is_handed_on() -> None:
    with Holdfast("memory://") as app:
        instrument(app)

        @app.task(name="send")
        async def send() -> None: ...

        assert send.enqueue().headers == {}
        remote = trace.NonRecordingSpan(trace.SpanContext(7, 9, is_remote=True))
        token = context.attach(baggage.set_baggage("tenant", "acme", trace.set_span_in_context(remote)))
        job = send.enqueue()
        context.detach(token)
        assert job.headers["traceparent"].split("-")[1:3] == [f"{7:032x}", f"{9:016x}"]
        assert job.headers["baggage"] == "tenant=acme"
        assert app._hooks.chain([send]) is None, "an attempt costs nothing more"
        assert app.work(drain=True).succeeded == 2


def test_an_app_is_instrumented_once(seen: Seen) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        instrument(seen.app)


APP = """
import json, os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import holdfast.otel
from holdfast import Holdfast

app = Holdfast({url!r})
holdfast.otel.instrument(app)


class ToFile(SpanExporter):
    def export(self, spans):
        with open({spans!r}, "a") as out:
            for span in spans:
                out.write(json.dumps([os.getpid(), span.name, span.to_json()]) + "\\n")
        return SpanExportResult.SUCCESS


@app.on_startup
def set_up(resources):
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)


@app.on_shutdown
def flush(resources):
    trace.get_tracer_provider().shutdown()


@app.task(name="child", queue="mail")
async def child() -> None:
    pass


@app.task(name="parent")
def parent() -> None:
    child.enqueue()
"""


def test_spans_of_a_real_worker_are_joined_to_those_of_the_producer(tmp_path: Path) -> None:
    url, spans = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "spans"
    (tmp_path / "traced.py").write_text(APP.format(url=url, spans=str(spans)))
    exporter = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with Holdfast(url) as app:
        instrument(app, tracer_provider=tracers)
        app.named("parent").enqueue()
    [sent] = exporter.get_finished_spans()
    words = ["work", "traced:app", "--app-dir", str(tmp_path), "--runners", "1", "--slots", "2", "--drain"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    by_name = {name: json.loads(text) for _, name, text in found}
    assert sorted(name for _, name, _ in found) == ["enqueue mail", "process default", "process mail"]
    assert {span["context"]["trace_id"] for span in by_name.values()} == {f"{sent.context.trace_id:#034x}"}
    assert by_name["process default"]["parent_id"] == f"{sent.context.span_id:#018x}"
    assert by_name["enqueue mail"]["parent_id"] == by_name["process default"]["context"]["span_id"]
    assert by_name["process mail"]["parent_id"] == by_name["enqueue mail"]["context"]["span_id"]
    assert os.getpid() not in {pid for pid, _, _ in found}
