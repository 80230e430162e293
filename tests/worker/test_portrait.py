"""A worker's portrait: it fits whatever there is to show, and is sent when it changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from holdfast.backends.sqlite.memory import MemoryBackend
from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown
from holdfast.events import Hub
from holdfast.options import WorkerOptions
from holdfast.records import Held, Renewal
from holdfast.worker.keeper.lease_renewal import LeaseRenewer, Ledger
from holdfast.worker.keeper.runners import InProcessRunners, Signals
from holdfast.worker.keeper.store_client import StoreClient
from holdfast.worker_status import JOBS_SHOWN_MAX, PORTRAIT_BYTES_MAX, RunnerView, WorkerStatus, bounded, draw, read


def runner(pid: int, jobs: int) -> RunnerView:
    ids = tuple(f"0190a5d2-{pid:04}-7000-8000-{n:012}" for n in range(jobs))
    return RunnerView(
        pid=pid,
        state="ready",
        alone=False,
        slots=jobs,
        running=jobs,
        done=10**9,
        memory_bytes=1 << 40,
        responds=True,
        jobs=ids,
    )


@pytest.mark.parametrize("runners", [0, 1, 8, 20, 64, 96, 1000])
def test_it_fits_and_tells_of_every_runner_it_leaves_out(runners: int) -> None:
    drawn = draw([runner(pid, 30) for pid in range(runners)])
    assert len(drawn) <= PORTRAIT_BYTES_MAX
    assert bounded(drawn) == drawn
    found = read(drawn)
    assert found is not None
    assert len(found.runners) + found.left_out == runners
    assert [one.pid for one in found.runners] == list(range(len(found.runners)))
    assert all(one.running == 30 and len(one.jobs) <= JOBS_SHOWN_MAX for one in found.runners)
    assert (found.left_out > 0) == (runners == 1000)


def test_jobs_are_left_out_before_runners_are() -> None:
    few, many = read(draw([runner(1, 30)])), read(draw([runner(pid, 30) for pid in range(64)]))
    assert few is not None and many is not None
    assert len(few.runners[0].jobs) == JOBS_SHOWN_MAX
    assert {len(one.jobs) for one in many.runners} == {1}


def test_what_cannot_be_read_is_nothing_and_what_is_newer_is_read_as_far_as_it_goes() -> None:
    for broken in (None, b"", b"\xff", b"[]", b'{"runners": 5}'):
        assert read(broken) is None
    newer = msgspec.to_builtins(WorkerStatus(runners=(runner(1, 1),))) | {"mood": "fine"}
    assert read(msgspec.json.encode(newer)) == WorkerStatus(runners=(runner(1, 1),))


def test_one_that_is_too_long_is_not_taken() -> None:
    assert bounded(b"x" * PORTRAIT_BYTES_MAX) is not None
    assert bounded(b"x" * (PORTRAIT_BYTES_MAX + 1)) is None
    assert bounded(None) is None


class Recording(MemoryBackend):
    """Records the portraits it gets, and fails on request."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[bytes | None] = []
        self.silent = False

    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        self.came.append(portrait)
        if self.silent:
            raise OutcomeUnknown("renew")
        return await super().renew(worker, held, seen_call=seen_call, portrait=portrait, now=now)


class Runners(InProcessRunners):
    """Runners with a status of the test's making."""

    shown = b"1"

    def status(self) -> bytes | None:
        return self.shown


async def make_renewal() -> tuple[Recording, Runners, LeaseRenewer]:
    backend, options = Recording(), WorkerOptions()
    await backend.open()
    signals = Signals()
    runners, store = Runners(Mock(), Hub(), signals), StoreClient(backend, SystemClock(), 5.0)
    renewal = LeaseRenewer(store, runners, signals, Ledger(10, {}), options, ("mail",))
    await renewal.enter()
    return backend, runners, renewal


async def test_it_is_sent_until_the_store_has_it_and_again_when_it_changed() -> None:
    backend, runners, renewal = await make_renewal()
    backend.silent = True
    await renewal.renew()
    backend.silent = False
    for runners.shown in (b"1", b"1", b"2", b"2"):
        assert await renewal.renew()
    assert backend.came == [b"1", b"1", None, b"2", None]


async def test_a_worker_under_a_new_name_shows_itself_anew() -> None:
    backend, _, renewal = await make_renewal()
    await renewal.renew()
    await backend.retire(renewal.worker.id)
    for _ in range(2):  # the first learns that it is unknown
        await renewal.renew()
    assert [(one.id, one.portrait) for one in await backend.workers()] == [(renewal.worker.id, b"1")]


async def test_changed_queues_are_published_once_after_the_next_renewal() -> None:
    backend, _, renewal = await make_renewal()
    renewal.serve(("mail", "pdf"))
    assert [one.queues for one in await backend.workers()] == [("mail",)]
    await renewal.renew()
    assert [(one.queues, one.portrait) for one in await backend.workers()] == [(("mail", "pdf"), b"1")]
    backend.register = AsyncMock()  # type: ignore[method-assign]
    await renewal.renew()
    backend.register.assert_not_called()


async def test_runners_that_came_are_shown_long_before_a_renewal_is_due() -> None:
    backend, runners, renewal = await make_renewal()
    renewing = asyncio.ensure_future(renewal.renew_forever())

    async def shown(portrait: bytes) -> None:
        while portrait not in backend.came:  # noqa: ASYNC110 - the test's deadline bounds it
            await asyncio.sleep(0)

    await shown(b"1")  # the row was new
    runners.shown = b"2"
    runners.signals.status_changed.set()
    await shown(b"2")
    assert len(backend.came) == 2
    renewing.cancel()
