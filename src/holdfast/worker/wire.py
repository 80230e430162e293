"""What keeper and runners say to each other: length-prefixed msgpack frames over a socketpair, many jobs in one.

Used by remote.py (the keeper's end) and hosting.py (the runner's end). Pure: it encodes and decodes, it reads and
writes nothing. Arguments and results are bytes that pass through untouched. The first frame each way carries the
version; two versions that differ do not talk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from ..errors import ConfigurationError
from ..lifecycle import Outcome, Settlement
from ..records import Lease, Release
from ..rules import QueueRule

VERSION = 1
FRAME_BYTES_MAX = 1 << 30
_LENGTH = struct.Struct("<I")
LENGTH_BYTES = _LENGTH.size


class Frame(Struct, frozen=True, array_like=True):
    """Anything that is sent."""


# ---------------------------------------------------------------------- from the keeper


class Setup(Frame, frozen=True, tag=1):
    """The first frame: what to import and how to run."""

    version: int
    app: str  # MODULE:APP
    app_dir: str
    imports: tuple[str, ...]
    url: str | None  # another store than the app's own
    slots: int
    solo: bool  # runs one job at a time, alone
    unknown_delay: float
    verbose: bool


class Start(Frame, frozen=True, tag=2):
    """Begin these now. `places` are where each of them marks its begin (marks.py)."""

    places: list[int]
    leases: list[Lease]


class Halt(Frame, frozen=True, tag=3):
    """Tell attempts, named by (id, token), to stop."""

    named: list[tuple[str, str]]
    reason: int


class HaltAll(Frame, frozen=True, tag=4):
    """Tell every attempt to stop and begin nothing until Open."""

    reason: int


class Open(Frame, frozen=True, tag=5):
    """The fence is lifted."""


class Name(Frame, frozen=True, tag=6):
    """The worker's id, as events name it."""

    worker: str


class Tell(Frame, frozen=True, tag=7):
    """Events the keeper saw, each by name and as msgpack."""

    seen: list[tuple[str, msgspec.Raw]]


class Judge(Frame, frozen=True, tag=8):
    """Attempts whose process was killed for what they did: say what the task's own policy makes of it."""

    leases: list[Lease]
    outcomes: list[Outcome]


class Ping(Frame, frozen=True, tag=9):
    """Answer when the loop gets to it."""

    number: int


class Quit(Frame, frozen=True, tag=10):
    """End: let callbacks finish, then exit."""


# ---------------------------------------------------------------------- from a runner


class TaskFacts(Struct, frozen=True, array_like=True):
    """What the keeper must know of a task to watch over its attempts."""

    name: str
    queue: str
    timeout: float | None
    alone: bool  # isolation="process"
    memory_limit: int | None
    cpu_limit: float | None
    aliases: tuple[str, ...]


class Hello(Frame, frozen=True, tag=20):
    """The app was imported: its store, its queues' rules, its tasks, and which events somebody listens to."""

    version: int
    pid: int
    url: str
    rules: list[QueueRule]
    tasks: list[TaskFacts]
    listens: list[str]


class Refused(Frame, frozen=True, tag=21):
    """The app cannot be had, and why."""

    text: str
    hint: str


class Ended(Frame, frozen=True, tag=22):
    """Handlers have stopped, and what that means for their leases. `gone`: nothing is to be told to the store."""

    settlements: list[Settlement]
    releases: list[Release]
    gone: list[tuple[str, str]]


class Said(Struct, frozen=True, array_like=True):
    """What one handler reported since the last time."""

    token: str
    moved: bool
    fraction: float | None
    text: str | None
    lines: list[str]


class Reported(Frame, frozen=True, tag=23):
    """Progress and log lines."""

    said: list[Said]


class Pong(Frame, frozen=True, tag=24):
    """The loop responds; `memory` is the process's resident bytes."""

    number: int
    memory: int


FromKeeper = Setup | Start | Halt | HaltAll | Open | Name | Tell | Judge | Ping | Quit
FromRunner = Hello | Refused | Ended | Reported | Pong

_encoder = msgspec.msgpack.Encoder()
encode_part = _encoder.encode


def pack(frames: Iterable[Frame]) -> bytes:
    """Frames as they travel, one after the other."""
    parts: list[bytes] = []
    for frame in frames:
        encoded = _encoder.encode(frame)
        parts.append(_LENGTH.pack(len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


class Reader:
    """Takes what arrives, in whatever pieces, and gives whole frames."""

    def __init__(self, kind: object) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._pieces: list[bytes] = []
        self._have, self._need = 0, LENGTH_BYTES

    @property
    def missing(self) -> int:
        """How many bytes the next frame, or its length, still lacks."""
        return self._need - self._have

    def feed(self, piece: bytes) -> list[object]:
        """The frames that are complete with this piece. Raises ConfigurationError on what is no frame."""
        self._have += len(piece)
        self._pieces.append(piece)
        if self._have < self._need:
            return []
        # Never written to again, because a decoded frame may refer to it.
        joined = piece if len(self._pieces) == 1 else b"".join(self._pieces)
        view, start, have = memoryview(joined), 0, self._have
        frames: list[object] = []
        self._need = LENGTH_BYTES
        while have - start >= LENGTH_BYTES:
            (size,) = _LENGTH.unpack_from(view, start)
            if size > FRAME_BYTES_MAX:
                raise ConfigurationError(f"a frame of {size} bytes was announced: that is no frame of ours.")
            end = start + LENGTH_BYTES + size
            if end > have:
                self._need = end - start
                break
            frames.append(self._decode(view[start + LENGTH_BYTES : end]))
            start = end
        self._pieces = [joined[start:]] if start < have else []
        self._have = have - start
        return frames

    def _decode(self, view: memoryview) -> object:
        try:
            return self._decoder.decode(view)
        except msgspec.MsgspecError as error:
            text = f"a frame cannot be read: {error}. Keeper and runner must be of one version."
            raise ConfigurationError(text) from None


def from_keeper() -> Reader:
    return Reader(FromKeeper)


def from_runner() -> Reader:
    return Reader(FromRunner)
