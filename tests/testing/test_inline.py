"""drain(inline=True): handlers in the calling thread, in the caller's transaction and context."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Bury, Context, Holdfast, Retry, RetryPolicy, Snooze
from holdfast.errors import ConfigurationError
from holdfast.testing import Sandbox, sandbox

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    app = Holdfast(f"sqlite:///{tmp_path}/real.db")
    with sandbox(app) as box:
        yield box
    assert list(tmp_path.iterdir()) == []


def test_a_sync_handler_sees_the_open_transaction_of_the_calling_thread(box: Sandbox) -> None:
    database = sqlite3.connect(":memory:")  # refuses any other thread
    database.execute("CREATE TABLE orders (id)")
    database.commit()
    database.execute("INSERT INTO orders VALUES (7)")  # not committed
    seen: list[object] = []

    @box.app.task(name="ship", retry=0)
    def ship(order: int) -> str:
        seen.append(database.execute("SELECT id FROM orders WHERE id = ?", (order,)).fetchone())
        WHO.set("changed by the handler")
        return f"{threading.current_thread().name} {WHO.get()}"

    WHO.set("the test")
    job = ship.enqueue(7)
    assert box.drain(inline=True).succeeded == 1
    assert seen == [(7,)]
    assert job.result(0) == f"{threading.current_thread().name} changed by the handler"
    assert WHO.get() == "the test"
    ship.enqueue(7)
    assert box.drain().failed == 1  # in a thread of its own: sqlite3 refuses
    database.rollback()
    database.close()


def test_handlers_have_the_callers_context_and_may_enqueue(box: Sandbox) -> None:
    @box.app.task(name="second")
    async def second(number: int) -> str:
        return f"{number} for {WHO.get()} in {threading.current_thread().name}"

    async def of_its_own() -> str:
        return "a loop of its own"

    @box.app.task(name="first")
    def first() -> str:
        second.enqueue(2)  # no loop is running here, as in a worker's thread
        assert asyncio.run(of_its_own()) == "a loop of its own"
        return WHO.get()

    WHO.set("ann")
    job = first.enqueue()
    assert box.drain(inline=True).succeeded == 2
    assert job.result(0) == "ann"
    [after] = box.enqueued(second)
    assert after.value == f"2 for ann in {threading.current_thread().name}"


def test_one_job_runs_at_a_time_in_order(box: Sandbox) -> None:
    steps: list[str] = []

    @box.app.task(name="step")
    async def step(name: str) -> None:
        steps.append(f"{name} begins")
        await asyncio.sleep(0)
        steps.append(f"{name} ends")

    for name in "abc":
        step.enqueue(name)
    box.drain(inline=True)
    assert steps == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    with pytest.raises(ConfigurationError, match="one job at a time"):
        box.drain(inline=True, slots=4)


def test_on_a_running_loop_everything_runs_on_its_thread(box: Sandbox) -> None:
    @box.app.task(name="plain")
    def plain() -> str:
        later.enqueue()  # allowed: no loop is running as far as a sync handler can see
        return threading.current_thread().name

    @box.app.task(name="later")
    async def later() -> bool:
        return asyncio.get_running_loop() is loops[0]

    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        job = await plain.aenqueue()
        assert (await box.adrain(inline=True)).succeeded == 2
        assert asyncio.get_running_loop() is loops[0]
        assert await job.aresult(0) == threading.current_thread().name
        [then] = box.enqueued(later)
        assert then.value is True
        with pytest.raises(ConfigurationError, match="adrain"):
            box.drain(inline=True)

    asyncio.run(main())


def test_failures_are_recorded_and_raised_on_demand(box: Sandbox) -> None:
    @box.app.task(name="odd", retry=RetryPolicy.fixed(60, limit=1))
    def odd(how: str) -> None:
        if how == "exit":
            raise SystemExit(3)
        raise {"error": ValueError("no"), "bury": Bury("never"), "retry": Retry(), "snooze": Snooze(60)}[how]

    job = odd.enqueue("error")
    assert box.drain(inline=True).failed == 1
    assert (job.refresh().state, job.failures) == ("scheduled", 1)
    box.clock.advance(minutes=1)
    with pytest.raises(ValueError, match="no") as caught:
        box.drain(inline=True, raises=True)
    assert "odd" in [entry.name for entry in caught.traceback]  # the handler's own traceback
    assert job.refresh().state == "dead"
    for how, kind in (("bury", Bury), ("retry", Retry), ("exit", SystemExit)):
        with pytest.raises(kind):
            box.run(odd.enqueue(how), inline=True, raises=True)
    assert box.run(odd.enqueue("snooze"), inline=True, raises=True).state == "scheduled"
    assert box.run(odd.enqueue("exit"), inline=True).failures == 1
    with pytest.raises(ConfigurationError, match="inline=True only"):
        box.drain(raises=True)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_is_meant_for_the_program_comes_out_and_stops_the_drain(
    box: Sandbox, interrupt: type[BaseException]
) -> None:
    ran: list[int] = []

    @box.app.task(name="work", retry=0)
    def work(number: int) -> None:
        ran.append(number)
        raise interrupt()

    work.enqueue(1)
    work.enqueue(2)
    with pytest.raises(interrupt):
        box.drain(inline=True)
    assert ran == [1]
    assert [job.state for job in box.enqueued(work)] == ["dead", "ready"]
    assert box.app.audit().violations == []


def test_a_timeout_stops_an_async_handler_and_leaves_a_sync_one(box: Sandbox) -> None:
    @box.app.task(name="waits", timeout=0.01, retry=0)
    async def waits() -> None:
        await asyncio.Event().wait()

    @box.app.task(name="blocks", timeout=0.001)
    def blocks(ctx: Context) -> bool:
        while ctx.remaining:
            pass
        return ctx.cancelled

    late = waits.enqueue()
    with pytest.raises(TimeoutError, match=r"its timeout of 0\.01 s"):
        box.drain(inline=True, raises=True)
    assert late.refresh().state == "dead"
    assert box.run(blocks.enqueue(), inline=True).value is False


def test_a_drain_inside_a_handler_is_refused_instead_of_waiting_for_itself(box: Sandbox) -> None:
    @box.app.task(name="nested", retry=0)
    def nested() -> None:
        box.drain(inline=True)

    with pytest.raises(ConfigurationError, match="inside a handler"):
        box.run(nested.enqueue(), inline=True, raises=True)
