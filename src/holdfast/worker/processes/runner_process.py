"""One runner process from the keeper's side: its socket, its begin-flag slots, its jobs, and whether it responds.

Created by spawner.py and fed by pool.py, on the keeper's loop. Bookkeeping and transport only: the pool and the monitor
decide what a missing reply, an exit or an overrun means.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections import deque
from collections.abc import Container, Sequence
from enum import IntEnum
from typing import Protocol, cast

from ... import logs
from ...clock import read_steady
from ...context import Outcome, Stop
from ...errors import ConfigurationError
from ...records import Lease
from ..keeper.batches import Together
from ..keeper.chains import CHAINED_MAX, Chains
from ..runner.output import OutputPipe
from . import protocol
from .begin_flags import BeginFlags
from .launch import RunnerEnds, make_ends

SPARE_FLAGS = 16  # begin-flag slots for lost attempts that have not stopped
AHEAD_MAX = 200  # jobs that a runner may hold beyond its slots
AHEAD_SECONDS = 0.02  # jobs claimed ahead should begin within this time
AHEAD_SECONDS_MAX = 0.1  # … if exchanges are slow, one job per slot may wait longer, up to this
AHEAD_EXCHANGES = 10  # claim ahead for jobs shorter than this many exchanges: an idle slot would lose a tenth or more
FLAGS_READ_SECONDS = 0.001  # do not read the begin flags of jobs shorter than this: the runner's reports are enough
FLAGS_READ_MAX = 64  # … nor of more jobs than this
BATCHED_MAX = 4000  # jobs that it may hold, not counting the first of each batch
AGE_SPREAD = 0.8
DUMP_BYTES_MAX = 1 << 20
TELL_FRAMES_MAX = 64  # send no more events to a runner that has this many frames unread
WRITTEN_AT_ONCE_MAX = 1  # with more jobs, the next exchange comes first: the runner would take the processor from it
SENDING_FRAMES = 3  # send no more jobs to a runner that has this many frames unread
WRITE_BYTES_TARGET = 1 << 16  # frames are written together up to this size


class Stage(IntEnum):
    """Life-cycle stage of a runner process."""

    STARTING = 0
    READY = 1
    LEAVING = 2  # gets no more jobs
    GONE = 3


class Assignment:
    """A job that was sent to a runner."""

    __slots__ = ("flag", "kill_outcome", "lease", "sent_at", "stop_reason", "stop_sent_at", "timeout")

    def __init__(self, lease: Lease, flag: int, sent_at: float) -> None:
        self.lease, self.flag, self.sent_at = lease, flag, sent_at
        self.timeout: float | None = None
        self.stop_reason = Stop.NOT
        self.stop_sent_at = 0.0
        self.kill_outcome: Outcome | None = None  # the outcome to record if its process must be killed because of it


class RunnerProcessOwner(Protocol):
    """Receives a runner's frames."""

    def on_frame(self, runner: RunnerProcess, frame: object) -> None: ...

    def on_closed(self, runner: RunnerProcess) -> None: ...


