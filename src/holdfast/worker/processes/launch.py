"""Starts the guard, and makes what connects a runner process with the keeper.

Called for every guard and runner by guard_client.py and runner_process.py, and by the command line, which launches the
guard with the first runner before it imports the keeper: they start while it does. Imports nothing of Holdfast but the
guard's constants and the begin flags, and never runs in a runner.

A launched runner does nothing until it gets its first frame. If the keeper fails before it adopts them, it closes its
end of the sockets, and both end by themselves. Who sees the runner may signal the keeper: what asks it to stop or to
restart is held until it can obey, as it would just be killed.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ..keeper.identity import process_mark
from . import guard
from .begin_flags import make_file

PROGRAM = "holdfast.cli.runner_main"
COMMAND = (sys.executable, "-P", "-m", PROGRAM)
FIRST_TAG = 1
FLAGS_BEYOND_SLOTS = 8192  # begin flags of jobs that have no slot, and of slots that the runner's hello adds
SOCKET_BYTES = 1 << 20  # requested; the system may allow less
_HELD = (signal.SIGTERM, signal.SIGHUP)
OWN_CHILDREN: set[int] = set()  # pids of guards started here and not yet reaped


class GuardProcess(NamedTuple):
    """A guard and the keeper's end of its socket."""

    process: subprocess.Popen[bytes]
    socket: socket.socket


class RunnerEnds(NamedTuple):
    """The keeper's end of a runner's socket, and the descriptors for the runner."""

    socket: socket.socket
    theirs: int
    begin_flags: int
    dump: int

    @property
    def fds(self) -> tuple[int, int, int]:
        return self.theirs, self.begin_flags, self.dump


class Launched:
    """A guard with its first runner, until the keeper adopts them."""

    def __init__(self, guard_process: GuardProcess, ends: RunnerEnds) -> None:
        self._guard, self.ends = guard_process, ends
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
        self.adopted = False

    def adopt(self) -> GuardProcess:
        """For a keeper that handles signals from now on, those that were held included."""
        self.adopted = True
        self.release()
        return self._guard

    def release(self) -> None:
        """Let signals through as before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


@contextmanager
def launched(slots: int | None) -> Iterator[Launched]:
    """Start a guard and the first of its runners, which share so many slots. Without a keeper they end here."""
    process, ends = start_guard(), make_ends(slots or 0)
    one = Launched(process, ends)  # the guard must not inherit that signals are held
    send_frame(process.socket, guard.START, FIRST_TAG, start_payload(COMMAND, len(ends.fds)), ends.fds)
    try:
        yield one
    finally:
        if not one.adopted:
            # Before its socket is closed: a guard that sees that stops its runner, then kills it. If it died in
            # between, a runner that has not asked yet to die with its guard would stay stopped.
            process.process.kill()
            process.process.wait()
            process.socket.close()
            ends.socket.close()
            for fd in ends.fds:
                os.close(fd)
            OWN_CHILDREN.discard(process.process.pid)
            one.release()


def start_guard() -> GuardProcess:
    """Start a guard; it ends when the keeper's end of its socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-I", "-S", str(guard.__file__), str(theirs.fileno()), str(os.getpid())],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, guard.KEEPER: process_mark(os.getpid())},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # only the keeper handles the terminal's signals
        )
    OWN_CHILDREN.add(process.pid)
    ours.setblocking(False)
    return GuardProcess(process, ours)


def make_ends(slots: int) -> RunnerEnds:
    """Make what a runner with so many slots needs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    dump = os.memfd_create("holdfast-stacks") if hasattr(os, "memfd_create") else make_file(1)
    return RunnerEnds(ours, theirs.detach(), make_file(slots + FLAGS_BEYOND_SLOTS), dump)


def start_payload(words: Sequence[str], fds: int, *, speaks: bool = False) -> bytes:
    """What the guard reads of a program to start; `speaks`: the last descriptor is also its output."""
    return bytes([fds, int(speaks)]) + b"\0".join(os.fsencode(word) for word in words)


def send_frame(to: socket.socket, kind: int, tag: int, payload: bytes, fds: Sequence[int] = ()) -> bool:
    """Send the guard a frame; False if it does not take it."""
    frame = guard.FRAME.pack(kind, tag, len(payload)) + payload
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"<{len(fds)}i", *fds))] if fds else []
    try:
        return to.sendmsg([frame], extra) == len(frame)
    except OSError:
        return False
