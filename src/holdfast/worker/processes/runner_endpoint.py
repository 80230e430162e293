"""The runner-process side of the keeper protocol.

Called by the runner's main program after importing the app. Handlers run on this loop and in threads, through the same
Runner as in the embedded worker. It holds no store connection: only the keeper handles leases. If the keeper is gone,
it exits at once, whatever its handlers are doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...clock import read_steady
from ...context import Context, Ended, Resources, Stop, Unknown
from ...events import CALLBACKS_WITHIN_SECONDS, EVENTS
from ...lifecycle import Settlement
from ...options import SLOTS_ASYNC, SLOTS_DEFAULT
from ...records import Lease, Release, SettlementWithJobs
from ...worker_status import SlotsFrom
from ..keeper.declare import declared_by
from ..keeper.reports import Reports
from ..runner.attempt import Runner
from . import protocol
from .begin_flags import BeginFlags
from .guard import DUMP_SIGNAL
from .resource_limits import OUT_OF_MEMORY, Limits

if TYPE_CHECKING:
    from ..embedded import HostApp

BROKEN = 73  # exit code: Holdfast's own code failed here, so its outcomes cannot be trusted; each job is rerun alone
KEEPER_GONE = 71  # exit code: no keeper is left to report to
FORKED_CHILD = 72  # exit code of a forked child that did not exec or exit by itself


def listen_for_dumps(dump_fd: int) -> None:
    """Dump stacks to this descriptor if the keeper asks or this process crashes, even if the interpreter is stuck."""
    faulthandler.enable(dump_fd, all_threads=True)
    faulthandler.register(DUMP_SIGNAL, dump_fd, all_threads=True, chain=False)


def slots_for(app: HostApp, chosen: int | None, queues: Sequence[str] | None) -> tuple[int, SlotsFrom]:
    """How many jobs a runner of a worker for these queues (None: all) runs at once, and where the number comes from.

    A waiting coroutine costs little; a thread costs a stack and often a connection. So the default is higher if no job
    that comes here needs a thread: all tasks of the served queues, and the catch-all, are async. Isolated tasks do not
    count, because they run elsewhere. Batch handlers do: each of their slots holds many jobs.
    """
    if chosen is not None:
        return chosen, "option"
    served = [
        task
        for task in app.tasks.values()
        if queues is None or task.defaults.queue in queues or task.defaults.catch_all
    ]
    here = [task for task in served if task.defaults.isolation != "process"]
    if here and all(task.is_async and not task.is_batch for task in here):
        return SLOTS_ASYNC, "async"
    return SLOTS_DEFAULT, "threads"


def hello(app: HostApp, url: str, result_bytes_max: int, slots: int, slots_from: SlotsFrom) -> protocol.Hello:
    """What the keeper must know about this app."""
    tasks = [
        protocol.TaskFacts(
            task.name,
            task.defaults.queue,
            task.defaults.timeout,
            task.defaults.isolation == "process",
            task.defaults.memory_limit,
            task.defaults.cpu_limit,
            task.defaults.aliases,
            task.defaults.retry.limit,
            task.defaults.retain,
            task.defaults.batch,
            task.defaults.batch_within,
            task.defaults.on_exit == "failure",
            task.defaults.on_timeout,
            task.defaults.catch_all,
        )
        for task in app.tasks.values()
    ]
    app._hooks.chain(app.tasks.values())  # raises if a middleware does not fit a task
    facts = app._hub.names, result_bytes_max, slots, slots_from
    return protocol.Hello(protocol.VERSION, os.getpid(), url, declared_by(app), tasks, *facts)


class RunnerEndpoint(asyncio.BufferedProtocol):
    """The runner's end of the socket."""

    def __init__(
        self,
        app: HostApp,
        setup: protocol.Setup,
        slots: int,
        begin_flags: BeginFlags,
        on_end: Callable[[Context], None] | None = None,
        resources: Resources | None = None,
    ) -> None:
        self._app, self._begin_flags, self._resources = (
            app,
            begin_flags,
            Resources() if resources is None else resources,
        )
        self._limits = Limits() if setup.dedicated else None
        self._output = sys.stdout  # as the app has set it
        self._reader = protocol.from_keeper()
        self._transport: asyncio.Transport | None = None
        self._flags: dict[str, int] = {}  # by token
        self._loop = asyncio.get_running_loop()
        self._reports = Reports(self._report_within)
        self._quit = asyncio.Event()
        self._runner = Runner(
            find_handler=app._find_handler,
            hub=app._hub,
            slots=slots,
            reports=self._reports,
            hand_over=self._hand_over,
            unknown_delay=setup.unknown_delay,
            mark_begin=self._mark_begin,
            on_end=on_end,
            on_fault=lambda: os._exit(BROKEN),
            on_memory_error=lambda: self._limits is not None and self._limits.lift(),
            after_call=leave_if_child,
            around=app._hooks.chain(app.tasks.values()),
            resources=self._resources,
        )
        self._frame_handlers: dict[type, Callable[[Any], None]] = {
            protocol.Start: self._start,
            protocol.Halt: lambda frame: self._runner.stop(frame.named, Stop(frame.reason)),
            protocol.HaltAll: self._halt_all,
            protocol.Open: lambda frame: self._open(),
            protocol.Name: self._name,
            protocol.Emit: self._emit,
            protocol.ApplyRetryPolicy: lambda frame: self._runner.apply_retry_policy(frame.leases, frame.outcomes),
            protocol.Ping: self._pong,
            protocol.Quit: lambda frame: self._quit.set(),
        }

    async def serve(self, sock: socket.socket) -> None:
        """Run until the keeper sends Quit."""
        loop = asyncio.get_running_loop()
        arm_forked_children(sock.fileno(), loop)
        await loop.create_connection(lambda: self, sock=sock)
        await self._quit.wait()
        deadline = loop.time() + CALLBACKS_WITHIN_SECONDS
        await self._app._hub.settle(CALLBACKS_WITHIN_SECONDS)
        await self._app._hooks.stop(self._resources, max(0.0, deadline - loop.time()))
        self._runner.close()

    # ------------------------------------------------------------------ frames from the keeper

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._reader.received(nbytes):
            self._frame_handlers[type(frame)](frame)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, MemoryError):  # the memory limit left no room even for reading a frame
            os._exit(OUT_OF_MEMORY)
        if not self._quit.is_set():
            os._exit(KEEPER_GONE)  # outcomes can no longer be recorded

    def _start(self, frame: protocol.Start) -> None:
        leases = frame.leases
        for flag, lease in zip(frame.flags, leases, strict=True):
            self._flags[lease.token] = flag
        if self._limits is not None:
            self._set_limits(leases[0])
        (self._runner.start_batch if frame.together else self._runner.start)(leases)

    def _set_limits(self, lease: Lease) -> None:
        task = self._app._find_handler(lease.task)
        if self._limits is not None and task is not None:
            self._limits.set(task.defaults)

    def _halt_all(self, frame: protocol.HaltAll) -> None:
        self._runner.warn_all()
        self._runner.stop_all(Stop(frame.reason))

    def _open(self) -> None:
        self._runner.barred = False

    def _name(self, frame: protocol.Name) -> None:
        self._runner.worker = frame.worker

    def _emit(self, frame: protocol.Emit) -> None:
        kinds = [(EVENTS.get(name), raw) for name, raw in frame.events]
        self._runner.deliver([msgspec.msgpack.decode(raw, type=kind) for kind, raw in kinds if kind is not None])

    def _pong(self, frame: protocol.Ping) -> None:
        self._runner.pong()
        self._write(protocol.pack([protocol.Pong(frame.number, resident_bytes())]))

    # ------------------------------------------------------------------ frames to the keeper

    def _mark_begin(self, token: str) -> bool:
        leave_if_child()
        return self._begin_flags.begin(self._flags[token], read_steady(), get_ident())

    def _hand_over(self, batch: list[Ended]) -> None:
        settlements: list[Settlement] = []
        with_jobs: list[SettlementWithJobs] = []
        releases: list[Release] = []
        gone: list[tuple[str, str]] = []
        unknown: list[tuple[str, str]] = []
        flags = self._flags
        for end in batch:
            flags.pop(end.token, None)
            if isinstance(end, SettlementWithJobs):
                with_jobs.append(end)
            elif isinstance(end, Settlement):
                settlements.append(end)
            elif isinstance(end, Release):
                releases.append(end)
            else:
                (unknown if isinstance(end, Unknown) else gone).append((end.id, end.token))
        unusable = self._limits is not None and not (self._limits.lift() and self._flush_output())
        reported = self._reports.pending_of(end.token for end in batch)
        if reported:  # must arrive before the outcomes they belong to
            self._report(reported)
        seconds = self._runner.take_seconds()
        self._write(protocol.pack_outcomes(protocol.Ended(settlements, releases, gone, unknown, seconds, with_jobs)))
        if unusable and self._transport is not None:
            self._transport.close()  # after sending that: the next job gets a fresh process

    def _flush_output(self) -> bool:
        """Flush printed output; False if a handler closed or replaced stdout."""
        if sys.stdout is not self._output:
            return False
        try:
            self._output.flush()
        except Exception:  # closed, or the app's own stream object: the outcome must be sent anyway
            return False
        return True

    def _report_within(self, seconds: float) -> None:
        """Send pending reports after this time. Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody can read them
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._report, None)

    def _report(self, tokens: list[str] | None) -> None:
        taken = self._reports.take(tokens)
        if taken:
            reports = [
                protocol.JobReport(
                    one.lease.token, one.moved, one.fraction, one.text, one.lines, one.slow_for, one.settles
                )
                for one in taken
            ]
            self._write(protocol.pack_reports(reports))

    def _write(self, packed: bytearray) -> None:
        if self._transport is not None:
            self._transport.write(packed)


def resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ----------------------------------------------------------------------------------------------------------------------
# Forked children of a runner must never write to its socket nor run its jobs. A handler may fork; its child should exec
# or exit. A child that returns or awaits instead would continue as a second runner with the same socket and the same
# queued jobs: it exits at once, and its parent continues.


_in_child = False


def arm_forked_children(sock: int, loop: asyncio.AbstractEventLoop) -> None:
    """From now on, cut forked children of this process off from the runner's socket and loop."""
    os.register_at_fork(after_in_child=lambda: _forsake(sock, loop))


def leave_if_child() -> None:
    """Exit if this process is a runner's forked child."""
    if _in_child:
        os._exit(FORKED_CHILD)


def _forsake(sock: int, loop: Any) -> None:
    """In the child: replace the socket by /dev/null, and make the loop's next step exit."""
    global _in_child
    _in_child = True
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, sock, inheritable=False)  # leaves the epoll set, which is shared with the parent, untouched
    os.close(nothing)
    ready = getattr(loop, "_ready", None)  # exit ahead of queued callbacks: those are the parent's
    if ready is not None:
        ready.appendleft(asyncio.Handle(os._exit, (FORKED_CHILD,), loop))
