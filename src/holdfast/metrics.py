"""Prometheus: the metrics of a store and of a worker, as collectors, as text and as an ASGI endpoint.

The public face is `create` (an ASGI app), `StoreCollector` (for a registry of your own) and `text`. `worker_text` is
what `holdfast work --metrics-port` serves. Needs the extra `metrics`. Reads only: inspection/store_metrics.py reads the
store, worker/keeper/meter.py counts in a worker, and this module only names what they found.

Every metric is in the two tables below, with its labels and its help; docs/how-to/observability.md repeats them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from . import __version__
from .app import Holdfast
from .backends import parse_url
from .errors import ConfigurationError, HoldfastError
from .inspection.store_metrics import Looker, Numbers
from .store_thread import forbid_running_loop
from .worker.keeper.meter import BUCKET_BOUNDS, Durations, Meter

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        SummaryMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigurationError(
        f"metrics need {error.name}, which is not installed. Install it: pip install 'holdfast[metrics]'."
    ) from None

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

Kind = Literal["counter", "gauge", "histogram", "summary"]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

__all__ = ["CONTENT_TYPE_LATEST", "STORE_METRICS", "WORKER_METRICS", "Metric", "StoreCollector", "create", "text"]


class Metric(NamedTuple):
    """A metric as it is exported."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


def _catalogue(table: str) -> Mapping[str, Metric]:
    """The metrics of a table: a line with name, kind and labels, then a line with the help."""
    lines = table.strip().splitlines()
    metrics = [(*head.split(), text.strip()) for head, text in zip(lines[::2], lines[1::2], strict=True)]
    return {name: Metric(name, cast(Kind, kind), tuple(labels), text) for name, kind, *labels, text in metrics}


STORE_METRICS = _catalogue("""
holdfast_queue_jobs gauge queue state
    Jobs of a queue in a state.
holdfast_queue_oldest_ready_seconds gauge queue
    How long the oldest ready job has been due; of more than 10,000, of those that are claimed first.
holdfast_queue_paused gauge queue
    1 while an operator has paused the queue.
holdfast_recent_attempts gauge task outcome
    Attempts that ended this way in the last five whole minutes, over all workers.
holdfast_recent_lost_leases gauge task
    Leases that workers lost in the last five whole minutes: another worker may have run the job meanwhile.
holdfast_recent_wait_seconds gauge queue quantile
    From due until leased, of attempts that ended in the last five whole minutes.
holdfast_recent_run_seconds gauge task quantile
    From leased until ended, of attempts that ended in the last five whole minutes.
holdfast_workers gauge state
    Registered workers: alive, or expired and not yet recovered.
holdfast_slots gauge
    Slots of all workers that are alive.
holdfast_renewal_age_seconds gauge
    Since the last renewal of the live worker that has been silent longest.
holdfast_sweep_lag_seconds gauge sweep
    How late sweeps are: a due job not yet promoted, an expired lease not yet recovered.
holdfast_counts_age_seconds gauge
    Since the jobs were counted; large stores are counted less often.
holdfast_scrape_seconds gauge
    How long reading the store took.
holdfast_build_info gauge version
    Always 1; the version that exports this.
""")

WORKER_METRICS = _catalogue("""
holdfast_jobs_total counter queue task outcome
    Attempts that ended in this worker, and stalled ones of other workers that it recovered.
holdfast_job_wait_seconds histogram queue task
    From due until leased.
holdfast_job_run_seconds histogram queue task
    From leased until the outcome was sent to the store.
holdfast_job_stalls_total counter queue task
    Stalls: a process of this worker died, or it recovered a lease of a worker that fell silent.
holdfast_lost_leases_total counter queue task
    Leases this worker lost: their handlers were stopped, their outcomes not recorded.
holdfast_worker_running_jobs gauge
    Slots in use.
holdfast_worker_slots gauge
    Jobs this worker runs at once.
holdfast_worker_runners gauge state
    Runner processes, by state.
holdfast_worker_ready gauge
    1 if a job could start here now.
holdfast_worker_paused gauge
    1 while an operator has paused this worker.
holdfast_worker_fenced gauge
    1 while handlers are stopped because no renewal succeeded in time.
holdfast_worker_renewal_age_seconds gauge
    Since the last successful renewal was sent.
holdfast_worker_sweep_age_seconds gauge sweep
    Since this worker's sweep last ended well.
holdfast_worker_store_silent_seconds gauge
    Since the store last answered; 0 if it answers.
holdfast_store_call_seconds summary verb
    Calls to the store, by verb; exchange settles and claims.
holdfast_store_call_errors_total counter verb
    Calls to the store that failed or timed out.
holdfast_build_info gauge version
    Always 1; the version that exports this.
""")


