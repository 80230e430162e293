"""The protocol between keeper and runners: length-prefixed msgpack frames over a socketpair, many jobs per frame.

Used by runner_process.py (the keeper's end) and runner_endpoint.py (the runner's end). Pure encoding and decoding, no
I/O. Arguments and results are bytes that pass through untouched. The first frame each way carries the version; both
ends must have the same one.

A handler can write to its runner's socket. So every frame starts with a magic number, and frames from a runner are
bounded: garbage is rejected at its first bytes, and no announced length makes the keeper buffer more than
RUNNER_FRAME_BYTES_MAX plus one result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from ...errors import ConfigurationError
from ...lifecycle import Outcome, Settlement
from ...records import Lease, Release
from ..keeper.declare import Declared

VERSION = 4
FRAME_BYTES_MAX = 1 << 30  # from the keeper, which forwards what it got from the store
RUNNER_FRAME_BYTES_MAX = 16 << 20  # from a runner, in addition to one result of the maximum size the app allows
SHARE_BYTES = 4 << 20  # target size of a runner's frame; only a single larger item exceeds it
SHARE_PARTS = 10_000
_MARK = 0x7466_6468  # magic number, "hdft" in memory: rejects data that is not a frame
_HEAD = struct.Struct("<II")  # magic number, bytes that follow
HEAD_BYTES = _HEAD.size


class Frame(Struct, frozen=True, array_like=True):
    """Base class of all frames."""


# ---------------------------------------------------------------------- from the keeper


class Setup(Frame, frozen=True, tag=1):
    """The first frame: what to import and how to run."""

    version: int
    app: str  # MODULE:APP
    app_dir: str
    imports: tuple[str, ...]
    url: str | None  # overrides the app's store
    slots: int
    solo: bool  # runs one job at a time, alone
    unknown_delay: float
    verbose: bool


class Start(Frame, frozen=True, tag=2):
    """Start these now. `places` are the slots in which each sets its begin flag (begin_flags.py)."""

    places: list[int]
    leases: list[Lease]


class Halt(Frame, frozen=True, tag=3):
    """Tell attempts, named by (id, token), to stop."""

    named: list[tuple[str, str]]
    reason: int


class HaltAll(Frame, frozen=True, tag=4):
    """Tell every attempt to stop, and start nothing until Open."""

    reason: int


class Open(Frame, frozen=True, tag=5):
    """The fence has been lifted: starts are allowed again."""


class Name(Frame, frozen=True, tag=6):
    """The worker's id, for events."""

    worker: str


class Tell(Frame, frozen=True, tag=7):
    """The keeper's events for the app's listeners, each as its name and msgpack."""

    seen: list[tuple[str, msgspec.Raw]]


class Judge(Frame, frozen=True, tag=8):
    """Attempts whose process was killed because of them: apply the task's retry policy and return the settlements."""

    leases: list[Lease]
    outcomes: list[Outcome]


class Ping(Frame, frozen=True, tag=9):
    """Liveness check: the runner's loop replies with Pong."""

    number: int


class Quit(Frame, frozen=True, tag=10):
    """Let callbacks finish, then exit."""


# ---------------------------------------------------------------------- from a runner


class TaskFacts(Struct, frozen=True, array_like=True):
    """What the keeper must know about a task to supervise its attempts."""

    name: str
    queue: str
    timeout: float | None
    alone: bool  # isolation="process"
    memory_limit: int | None
    cpu_limit: float | None
    aliases: tuple[str, ...]
    retries: int | None  # retry limit; None: unlimited
    retain: float


class Hello(Frame, frozen=True, tag=20):
    """The app was imported: its store, its declarations, its tasks, the events it listens to, and the maximum size of
    a result."""

    version: int
    pid: int
    url: str
    declared: Declared
    tasks: list[TaskFacts]
    listens: list[str]
    result_bytes_max: int


class Refused(Frame, frozen=True, tag=21):
    """The app could not be loaded, and why."""

    text: str
    hint: str


class Ended(Frame, frozen=True, tag=22):
    """Outcomes of handlers that have stopped. `gone`: there is nothing to send to the store; `unknown`: not started,
    because the runner does not know their tasks."""

    settlements: list[Settlement]
    releases: list[Release]
    gone: list[tuple[str, str]]
    unknown: list[tuple[str, str]] = []


class Said(Struct, frozen=True, array_like=True):
    """What one handler has reported since the last frame."""

    token: str
    moved: bool
    fraction: float | None
    text: str | None
    lines: list[str]
    slow_for: float = 0.0  # requested slow-down of its queue, in seconds


