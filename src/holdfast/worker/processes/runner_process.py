"""One runner process, seen from the keeper: its socket, its places, the jobs it has, and whether it responds.

Made by the staff, fed by the pool, on the keeper's loop. Bookkeeping and transport only: what a silence, an end or an
overrun means is decided by the pool and the overseer.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol, cast

from ... import logs
from ...clock import read_steady
from ...errors import ConfigurationError
from ...lifecycle import Outcome
from ...records import Lease
from ..runner.attempt import Stop
from . import protocol
from .begin_flags import BeginFlags, make_file
from .output_pipe import OutputPipe

DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
SPARE_PLACES = 16  # for lost attempts that have not stopped
AGE_SPREAD = 0.8
EVIDENCE_BYTES_MAX = 1 << 20
TELL_BYTES_MAX = 1 << 20  # events queue up no further for a runner that does not read


class Stage(IntEnum):
    """Where a runner process is in its life."""

    STARTING = 0
    READY = 1
    LEAVING = 2  # gets no more jobs
    GONE = 3


class Sent:
    """A job a runner has."""

    __slots__ = ("guilty", "lease", "place", "sent_at", "timeout", "told", "told_at")

    def __init__(self, lease: Lease, place: int, sent_at: float) -> None:
        self.lease, self.place, self.sent_at = lease, place, sent_at
        self.timeout: float | None = None
        self.told = Stop.NOT
        self.told_at = 0.0
        self.guilty: Outcome | None = None  # what it did, for which its process has to die


class RunnerProcessOwner(Protocol):
    """Who is told what a runner says."""

    def on_frame(self, remote: RunnerProcess, frame: object) -> None: ...

    def on_closed(self, remote: RunnerProcess) -> None: ...


class RunnerProcess(asyncio.Protocol):
    """A runner process."""

    def __init__(self, owner: RunnerProcessOwner, tag: int, slots: int, *, solo: bool) -> None:
        self._owner, self._loop = owner, asyncio.get_running_loop()
        self.tag, self.slots, self.solo = tag, slots, solo
        self.stage = Stage.STARTING
        self.pid = 0
        self.hello: protocol.Hello | None = None
        self.refused: protocol.Refused | None = None
        self.held: dict[str, Sent] = {}  # by token
        self.taken: dict[str, int] = {}  # token → place of jobs taken back, until the runner has seen it
        self.done = 0
        self.memory = 0
        self.blocked = False  # it has not answered for a while
        self.spared = False  # killed for what is no fault of the jobs it has
        self.in_company = False  # others died in the same instant: who is to blame cannot be told
        self.ready_at = 0.0
        self.lifetime = random.uniform(AGE_SPREAD, 1.0)  # share of max_jobs it lives for: not all leave together
        self.pinged_at = 0.0
        self.continued = 0  # how often it had to be continued after it was stopped
        self.idle_looks = 0  # in a row at which its loop was idle although it did not answer
        self.let_go = False
        self.closed = False  # everything it ever said has been read
        self.ended: tuple[int, int] | None = None  # wait status and cause
        self.changed = asyncio.Event()  # a job ended, or it did
        self.dumping = asyncio.Lock()
        self._pings = self._pongs = 0
        self._reader = protocol.from_runner()
        self._transport: asyncio.Transport | None = None
        self._outbox: list[protocol.Frame] = []
        self._flushing = False
        self._evidence_read = 0
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        marks = make_file(slots + SPARE_PLACES)
        self.evidence = os.memfd_create("holdfast-evidence") if hasattr(os, "memfd_create") else make_file(1)
        self.marks = BeginFlags(marks)
        self._places = list(range(slots + SPARE_PLACES))
        self.spoken = OutputPipe() if solo else None
        self.fds: tuple[int, ...] = (theirs.detach(), marks, self.evidence)
        if self.spoken is not None:
            self.fds += (self.spoken.theirs,)

    async def connect(self) -> None:
        await self._loop.create_connection(lambda: self, sock=self._ours)

    def handed_over(self) -> None:
        """The guard has its copies of the descriptors."""
        for fd in self.fds:
            if fd != self.evidence:
                os.close(fd)

    def close(self) -> None:
        """Let go of everything."""
        self.let_go = True
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed:
            self._ours.close()  # it was never connected
        if self.spoken is not None:
            self.spoken.close()
        self.marks.close()
        os.close(self.evidence)

    # ------------------------------------------------------------------ jobs

    @property
    def room(self) -> int:
        """How many jobs it could begin now. Places of jobs taken back are free only when the runner has seen it."""
        if self.stage is not Stage.READY or self.blocked:
            return 0
        return max(0, min(self.slots - len(self.held), len(self._places) - SPARE_PLACES))

    @property
    def spare(self) -> bool:
        """Whether a place is left for a job that must come here, room or not."""
        return bool(self._places)

    def give(self, leases: Sequence[Lease]) -> None:
        """Send jobs, to begin now."""
        places: list[int] = []
        now = read_steady()
        for lease in leases:
            place = self._places.pop()
            self.marks.clear(place)
            self.held[lease.token] = Sent(lease, place, now)
            places.append(place)
        self.send(protocol.Start(places, list(leases)))

    def drop(self, token: str) -> Sent | None:
        """A job has ended there."""
        sent = self.held.pop(token, None)
        if sent is None:
            place = self.taken.pop(token, None)
            if place is not None:
                self._places.append(place)
            return None
        self._places.append(sent.place)
        self.done += 1
        return sent

    def take_back(self) -> list[Lease]:
        """Take back every job that has not begun."""
        taken = [sent for sent in self.held.values() if not self.begun(sent) and self.marks.take_back(sent.place)]
        for sent in taken:
            del self.held[sent.lease.token]
            self.taken[sent.lease.token] = sent.place  # not used again before the runner has seen the mark
        return [sent.lease for sent in taken]

    def unbegun(self, before: float) -> list[Lease]:
        """Jobs that were sent before that time and have not begun."""
        return [sent.lease for sent in self.held.values() if sent.sent_at < before and not self.begun(sent)]

    def begun(self, sent: Sent) -> float:
        """When a job began, on the steady clock; 0.0 when it has not."""
        return self.marks.begun(sent.place)

    def where(self) -> str:
        """Which process this is, for an error's text."""
        return f"runner process {self.pid} on {socket.gethostname()}"

    # ------------------------------------------------------------------ talking

    def send(self, frame: protocol.Frame) -> None:
        """Queue a frame; all of one tick of the loop travel together."""
        self._outbox.append(frame)
        if not self._flushing and self._transport is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def listens_well(self) -> bool:
        """Whether it takes what it is sent: events are not worth piling up."""
        return self._transport is not None and self._transport.get_write_buffer_size() < TELL_BYTES_MAX

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is not None and self._outbox:
            frames, self._outbox = self._outbox, []
            self._transport.write(protocol.pack(frames))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if isinstance(frame, protocol.Hello):
                    self._reader.most = protocol.RUNNER_FRAME_BYTES_MAX + frame.result_bytes_max
                self._owner.on_frame(self, frame)
        except ConfigurationError as error:  # nothing it says can be trusted any more
            logs.runner_babbled(self.pid, error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._transport = None
        self._owner.on_closed(self)

    # ------------------------------------------------------------------ does it respond?

    def ping(self, now: float) -> float:
        """Ask for a sign of life; answers how long the last one has been due."""
        if self._pongs == self._pings:
            self._pings += 1
            self.pinged_at = now
            self.send(protocol.Ping(self._pings))
            return 0.0
        return now - self.pinged_at

    def pong(self, frame: protocol.Pong) -> None:
        if frame.number == self._pings:  # any other was written by a handler, not by the loop
            self._pongs, self.memory = frame.number, frame.memory

    def read_evidence(self) -> str:
        """The stacks written since the last time."""
        if self.let_go:
            return ""
        found = os.pread(self.evidence, EVIDENCE_BYTES_MAX, self._evidence_read)
        self._evidence_read += len(found)
        return found.decode("utf-8", "replace")
