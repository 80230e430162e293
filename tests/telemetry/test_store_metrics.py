"""The metrics of a store: the same numbers on every store, bounded labels, and the ways they are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Holdfast
from holdfast.backends.contract import Backend, Reader
from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.cli.main import cli
from holdfast.errors import BackendUnavailable, ConfigurationError, OutcomeUnknown
from holdfast.inspection import store_metrics
from holdfast.inspection.store_metrics import Looker
from holdfast.lifecycle import State
from holdfast.metrics import STORE_METRICS, StoreCollector, create, text
from holdfast.queries.pages import JobPage
from holdfast.records import Pause, QueueRecord, WorkerRecord
from holdfast.rollups import OTHER, Recording, Rollup
from holdfast.testing.conformance import World, run_case

from ..backends.sharded.shelves import memory_stores
from ..conformance.test_conformance import STORES

Stores = Callable[[], Callable[[str], Backend]]
ALL: dict[str, Stores] = {**STORES, "router": lambda: memory_stores(3)}
del ALL["reference"]


def samples(body: bytes) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels in the order of their names."""
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


async def a_store_of_every_kind_of_number(world: World) -> None:
    world.now = world.now // 60 * 60 + 30.0
    await world.enqueue(queue="mail")
    stuck = await world.claim_one(worker="gone", lease=30.0, queues=("mail",))
    world.advance(100.0)
    await world.backend.register(_worker("here", slots=7), now=world.now)
    await world.enqueue_many(3, queue="mail")
    await world.enqueue(queue="mail", delay=20.0)
    await world.backend.pause(Pause(queue="bulk"), now=world.now)
    ended = [
        Rollup(outcome="succeeded", count=4, queue="mail", task="send", waits=(4,), runs=(0, 4)),
        Rollup(outcome="failed", count=2, queue="mail", task="send", waits=(0, 2), runs=(2,)),
        Rollup(outcome="lost", count=1, queue="mail", task="send"),
    ]
    await world.backend.record(Recording(worker="here", number=1, rollups=tuple(ended)), now=world.now)
    world.advance(60.0)
    found = await Looker().look(world.backend, world.now)
    mail, bulk = [one for one in found.queues if one.name == "mail"], [one for one in found.queues if one.paused]
    assert [one.name for one in bulk] == ["bulk"]
    assert {state: number for state, number in mail[0].counts.items() if number} == {
        "ready": 3,
        "running": 1,
        "scheduled": 1,
    }
    assert mail[0].oldest_ready_seconds == pytest.approx(60.0)
    assert found.ended == {("send", "succeeded"): 4, ("send", "failed"): 2}
    assert found.lost == {"send": 1}
    assert set(found.waits) == {"mail"} and set(found.runs) == {"send"}
    assert 0 < found.runs["send"][0.5] <= found.runs["send"][0.99] <= 0.0013
    assert found.workers == {"alive": 1, "expired": 1}
    assert found.slots == 7
    assert found.renewal_age_seconds == pytest.approx(60.0)
    assert found.sweep_lag_seconds == {"promote": pytest.approx(40.0), "recover": pytest.approx(130.0)}
    world.advance(600.0)
    later = await Looker().look(world.backend, world.now)
    assert later.ended == {} and later.lost == {}, "what ended long ago is not recent"
    await world.backend.recover(dead=["gone"], now=world.now)
    assert (await Looker().look(world.backend, world.now)).sweep_lag_seconds["recover"] == 0.0
    assert stuck.queue == "mail"


def _worker(name: str, *, slots: int) -> WorkerRecord:
    return WorkerRecord(id=name, lease_seconds=1e6, slots=slots)


@pytest.mark.parametrize("store", ALL)
def test_every_store_reports_the_same_numbers(store: str) -> None:
    run_case(a_store_of_every_kind_of_number, ALL[store]())


async def a_worker_that_lives_by_the_stores_own_clock(world: World) -> None:
    await world.backend.register(WorkerRecord(id="here", lease_seconds=600.0, slots=7))
    found = await Looker().look(world.backend)
    assert (found.workers, found.slots) == ({"alive": 1, "expired": 0}, 7)
    assert 0.0 <= found.renewal_age_seconds < 600.0
    assert found.sweep_lag_seconds == {"promote": 0.0, "recover": 0.0}
    await world.backend.retire("here")


@pytest.mark.parametrize("store", ALL)
def test_a_live_worker_is_seen_as_alive(store: str) -> None:
    run_case(a_worker_that_lives_by_the_stores_own_clock, ALL[store]())