# ----------------------------------------------------------------------------------------------------------------------
# The store


class StoreCollector(Collector):
    """The metrics of a store, for a registry: `registry.register(StoreCollector(app))`."""

    def __init__(self, app_or_url: Holdfast | str) -> None:
        if not isinstance(app_or_url, Holdfast | str):
            raise ConfigurationError(f"create() takes an app or a URL, not {type(app_or_url).__name__}.")
        url = app_or_url if isinstance(app_or_url, str) else app_or_url.url
        # A separate app: reading must not declare the user's rules. Only memory:// cannot be shared this way.
        self._own = not (isinstance(app_or_url, Holdfast) and parse_url(url).scheme == "memory")
        self.app = app_or_url if isinstance(app_or_url, Holdfast) and not self._own else Holdfast(url)
        self.looker = Looker()

    def describe(self) -> Iterator[Family]:
        """Names and helps, without reading the store."""
        return iter([_family(metric) for metric in STORE_METRICS.values()])

    def collect(self) -> Iterator[Family]:
        """Read the store. Called by the registry, on a thread without a running event loop."""
        forbid_running_loop(
            "StoreCollector.collect()", "", advice="Serve holdfast.metrics.create(app), which does not block it."
        )
        began = time.monotonic()
        return iter(_store_families(self.app._do("metrics", self.looker.look), time.monotonic() - began))

    async def aclose(self) -> None:
        """Close the connection to the store."""
        if self._own:
            await self.app.aclose()

    def close(self) -> None:
        """Close the connection to the store."""
        if self._own:
            self.app.close()


def text(app_or_url: Holdfast | str) -> bytes:
    """The store's metrics in Prometheus' text format; `CONTENT_TYPE_LATEST` is its media type."""
    collector = StoreCollector(app_or_url)
    try:
        return written(collector.collect())
    finally:
        collector.close()


def create(app_or_url: Holdfast | str) -> Asgi:
    """An ASGI app that serves the store's metrics at every path, to run or to mount: `app.mount("/metrics", …)`.

    It asks for no password: mount it where only your monitoring reaches it, or use the dashboard's /metrics.
    """
    collector = StoreCollector(app_or_url)

    async def asgi(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send, collector.aclose)
        elif scope["type"] == "http":
            await _reply(send, scope["method"], *await scrape(collector.app, collector.looker))

    return asgi


async def scrape(app: Holdfast, looker: Looker) -> tuple[int, str, bytes]:
    """Status, media type and body of a reply: 503 and the reason if the store cannot be read."""
    began = time.monotonic()
    try:
        numbers = await app._ado(looker.look)
        return 200, CONTENT_TYPE_LATEST, written(_store_families(numbers, time.monotonic() - began))
    except HoldfastError as error:
        return 503, "text/plain; charset=utf-8", f"{error}\n".encode()


async def _live(receive: Receive, send: Send, close: Callable[[], Awaitable[None]]) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await close()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _reply(send: Send, method: str, status: int, kind: str, body: bytes) -> None:
    if method not in ("GET", "HEAD"):
        status, kind, body = 405, "text/plain; charset=utf-8", b"Metrics are read with GET.\n"
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})


def _store_families(numbers: Numbers, seconds: float) -> list[Family]:
    out = _Families(STORE_METRICS)
    for queue in numbers.queues:
        for state, number in queue.counts.items():
            out.add("holdfast_queue_jobs", number, queue.name, state)
        out.add("holdfast_queue_oldest_ready_seconds", queue.oldest_ready_seconds, queue.name)
        out.add("holdfast_queue_paused", queue.paused, queue.name)
    for (task, outcome), number in numbers.ended.items():
        out.add("holdfast_recent_attempts", number, task, outcome)
    for task, number in numbers.lost.items():
        out.add("holdfast_recent_lost_leases", number, task)
    for name, times in (("holdfast_recent_wait_seconds", numbers.waits), ("holdfast_recent_run_seconds", numbers.runs)):
        for whose, values in times.items():
            for share, value in values.items():
                out.add(name, value, whose, f"{share:g}")
    for state, number in numbers.workers.items():
        out.add("holdfast_workers", number, state)
    out.add("holdfast_slots", numbers.slots)
    out.add("holdfast_renewal_age_seconds", numbers.renewal_age_seconds)
    for sweep, lag in numbers.sweep_lag_seconds.items():
        out.add("holdfast_sweep_lag_seconds", lag, sweep)
    out.add("holdfast_counts_age_seconds", numbers.counts_age_seconds)
    out.add("holdfast_scrape_seconds", seconds)
    out.add("holdfast_build_info", 1, __version__)
    return out.families