class RunnerProcess(asyncio.BufferedProtocol):
    """The keeper's handle of one runner process."""

    def __init__(
        self, owner: RunnerProcessOwner, tag: int, slots: int, *, dedicated: bool, ends: RunnerEnds | None = None
    ) -> None:
        self._owner, self._loop = owner, asyncio.get_running_loop()
        self.tag, self.slots, self.dedicated = tag, slots, dedicated
        self.stage = Stage.STARTING
        self.pid = 0
        self.hello: protocol.Hello | None = None
        self.refused: protocol.Refused | None = None
        self.jobs: dict[str, Assignment] = {}  # by token
        self.taken: dict[str, int] = {}  # token → slot of jobs taken back, until the runner has noticed
        self.done = 0
        self.memory = 0
        self.blocked = False  # it has not replied for a while
        self.jobs_not_to_blame = False  # killed for a reason its jobs are not to blame for
        self.others_died_too = False  # jobs elsewhere died at the same instant: the one to blame is unknown
        self.ready_at = 0.0
        self.lifetime = random.uniform(AGE_SPREAD, 1.0)  # share of max_jobs, so that runners do not all leave together
        self.pinged_at = 0.0
        self.continued = 0  # number of SIGCONTs sent because it was stopped
        self.idle_checks = 0  # consecutive checks that found its loop idle without a reply
        self.released = False
        self.closed = False  # all its frames have been read
        self.ended: tuple[int, int] | None = None  # wait status and cause
        self.changed = asyncio.Event()  # a job ended, or the process did
        self.dumping = asyncio.Lock()
        self._pings = self._pongs = 0
        self._reader = protocol.from_runner()
        self._transport: asyncio.Transport | None = None
        self._outbox: deque[protocol.Frame] = deque()
        self._flushing = False
        self._full = False  # the socket's buffer is full
        self._dump_read = 0
        ends = ends or make_ends(slots)
        self._ours, self.dump_fd = ends.socket, ends.dump
        flags = slots + SPARE_FLAGS + (0 if dedicated else AHEAD_MAX)
        chained = 0 if dedicated else CHAINED_MAX
        batched = 0 if dedicated else BATCHED_MAX
        self.begin_flags = BeginFlags(ends.begin_flags)
        self._free_flags = list(range(flags))
        self._chain_flags = list(range(flags, flags + chained))  # of chained jobs
        self._batch_flags = list(range(flags + chained, flags + chained + batched))
        self._chained_from, self._batched_from = flags, flags + chained
        self.chains = Chains()
        self.together = Together()
        self.output = OutputPipe() if dedicated else None
        self.fds: tuple[int, ...] = ends.fds
        if self.output is not None:
            self.fds += (self.output.theirs,)

    async def connect(self) -> None:
        await self._loop.create_connection(lambda: self, sock=self._ours)

    def handed_over(self) -> None:
        """The guard has its copies of the descriptors: close ours."""
        for fd in self.fds:
            if fd != self.dump_fd:
                os.close(fd)

    def close(self) -> None:
        """Release all resources."""
        self.released = True
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed:
            self._ours.close()  # never connected
        if self.output is not None:
            self.output.close()
        self.begin_flags.close()
        os.close(self.dump_fd)

    # ------------------------------------------------------------------ jobs

    @property
    def room(self) -> int:
        """How many jobs it could start now. Slots of reclaimed jobs become free once the runner has noticed."""
        if self.stage is not Stage.READY or self.blocked:
            return 0
        left = self.slots - self._units
        return max(0, min(left, len(self._free_flags) - SPARE_FLAGS)) if left > 0 else 0

    @property
    def _units(self) -> int:
        """How many slots its jobs take or wait for: a chain takes one, and so does a batch."""
        return len(self.jobs) - self.chains.behind - self.together.behind

    @property
    def queued(self) -> int:
        """How many of its jobs were claimed ahead and wait there for a slot."""
        return max(0, self._units - self.slots)

    @property
    def waiting(self) -> int:
        """How many of its jobs wait there, for a slot or for the one before them in their chain."""
        return self.queued + self.chains.behind

    def waits(self, run_seconds: float) -> int:
        """How many of its jobs wait for a slot now, given their run time: a runner may report an end late."""
        return max(0, self._units - max(self.slots, len(self._begun(run_seconds))))

    def lasts(self, run_seconds: float, now: float) -> float:
        """Estimated seconds until one of its slots is free, given the jobs' run time; 0 if one is."""
        if self._units < self.slots:
            return 0.0
        begun = self._begun(run_seconds)
        left = begun[-self.slots] + run_seconds - now if len(begun) >= self.slots else 0.0  # of the first to end
        return run_seconds * self.waits(run_seconds) / self.slots + max(0.0, left)

    def _begun(self, run_seconds: float) -> list[float]:
        """When its jobs began, roughly in that order. Empty if reading the flags is not worth it: many or very short
        jobs, which share exchanges anyway, and jobs in chains and batches."""
        if run_seconds < FLAGS_READ_SECONDS or len(self.jobs) > FLAGS_READ_MAX or self.chains.of or self.together.of:
            return []
        return [at for job in self.jobs.values() if (at := self.begun(job))]

    @property
    def chained_room(self) -> int:
        """How many chained jobs it could take."""
        return len(self._chain_flags)

    def room_ahead(self, most: int, run_seconds: float = 0.0) -> int:
        """How many more jobs may wait there, once its slots are taken, if at most `most` may."""
        if self.stage is not Stage.READY or self.blocked or self.dedicated or self.sending:
            return 0
        return max(0, min(most - self.waits(run_seconds), len(self._free_flags) - SPARE_FLAGS - self.room))

    @property
    def has_spare_flag(self) -> bool:
        """Whether a slot is left for a job that must run here even if there is no room."""
        return bool(self._free_flags)

    def give(self, leases: Sequence[Lease]) -> None:
        """Send jobs: they start now, or as soon as a slot is free there."""
        flags: list[int] = []
        now = read_steady()
        for lease in leases:
            flag = (self._chain_flags if lease.chained else self._free_flags).pop()
            self.begin_flags.clear(flag)
            self.jobs[lease.token] = Assignment(lease, flag, now)
            flags.append(flag)
        if any(lease.chained for lease in leases):
            self.chains.add(leases)
        for frame in protocol.start_frames(flags, leases):
            self.send(frame)
        if len(self.jobs) <= WRITTEN_AT_ONCE_MAX:  # it is idle, and the keeper has other things to do in this iteration
            self._flush()

    def give_batch(self, leases: Sequence[Lease]) -> int:
        """Send jobs that start as one batch. Return how many of them it could take."""
        some = leases[: len(self._batch_flags) + 1]
        flags = [self._free_flags.pop(), *(self._batch_flags.pop() for _ in some[1:])]
        now, batch = read_steady(), dict[str, None]()
        for flag, lease in zip(flags, some, strict=True):
            self.begin_flags.clear(flag)
            self.jobs[lease.token] = Assignment(lease, flag, now)
            self.together.join(lease.token, batch)
        self.send(protocol.Start(flags, list(some), together=True))
        return len(some)

    def drop(self, token: str) -> Assignment | None:
        """A job has ended: free its begin flag. Return None if it is not assigned any more."""
        job = self.jobs.pop(token, None)
        if job is None:
            flag = self.taken.pop(token, None)
            if flag is not None:
                self._free_flag(flag)
            return None
        self._leave(token)
        self._free_flag(job.flag)
        self.done += 1
        return job

    def _free_flag(self, flag: int) -> None:
        chained = self._chain_flags if flag < self._batched_from else self._batch_flags
        (self._free_flags if flag < self._chained_from else chained).append(flag)

    def _leave(self, token: str) -> None:
        """Remove a job from its chain or batch, if it has one."""
        if self.chains.of:
            self.chains.drop(token)
        if self.together.of:
            self.together.drop(token)

    def take_back(self, keep: Container[str] = ()) -> list[Lease]:
        """Take back every job that has not begun, except those with these ids."""
        jobs = [job for job in self.jobs.values() if job.lease.id not in keep]
        return [job.lease for job in jobs if self.take_back_one(job)]

    def take_back_one(self, job: Assignment) -> bool:
        """Take back a job; False if it may have begun."""
        if self.begun(job) or not self.begin_flags.take_back(job.flag):
            return False
        del self.jobs[job.lease.token]
        self._leave(job.lease.token)
        self.taken[job.lease.token] = job.flag  # not reused before the runner has seen the flag
        return True

    def unbegun(self, before: float) -> list[Lease]:
        """Jobs sent before this time that have not begun and are not behind another one in a chain."""
        late = [job for job in self.jobs.values() if job.sent_at < before and not self.begun(job)]
        return [job.lease for job in late if not (self.chains.of and self.chains.is_behind(job.lease.token))]

    def has_succeeded(self, job: Assignment) -> bool:
        """Whether the next job of its chain has begun: then this one has succeeded, even if its outcome was lost."""
        if not self.chains.of:
            return False
        behind = [self.jobs[token] for token in self.chains.after(job.lease.token) if token in self.jobs]
        return any(self.begun(one) for one in behind)

    def begun(self, job: Assignment) -> float:
        """When a job began, on the steady clock; 0.0 if it has not."""
        return self.begin_flags.begun(job.flag)

    def where(self) -> str:
        """The process's name for error texts."""
        return f"runner process {self.pid} on {socket.gethostname()}"

    # ------------------------------------------------------------------ transport

    def send(self, frame: protocol.Frame) -> None:
        """Queue a frame; all frames of one loop iteration are written together."""
        self._outbox.append(frame)
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    @property
    def sending(self) -> bool:
        """Whether it still has to read so many large frames that it needs no more jobs yet."""
        return self._full and len(self._outbox) >= SENDING_FRAMES

    def keeps_up(self) -> bool:
        """Whether it reads what it is sent: events are not worth a growing backlog."""
        return self._transport is not None and len(self._outbox) < TELL_FRAMES_MAX

    def _flush(self) -> None:
        """Write as much as the socket accepts. The rest is encoded later: that saves one copy of large arguments, and
        makes the other while they are in the processor's cache."""
        self._flushing = False
        while self._transport is not None and self._outbox and not self._full:
            packed = bytearray()
            while self._outbox and len(packed) < WRITE_BYTES_TARGET:
                protocol.append(packed, self._outbox.popleft())
            self._transport.write(memoryview(packed))  # asyncio keeps what is left without copying it again

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.received(nbytes):
                if isinstance(frame, protocol.Hello):
                    self._reader.most = protocol.RUNNER_FRAME_BYTES_MAX + frame.result_bytes_max
                self._owner.on_frame(self, frame)
        except ConfigurationError as error:  # its stream can no longer be trusted
            logs.runner_sent_garbage(self.pid, error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        self._owner.on_closed(self)

    # ------------------------------------------------------------------ liveness

    def ping(self, now: float) -> float:
        """Send a ping unless one is pending. Return how long the pending one has been waiting."""
        if self._pongs == self._pings:
            self._pings += 1
            self.pinged_at = now
            self.send(protocol.Ping(self._pings))
            return 0.0
        return now - self.pinged_at

    def pong(self, frame: protocol.Pong) -> None:
        if frame.number == self._pings:  # any other was forged by a handler
            self._pongs, self.memory = frame.number, frame.memory

    def read_stacks(self) -> str:
        """The stack dumps written since the last call."""
        if self.released:
            return ""
        found = os.pread(self.dump_fd, DUMP_BYTES_MAX, self._dump_read)
        self._dump_read += len(found)
        return found.decode("utf-8", "replace")


def ahead_by_time(slots: int, run_seconds: float | None, exchange_seconds: float) -> int:
    """How many jobs may wait in a runner with this many slots, given recent run times (None: not known) and exchanges:
    as many as begin within AHEAD_SECONDS, and one per slot if jobs are that short, or short compared to an exchange.
    The first of them waits for half a job on average."""
    if run_seconds is None:
        return 0
    short = max(AHEAD_SECONDS, min(AHEAD_SECONDS_MAX, AHEAD_EXCHANGES * exchange_seconds))
    least = slots if run_seconds <= short else 0
    passed = 0.5 if run_seconds <= AHEAD_SECONDS else 0.0
    return min(AHEAD_MAX, max(least, int(slots * AHEAD_SECONDS / max(run_seconds, 1e-6) + passed)))


def how_it_ended(wait_status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"ended with exit code {os.waitstatus_to_exitcode(wait_status)}"
