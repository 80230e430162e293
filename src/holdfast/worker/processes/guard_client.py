"""The keeper's client of the guard: starts it, sets its deadlines, has it start and kill runners, and receives exits.

Used by spawner.py, on the keeper's loop. Never blocks: a guard that does not accept a frame is treated as lost, and a
lost guard's runners are dead, because they die with their parent.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Collection, Sequence
from typing import Protocol

from . import guard
from .launch import OWN_CHILDREN, GuardProcess, send_frame, start_guard, start_payload

END_WITHIN_SECONDS = 5.0


class GuardOwner(Protocol):
    """Receives the guard's messages."""

    def on_started(self, tag: int, pid: int) -> None: ...

    def on_ended(self, tag: int, wait_status: int, cause: int, peak_bytes: int) -> None: ...

    def on_guard_lost(self) -> None: ...


class GuardClient:
    """One guard process: a new one, or the one that was launched before the keeper was imported."""

    def __init__(self, owner: GuardOwner, adopted: GuardProcess | None = None) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._incoming = bytearray()
        self.lost = False
        self.process, self._socket = adopted or start_guard()
        self._loop.add_reader(self._socket, self._read)

    # ------------------------------------------------------------------ commands

    def deadline(self, kill_at: float, last_at: float) -> None:
        """Kill every runner at `kill_at`; the kernel kills the guard itself at `last_at`. Steady seconds."""
        self._send(guard.DEADLINE, 0, guard.DEADLINES.pack(kill_at, last_at))

    def start(self, tag: int, words: Sequence[str], fds: Sequence[int], *, speaks: bool = False) -> None:
        """Start a program as runner `tag`, with `fds` from descriptor 3 on; `speaks`: the last is also its output."""
        self._send(guard.START, tag, start_payload(words, len(fds), speaks=speaks), fds)

    def signal(self, tag: int, number: int) -> None:
        self._send(guard.SIGNAL, tag, bytes([number]))

    def kill(self, tag: int) -> None:
        """Kill a runner and everything it started."""
        self._send(guard.KILL, tag, b"")

    def kill_descendants(self, survivors: Collection[int]) -> None:
        """After the guard has died: kill its runners' descendants, and runners that did not die with it.

        Surviving runners are known by their sockets, which are still open: a runner that disabled its parent-death
        signal may have overwritten its environment, too.
        """
        for pid in survivors:
            guard.send(pid, signal.SIGKILL)
        if sys.platform == "linux":
            for pid in guard.processes():
                if guard.marker_of(pid).startswith(f"{self.process.pid}-"):
                    guard.send(pid, signal.SIGKILL)

    async def close(self) -> None:
        """Let the guard end; it kills every runner that is left."""
        if not self.lost:
            self.lost = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
        try:
            async with asyncio.timeout(END_WITHIN_SECONDS):
                while self.process.poll() is None:  # noqa: ASYNC110 - nothing notifies this loop of the exit
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self.process.kill()
            self.process.wait()
        OWN_CHILDREN.discard(self.process.pid)

    # ------------------------------------------------------------------ transport

    def _send(self, kind: int, tag: int, payload: bytes, fds: Sequence[int] = ()) -> None:
        if not self.lost and not send_frame(self._socket, kind, tag, payload, fds):
            self._lose()

    def _read(self) -> None:
        try:
            piece = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._lose()
            return
        self._incoming += piece
        while len(self._incoming) >= guard.FRAME.size:
            kind, tag, size = guard.FRAME.unpack_from(self._incoming)
            end = guard.FRAME.size + size
            if len(self._incoming) < end:
                return
            facts = bytes(self._incoming[guard.FRAME.size : end])
            del self._incoming[:end]
            if kind == guard.STARTED:
                self._owner.on_started(tag, *guard.STARTED_FACTS.unpack(facts))
            elif kind == guard.ENDED:
                _, wait_status, cause, peak = guard.ENDED_FACTS.unpack(facts)
                self._owner.on_ended(tag, wait_status, cause, peak * 1024)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self.process.kill()  # it may be stopped or stuck; its runners die with it
        self._loop.call_soon(self._owner.on_guard_lost)