# ----------------------------------------------------------------------------------------------------------------------
# A worker


# Each is there from the start, as 0: a monitor does not see the first increase of a counter that was not there.
OUTCOMES = ("succeeded", "failed", "snoozed", "dead", "cancelled", "stalled")
_process = ProcessCollector(registry=None)  # of the keeper's own process: processor time, memory, open files


def worker_text(meter: Meter, status: Mapping[str, Any], ages: Mapping[str, float]) -> bytes:
    """A worker's metrics in the text format. `status` is what its probes report; ages are of Keeper.ages."""
    return written([*_worker_families(meter, status, ages), *_process.collect()])


def _worker_families(meter: Meter, status: Mapping[str, Any], ages: Mapping[str, float]) -> list[Family]:
    out = _Families(WORKER_METRICS)
    for pair in {**meter.runs, **meter.stalls, **meter.lost}:
        for outcome in OUTCOMES:
            out.add("holdfast_jobs_total", meter.ended.get((*pair, outcome), 0), *pair, outcome)
        out.add("holdfast_job_stalls_total", meter.stalls.get(pair, 0), *pair)
        out.add("holdfast_lost_leases_total", meter.lost.get(pair, 0), *pair)
    for name, durations in (("holdfast_job_wait_seconds", meter.waits), ("holdfast_job_run_seconds", meter.runs)):
        for pair, counted in durations.items():
            out.add_durations(name, counted, *pair)
    out.add("holdfast_worker_running_jobs", status.get("running", 0))
    out.add("holdfast_worker_slots", status.get("slots", 0))
    states = [runner["state"] for runner in status.get("runners", ())]
    for state in sorted(set(states)):
        out.add("holdfast_worker_runners", states.count(state), state)
    for flag in ("ready", "paused", "fenced"):
        out.add(f"holdfast_worker_{flag}", bool(status.get(flag)))
    for what, age in ages.items():
        if what == "renew":
            out.add("holdfast_worker_renewal_age_seconds", age)
        else:
            out.add("holdfast_worker_sweep_age_seconds", age, what)
    out.add("holdfast_worker_store_silent_seconds", status.get("store_silent_seconds", 0.0))
    for verb, calls in meter.calls.items():
        out.add_summary("holdfast_store_call_seconds", calls.number, calls.seconds, verb)
        out.add("holdfast_store_call_errors_total", calls.errors, verb)
    out.add("holdfast_build_info", 1, __version__)
    return out.families


# ----------------------------------------------------------------------------------------------------------------------
# Writing


_KINDS: dict[Kind, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


def _family(metric: Metric) -> Any:
    return _KINDS[metric.kind](metric.name, metric.help, labels=metric.labels)


class _Families:
    """One family for each metric of a table."""

    def __init__(self, table: Mapping[str, Metric]) -> None:
        self._named: dict[str, Any] = {name: _family(metric) for name, metric in table.items()}

    @property
    def families(self) -> list[Family]:
        return list(self._named.values())

    def add(self, name: str, value: float, *labels: str) -> None:
        self._named[name].add_metric(labels, value)

    def add_summary(self, name: str, number: int, total: float, *labels: str) -> None:
        self._named[name].add_metric(labels, count_value=number, sum_value=total)

    def add_durations(self, name: str, counted: Durations, *labels: str) -> None:
        self._named[name].add_metric(labels, buckets=_cumulated(counted.counts), sum_value=counted.seconds)


def _cumulated(counts: Sequence[int]) -> list[tuple[str, int]]:
    """Prometheus' buckets: how many took at most this long."""
    found: list[tuple[str, int]] = []
    total = 0
    for bound, number in zip([*(f"{bound:g}" for bound in BUCKET_BOUNDS), "+Inf"], counts, strict=True):
        total += number
        found.append((bound, total))
    return found


class _Once(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        return iter(self._families)


def written(families: Iterable[Family]) -> bytes:
    """Families of metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families))
    return generate_latest(registry)
