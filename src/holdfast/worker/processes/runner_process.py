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
SPARE_PLACES = 16  # begin-flag slots for lost attempts that have not stopped
AGE_SPREAD = 0.8
EVIDENCE_BYTES_MAX = 1 << 20
TELL_BYTES_MAX = 1 << 20  # maximum backlog of events for a runner that does not read


class Stage(IntEnum):
    """Life-cycle stage of a runner process."""

    STARTING = 0
    READY = 1
    LEAVING = 2  # gets no more jobs
    GONE = 3


class Sent:
    """A job that was sent to a runner."""

    __slots__ = ("guilty", "lease", "place", "sent_at", "timeout", "told", "told_at")

    def __init__(self, lease: Lease, place: int, sent_at: float) -> None:
        self.lease, self.place, self.sent_at = lease, place, sent_at
        self.timeout: float | None = None
        self.told = Stop.NOT
        self.told_at = 0.0
        self.guilty: Outcome | None = None  # the outcome to record if its process must be killed because of it


class RunnerProcessOwner(Protocol):
    """Receives a runner's frames."""

    def on_frame(self, remote: RunnerProcess, frame: object) -> None: ...

    def on_closed(self, remote: RunnerProcess) -> None: ...


class RunnerProcess(asyncio.Protocol):
    """The keeper's handle of one runner process."""

    def __init__(self, owner: RunnerProcessOwner, tag: int, slots: int, *, solo: bool) -> None:
        self._owner, self._loop = owner, asyncio.get_running_loop()
        self.tag, self.slots, self.solo = tag, slots, solo
        self.stage = Stage.STARTING
        self.pid = 0
        self.hello: protocol.Hello | None = None
        self.refused: protocol.Refused | None = None
        self.held: dict[str, Sent] = {}  # by token
        self.taken: dict[str, int] = {}  # token → slot of jobs taken back, until the runner has noticed
        self.done = 0
        self.memory = 0
        self.blocked = False  # it has not replied for a while
        self.spared = False  # killed for a reason its jobs are not to blame for
        self.in_company = False  # jobs elsewhere died at the same instant: the one to blame is unknown
        self.ready_at = 0.0
        self.lifetime = random.uniform(AGE_SPREAD, 1.0)  # share of max_jobs, so that runners do not all leave together
        self.pinged_at = 0.0
        self.continued = 0  # number of SIGCONTs sent because it was stopped
        self.idle_looks = 0  # consecutive checks that found its loop idle without a reply
        self.let_go = False
        self.closed = False  # all its frames have been read
        self.ended: tuple[int, int] | None = None  # wait status and cause
        self.changed = asyncio.Event()  # a job ended, or the process did
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
        """The guard has its copies of the descriptors: close ours."""
        for fd in self.fds:
            if fd != self.evidence:
                os.close(fd)

    def close(self) -> None:
        """Release all resources."""
        self.let_go = True
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed:
            self._ours.close()  # never connected
        if self.spoken is not None:
            self.spoken.close()
        self.marks.close()
        os.close(self.evidence)

    # ------------------------------------------------------------------ jobs

    @property
    def room(self) -> int:
        """How many jobs it could start now. Slots of reclaimed jobs become free once the runner has noticed."""
        if self.stage is not Stage.READY or self.blocked:
            return 0
        return max(0, min(self.slots - len(self.held), len(self._places) - SPARE_PLACES))

    @property
    def spare(self) -> bool:
        """Whether a slot is left for a job that must run here even if there is no room."""
        return bool(self._places)

    def give(self, leases: Sequence[Lease]) -> None:
        """Send jobs to start now."""
        places: list[int] = []
        now = read_steady()
        for lease in leases:
            place = self._places.pop()
            self.marks.clear(place)
            self.held[lease.token] = Sent(lease, place, now)
            places.append(place)
        self.send(protocol.Start(places, list(leases)))

    def drop(self, token: str) -> Sent | None:
        """A job has ended: free its slot. Return None if it is not held any more."""
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
            self.taken[sent.lease.token] = sent.place  # not reused before the runner has seen the flag
        return [sent.lease for sent in taken]

    def unbegun(self, before: float) -> list[Lease]:
        """Jobs sent before this time that have not begun."""
        return [sent.lease for sent in self.held.values() if sent.sent_at < before and not self.begun(sent)]

    def begun(self, sent: Sent) -> float:
        """When a job began, on the steady clock; 0.0 if it has not."""
        return self.marks.begun(sent.place)

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

    def listens_well(self) -> bool:
        """Whether it reads what it is sent: events are not worth a growing backlog."""
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
        except ConfigurationError as error:  # its stream can no longer be trusted
            logs.runner_babbled(self.pid, error)
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

    def read_evidence(self) -> str:
        """The stack dumps written since the last call."""
        if self.let_go:
            return ""
        found = os.pread(self.evidence, EVIDENCE_BYTES_MAX, self._evidence_read)
        self._evidence_read += len(found)
        return found.decode("utf-8", "replace")
