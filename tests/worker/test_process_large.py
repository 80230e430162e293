"""Large arguments on their way from the keeper to a runner: what the socket does not take waits unencoded."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.records import Lease
from holdfast.worker.processes import protocol
from holdfast.worker.processes.runner_process import (
    AHEAD_MAX,
    TELL_FRAMES_MAX,
    RunnerProcess,
    Stage,
)

LARGE = b"x" * protocol.START_BYTES_TARGET


class Nobody:
    def on_frame(self, runner: RunnerProcess, frame: object) -> None: ...

    def on_closed(self, runner: RunnerProcess) -> None: ...


@asynccontextmanager
async def connected(slots: int) -> AsyncIterator[tuple[RunnerProcess, socket.socket]]:
    runner = RunnerProcess(Nobody(), 1, slots, dedicated=False)
    theirs = socket.socket(fileno=os.dup(runner.fds[0]))
    theirs.setblocking(False)
    runner.handed_over()
    await runner.connect()
    runner.stage = Stage.READY
    try:
        yield runner, theirs
    finally:
        runner.close()
        theirs.close()


def leases(number: int, args: bytes) -> list[Lease]:
    return [Lease(f"j{n}", f"t{n}", n, "send", "mail", args) for n in range(number)]


async def read(theirs: socket.socket, frames: int) -> list[object]:
    """So many frames, as the runner reads them."""
    reader, found, loop = protocol.from_keeper(), list[object](), asyncio.get_running_loop()
    while len(found) < frames:
        found += reader.received(await asyncio.wait_for(loop.sock_recv_into(theirs, reader.space()), 30.0))
    return found


async def test_all_jobs_arrive_in_order_at_a_runner_that_reads_late() -> None:
    async with connected(20) as (runner, theirs):
        jobs = leases(20, LARGE)
        runner.give(jobs)
        runner.send(protocol.Ping(1))
        await asyncio.sleep(0)
        assert runner.sending
        *starts, ping = await read(theirs, 21)
        assert [one for start in starts for one in start.leases] == jobs  # type: ignore[attr-defined]
        assert ping == protocol.Ping(1)
        assert not runner.sending


async def test_a_runner_that_has_much_to_read_gets_no_jobs_ahead_but_those_that_can_begin() -> None:
    async with connected(30) as (runner, theirs):
        runner.give(leases(20, LARGE))
        await asyncio.sleep(0)
        assert runner.room == 10
        assert runner.room_ahead(AHEAD_MAX) == 0
        await read(theirs, 20)
        assert runner.room_ahead(AHEAD_MAX) == AHEAD_MAX


async def test_small_jobs_never_count_as_much_to_read() -> None:
    async with connected(AHEAD_MAX) as (runner, theirs):
        runner.give(leases(AHEAD_MAX, b"[]"))
        await asyncio.sleep(0)
        assert not runner.sending and runner.keeps_up()
        (start,) = await read(theirs, 1)
        assert isinstance(start, protocol.Start) and len(start.leases) == AHEAD_MAX


async def test_a_runner_that_does_not_read_is_sent_no_more_events() -> None:
    async with connected(5) as (runner, theirs):
        runner.give(leases(2, LARGE))
        await asyncio.sleep(0)
        assert runner.keeps_up()
        for _ in range(TELL_FRAMES_MAX):
            runner.send(protocol.Emit([("stalled", b"")]))
        assert not runner.keeps_up()
        await read(theirs, 2 + TELL_FRAMES_MAX)
        assert runner.keeps_up()