class Counted(MemoryBackend):
    """A store with more queues and tasks than are counted separately. It counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def clock(self) -> float:
        return 1e9

    async def queues(self) -> list[QueueRecord]:
        self.asked += 1
        return [QueueRecord(name=f"q{n}", counts={State.READY: n}, oldest_due_at=1e9 - n) for n in range(250)]

    async def rollups(self, query: Any) -> list[Rollup]:
        return [Rollup(outcome="failed", count=n + 1, queue=f"q{n}", task=f"t{n}", runs=(n + 1,)) for n in range(300)]

    async def workers(self, now: float | None = None) -> list[Any]:
        return []

    async def page(self, query: Any, now: float | None = None) -> JobPage:
        return JobPage(jobs=())


def test_names_are_bounded_and_what_is_beyond_is_added_up() -> None:
    found = asyncio.run(Looker().look(Counted()))
    assert len(found.queues) == store_metrics.QUEUES_MAX + 1
    [rest] = [queue for queue in found.queues if queue.name == OTHER]
    assert rest.counts["ready"] == sum(range(150)), "the smallest ones"
    assert rest.oldest_ready_seconds == 149
    assert len({task for task, _ in found.ended}) == store_metrics.TASKS_MAX + 1
    assert sum(found.ended.values()) == sum(range(1, 301))
    assert len(found.runs) == store_metrics.TASKS_MAX + 1


class Stopwatch:
    """A clock that a slow store moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_costly_count_is_put_off() -> None:
    clock = Stopwatch()

    class Slow(Counted):
        async def queues(self) -> list[QueueRecord]:
            clock.now += 2.0
            return await super().queues()

    store, looker = Slow(), Looker(clock)
    first = asyncio.run(looker.look(store))
    clock.now += 39.0
    again = asyncio.run(looker.look(store))
    assert (store.asked, again.counts_age_seconds) == (1, 39.0), "it took 2 s, so it rests for 40 s"
    assert again.queues == first.queues
    clock.now += 1.0
    assert asyncio.run(looker.look(store)).counts_age_seconds == 0.0
    assert store.asked == 2


def test_a_store_too_large_to_be_counted_reports_the_rest() -> None:
    class TooLarge(Counted):
        async def queues(self) -> list[QueueRecord]:
            raise OutcomeUnknown("queues")

    found = asyncio.run(Looker().look(TooLarge()))
    assert found.queues == [] and found.counts_age_seconds == float("inf")
    assert len(found.runs) == store_metrics.TASKS_MAX + 1


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.named("send", queue="mail").enqueue(1)
        yield app


def test_a_collector_serves_every_metric_of_the_table_and_no_other(busy: Holdfast) -> None:
    registry = CollectorRegistry(auto_describe=True)
    collector = StoreCollector(busy)
    registry.register(collector)
    body = generate_latest(registry)
    collector.close()
    found = samples(body)
    assert found["holdfast_queue_jobs", "mail", "ready"] == 1
    assert found["holdfast_queue_jobs", "mail", "dead"] == 0
    assert found["holdfast_workers", "alive"] == 0
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert set(families) == set(STORE_METRICS)
    assert {name: family.type for name, family in families.items()} == {
        name: metric.kind for name, metric in STORE_METRICS.items()
    }
    for family in families.values():
        for sample in family.samples:
            assert set(sample.labels) == set(STORE_METRICS[family.name].labels)
    assert samples(text(busy))["holdfast_queue_jobs", "mail", "ready"] == 1


def test_a_store_in_memory_is_read_through_its_own_app() -> None:
    with Holdfast("memory://") as app:
        app.named("send").enqueue(1)
        assert samples(text(app))["holdfast_queue_jobs", "default", "ready"] == 1
        app.named("send").enqueue(1)
        assert samples(text(app))["holdfast_queue_jobs", "default", "ready"] == 2, "reading did not close the app"


async def ask(asgi: Any, method: str = "GET") -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await asgi({"type": "http", "method": method, "path": "/metrics", "headers": []}, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_the_asgi_app_serves_gets_and_closes_with_its_lifespan(busy: Holdfast) -> None:
    asgi = create(busy.url)

    async def whole() -> None:
        status, headers, body = await ask(asgi)
        assert status == 200 and headers[b"content-type"].startswith(b"text/plain; version=")
        assert samples(body)["holdfast_queue_jobs", "mail", "ready"] == 1
        assert (await ask(asgi, "HEAD"))[::2] == (200, b"")
        assert (await ask(asgi, "POST"))[0] == 405
        heard = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        told: list[str] = []

        async def receive() -> dict[str, Any]:
            return next(heard)

        async def send(message: dict[str, Any]) -> None:
            told.append(message["type"])

        await asgi({"type": "lifespan"}, receive, send)
        assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(whole())


def test_a_store_that_cannot_be_read_is_a_503_that_says_why(busy: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(self: Looker, reader: Reader, now: float | None = None) -> Any:
        raise BackendUnavailable("the store is away. Start it.")

    monkeypatch.setattr(Looker, "look", down)
    status, _, body = asyncio.run(ask(create(busy)))
    assert (status, body) == (503, b"the store is away. Start it.\n")


def test_a_collector_refuses_to_block_an_event_loop(busy: Holdfast) -> None:
    async def collects() -> None:
        StoreCollector(busy).collect()

    with pytest.raises(ConfigurationError, match=r"holdfast\.metrics\.create"):
        asyncio.run(collects())
    with pytest.raises(ConfigurationError, match="an app or a URL, not int"):
        StoreCollector(7)  # type: ignore[arg-type]


def test_the_command_prints_the_text_format_or_json(busy: Holdfast) -> None:
    shown = CliRunner().invoke(cli, ["metrics", "--url", busy.url])
    assert shown.exit_code == 0, shown.output
    assert samples(shown.stdout_bytes)["holdfast_queue_jobs", "mail", "ready"] == 1
    document = json.loads(CliRunner().invoke(cli, ["metrics", "--json", "--url", busy.url]).stdout)
    [one] = [m for m in document["metrics"] if m["labels"] == {"queue": "mail", "state": "ready"}]
    assert (one["name"], one["value"]) == ("holdfast_queue_jobs", 1)
