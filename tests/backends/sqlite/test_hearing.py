"""Waiting for work on SQLite: writes to the log are reported by inotify; otherwise the file is polled."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.backends.sqlite import claim, wakeups
from holdfast.backends.sqlite.backend import SqliteBackend
from holdfast.records import ClaimRequest, NewJob, WorkerRecord

WAIT_SECONDS_MAX = 60
LONG_SECONDS = 600.0

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's file watch is Linux's")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(str(tmp_path / "jobs.db"))
    asyncio.run(backend.open())
    yield backend
    asyncio.run(backend.close())


def spy_on(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call of this method of a wait."""
    calls: list[str] = []
    real = getattr(wakeups.Wait, name)

    def noting(wait: wakeups.Wait) -> None:
        calls.append(name)
        real(wait)

    monkeypatch.setattr(wakeups.Wait, name, noting)
    return calls


def stranger_enqueues(backend: SqliteBackend, name: str) -> None:
    """In a transaction of the caller's own: nobody is nudged and nobody calls out."""
    connection = sqlite3.connect(backend.path)
    with connection:
        backend.enqueue_on(connection, [NewJob(id=name, task="t")])
    connection.close()


async def asleep(backend: SqliteBackend) -> asyncio.Task[bool]:
    """A wait that has asked for the first time and sleeps."""
    waiting = asyncio.create_task(backend.wait_for_work(("default",), LONG_SECONDS))
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            await asyncio.sleep(0)
            if (own := backend._wakeups) is not None and own._waiting:
                return waiting