class Reported(Frame, frozen=True, tag=23):
    """Progress, log lines and slow-down requests."""

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
    """Encode frames, one after the other."""
    parts: list[bytes] = []
    for frame in frames:
        encoded = _encoder.encode(frame)
        parts.append(_HEAD.pack(_MARK, len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def pack_ends(ended: Ended) -> bytes:
    """Encode outcomes: in one frame if it is small enough, otherwise in several."""
    packed = pack([ended])
    if len(packed) <= SHARE_BYTES:
        return packed
    return pack(shares(ended.settlements, ended.releases, ended.gone, ended.unknown))


def pack_reports(said: Sequence[Said]) -> bytes:
    """Encode reports: in one frame if it is small enough, otherwise in several."""
    packed = pack([Reported(list(said))])
    return packed if len(packed) <= SHARE_BYTES else pack(told_shares(said))


def shares(
    settlements: Sequence[Settlement],
    releases: Sequence[Release],
    gone: Sequence[tuple[str, str]],
    unknown: Sequence[tuple[str, str]] = (),
) -> Iterator[Ended]:
    """Split outcomes into frames that the keeper accepts."""
    start = size = 0
    for place, one in enumerate(settlements):
        own = _settlement_bytes(one)
        if place > start and (size + own > SHARE_BYTES or place - start >= SHARE_PARTS):
            yield Ended(list(settlements[start:place]), [], [])
            start, size = place, 0
        size += own
    for first in range(0, max(len(releases), len(gone), len(unknown), 1), SHARE_PARTS):
        last = first + SHARE_PARTS
        ended = list(settlements[start:]) if first == 0 else []
        yield Ended(ended, list(releases[first:last]), list(gone[first:last]), list(unknown[first:last]))


def _settlement_bytes(settlement: Settlement) -> int:
    """Upper estimate of the encoded size."""
    size = 0 if settlement.value is None else len(settlement.value)
    failure = settlement.failure
    return size if failure is None else size + 4 * (len(failure.text) + len(failure.traceback))


def told_shares(said: Sequence[Said]) -> Iterator[Reported]:
    """Split reports into frames that the keeper accepts."""
    start = size = 0
    for place, one in enumerate(said):
        own = 4 * (len(one.text or "") + sum(map(len, one.lines)))
        if place > start and (size + own > SHARE_BYTES or place - start >= SHARE_PARTS):
            yield Reported(list(said[start:place]))
            start, size = place, 0
        size += own
    yield Reported(list(said[start:]))


class Reader:
    """Assembles frames from a byte stream."""

    def __init__(self, kind: object, most: int) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.most = most  # maximum bytes of one frame
        self._pieces: list[bytes] = []
        self._have, self._need = 0, HEAD_BYTES

    @property
    def missing(self) -> int:
        """How many bytes are missing from the next frame or its header."""
        return self._need - self._have

    def feed(self, piece: bytes) -> list[object]:
        """Return the frames completed by this piece. Raise ConfigurationError if the data is not a frame."""
        self._have += len(piece)
        self._pieces.append(piece)
        if self._have < self._need:
            return []
        # Must stay immutable: decoded frames may refer to this buffer.
        joined = piece if len(self._pieces) == 1 else b"".join(self._pieces)
        view, start, have = memoryview(joined), 0, self._have
        frames: list[object] = []
        self._need = HEAD_BYTES
        while have - start >= HEAD_BYTES:
            mark, size = _HEAD.unpack_from(view, start)
            if mark != _MARK:
                raise ConfigurationError("what arrived does not begin as a frame does.")
            if size > self.most:
                raise ConfigurationError(f"a frame of {size} bytes was announced; at most {self.most} are taken.")
            end = start + HEAD_BYTES + size
            if end > have:
                self._need = end - start
                break
            frames.append(self._decode(view[start + HEAD_BYTES : end]))
            start = end
        self._pieces = [joined[start:]] if start < have else []
        self._have = have - start
        return frames

    def _decode(self, view: memoryview) -> object:
        try:
            return self._decoder.decode(view)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # msgspec passes on invalid UTF-8 as is
            text = f"a frame cannot be read: {error}. Keeper and runner must be of one version."
            raise ConfigurationError(text) from None


def from_keeper() -> Reader:
    return Reader(FromKeeper, FRAME_BYTES_MAX)


def from_runner() -> Reader:
    return Reader(FromRunner, RUNNER_FRAME_BYTES_MAX)