async def ends(waiting: asyncio.Task[bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        await waiting


def test_a_file_that_has_not_changed_is_not_searched_again(
    backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = Mock(wraps=claim.work_at_hand)
    monkeypatch.setattr(claim, "work_at_hand", searches)

    async def waits(queue: str = "default") -> bool:
        return await backend.wait_for_work((queue,), 0.001)

    async def scene() -> None:
        assert not await waits() and not await waits()
        assert searches.call_count == 1
        assert not await waits("other")
        assert searches.call_count == 2, "other queues are another question"
        soon = time.time() + 0.05
        await backend.enqueue([NewJob(id="a", task="t", delay=0.05)], now=soon - 0.05)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not await waits():
                assert time.time() < soon + WAIT_SECONDS_MAX
        assert time.time() >= soon
        assert await waits(), "what is at hand stays at hand"

    asyncio.run(scene())


@linux
def test_a_strangers_commit_is_heard(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = spy_on("_written", monkeypatch)

    async def scene() -> None:
        waiting = await asleep(backend)
        await asyncio.to_thread(stranger_enqueues, backend, "a")
        await ends(waiting)

    asyncio.run(scene())
    assert heard


@linux
def test_who_calls_out_is_heard_at_once(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        heard = asyncio.Event()
        monkeypatch.setattr(wakeups.Wait, "_committed", lambda _: heard.set())
        waiting = await asleep(backend)
        wakeups.call_out(backend.path)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await heard.wait()
        assert not waiting.done()  # nothing was committed
        await backend.enqueue([NewJob(id="a", task="t")])
        await ends(waiting)

    asyncio.run(scene())


@linux
def test_a_watch_that_missed_a_change_polls_from_then_on(
    backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere-wal").touch()
    deaf = wakeups.open_ear(str(tmp_path / "elsewhere"))
    assert deaf is not None
    monkeypatch.setattr(wakeups, "open_ear", lambda _: deaf)

    async def scene() -> None:
        waiting = await asleep(backend)
        own = backend._wakeups
        assert own is not None
        assert own._hears
        await asyncio.to_thread(stranger_enqueues, backend, "a")
        await ends(waiting)
        assert not own._hears
        assert not deaf.taken

    asyncio.run(scene())


@linux
def test_a_change_whose_event_was_read_with_the_one_before_was_not_missed(
    backend: SqliteBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commits in a row, as of a worker that starts: else an idle worker beside it polls for good."""
    log = tmp_path / "elsewhere-wal"
    log.touch()
    ear = wakeups.open_ear(str(tmp_path / "elsewhere"))
    monkeypatch.setattr(wakeups, "open_ear", lambda _: ear)

    real = wakeups.Wait._written

    async def scene() -> None:
        heard = asyncio.Event()

        def written(wait: wakeups.Wait) -> None:
            real(wait)
            heard.set()

        monkeypatch.setattr(wakeups.Wait, "_written", written)
        waiting = await asleep(backend)
        own = backend._wakeups
        assert own is not None
        [wait] = own._waits
        log.write_bytes(b"both commits")
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            await heard.wait()
        wait.begin_again()  # the first was seen
        await asyncio.to_thread(stranger_enqueues, backend, "the second")
        await ends(waiting)
        assert own._hears

    asyncio.run(scene())


def test_where_nothing_can_be_heard_the_file_is_asked(backend: SqliteBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "_libc", lambda: None)

    async def scene() -> None:
        waiting = await asleep(backend)
        await asyncio.to_thread(stranger_enqueues, backend, "a")
        await ends(waiting)

    asyncio.run(scene())


@linux
def test_what_a_claim_of_its_own_did_not_see_is_noticed(backend: SqliteBackend) -> None:
    """A claim is a look, so the next one is put off; what came right after it must not be lost with it."""

    async def scene() -> None:
        await backend.register(WorkerRecord(id="w", lease_seconds=60.0))
        waiting = await asleep(backend)
        for call in range(1, 30):
            await backend.claim(ClaimRequest(worker="w", call=call, queues=("default",), most=1))
        await asyncio.to_thread(stranger_enqueues, backend, "a")
        await ends(waiting)

    asyncio.run(scene())


@linux
def test_the_kernel_reports_nothing_of_a_claim_of_its_own(tmp_path: Path) -> None:
    """An event for each page that it writes would only be discarded."""
    (tmp_path / "jobs.db-wal").touch()
    ear = wakeups.open_ear(str(tmp_path / "jobs.db"))
    assert ear is not None
    written, committed = Mock(), Mock()

    def write() -> int:
        with (tmp_path / "jobs.db-wal").open("a") as wal:
            wal.write("page")
        wakeups.call_out(str(tmp_path / "jobs.db"))
        return ear._read()

    async def scene() -> None:
        assert not ear.attend(written, committed)
        assert write()
        ear.rest()
        before = ear.heard_at
        assert not write()
        ear.go_on()
        assert ear.heard_at > before, "what was written meanwhile may become visible later, and was not missed"
        assert write()
        ear.rest()
        ear.leave()
        assert ear.is_new, "what was written meanwhile is looked for"
        assert write()
        ear.close()

    asyncio.run(scene())


@linux
def test_a_change_that_a_wait_sees_during_a_claim_of_its_own_was_not_missed(backend: SqliteBackend) -> None:
    async def scene() -> None:
        waiting = await asleep(backend)
        own = backend._wakeups
        assert own is not None
        [wait] = own._waits
        with own.claiming():
            wait._time_is_up()  # just before the claim
            await asyncio.to_thread(stranger_enqueues, backend, "a")
            await ends(waiting)
        assert own._hears

    asyncio.run(scene())


@linux
def test_waits_and_stores_leave_no_handle_open(tmp_path: Path) -> None:
    async def scene() -> None:
        backend = SqliteBackend(str(tmp_path / "jobs.db"))
        await backend.open()
        for _ in range(3):
            await backend.wait_for_work(("default",), 0.005)
        waiting = await asleep(backend)
        await backend.close()
        waiting.cancel()
        await asyncio.wait({waiting})

    def watches() -> int:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum("inotify" in os.readlink(link) for link in links if os.path.islink(link))

    before = watches()
    asyncio.run(scene())
    assert watches() == before


@linux
def test_a_wait_that_follows_a_quiet_one_begins_with_rare_checks(backend: SqliteBackend) -> None:
    """What becomes visible later is reported later; what was reported between two waits is looked for at once."""

    async def scene() -> None:
        async def first_pause() -> tuple[float, bool]:
            waiting = await asleep(backend)
            own = backend._wakeups
            assert own is not None
            waits = [wait for wait in own._waits if wait.listening]
            found = waits[0]._seconds, waits[0]._nudged
            waiting.cancel()
            await asyncio.wait({waiting})
            return found

        seconds, told = await first_pause()
        assert (seconds < wakeups.HEARING_SECONDS_MAX, told) == (True, False), "nothing before it was reported"
        assert await first_pause() == (wakeups.HEARING_SECONDS_MAX, False)
        await backend.register(WorkerRecord(id="w", lease_seconds=60.0))
        seconds, told = await first_pause()
        assert (seconds < wakeups.HEARING_SECONDS_MAX, told) == (True, True)

    asyncio.run(scene())


def test_checks_after_a_reported_write_are_few_whatever_becomes_visible_meanwhile() -> None:
    """A worker's own renewals and sweeps are reported, too: each cost an idle worker 24 to 40 checks."""

    async def scene() -> None:
        wait = wakeups.Wait(asyncio.Event())
        assert wait.listen(Mock(taken=False, is_new=True))

        async def pauses() -> list[float]:
            found = list[float]()
            while not found or found[-1] < wakeups.HEARING_SECONDS_MAX:
                found.append(wait._seconds)
                wait.begin_again()  # something was visible
                wait._time_is_up()
                await wait.pause(0.0)
            return found

        wait.go_on()  # after its own claim
        assert (await pauses())[:4] == [0.002, 0.004, 0.008, 0.016]
        wait._written()
        found = await pauses()
        assert found[:4] == [0.001, 0.002, 0.004, 0.008] and len(found) == 10
        wait.listen_no_more()
        wait.begin_again()
        assert wait._seconds == wakeups.POLL_SECONDS_MIN, "what is not reported is looked for"
        wait.close()

    asyncio.run(scene())


@pytest.mark.parametrize(("left", "longest"), [(0.55, 0.55), (30.0, wakeups.HEARING_SECONDS_MAX)])
def test_a_rare_check_just_before_a_wait_ends_is_left_out(
    left: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "until_tick", lambda seconds: seconds)

    async def scene() -> None:
        loop, wait = asyncio.get_running_loop(), wakeups.Wait(asyncio.Event())
        assert wait.listen(Mock(taken=False, is_new=True))
        wait._seconds = wakeups.HEARING_SECONDS_MAX
        before = loop.time()
        pausing = asyncio.create_task(wait.pause(left))
        await asyncio.sleep(0)
        assert wait._timer is not None
        seconds = wait._timer.when() - before
        assert (seconds >= left) == (left == longest)
        wait._time_is_up()
        await pausing
        wait.close()

    asyncio.run(scene())
