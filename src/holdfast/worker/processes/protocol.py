"""What keeper and runners say to each other: length-prefixed msgpack frames over a socketpair, many jobs in one.

Used by runner_process.py (the keeper's end) and runner_endpoint.py (the runner's end). Pure: it encodes and decodes, it
reads and writes nothing. Arguments and results are bytes that pass through untouched. The first frame each way carries
the version; two versions that differ do not talk.

A handler can write into its runner's socket. So every frame opens with a mark, and what comes from a runner is bounded:
junk is refused at its first bytes, and nothing a handler announces makes the keeper keep more than a few MiB.
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
FRAME_BYTES_MAX = 1 << 30  # from the keeper, which sends what the store gave it
RUNNER_FRAME_BYTES_MAX = 16 << 20  # from a runner, beside one result as large as the app allows
SHARE_BYTES = 4 << 20  # what a runner puts into one frame, unless a single part of it is larger
SHARE_PARTS = 10_000
_MARK = 0x7466_6468  # "hdft": what is no frame of ours does not begin so
_HEAD = struct.Struct("<II")  # mark, bytes that follow
HEAD_BYTES = _HEAD.size


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
    """Begin these now. `places` are where each of them marks its begin (begin_flags.py)."""

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
    retries: int | None  # how often it may be retried; None: for ever
    retain: float


class Hello(Frame, frozen=True, tag=20):
    """The app was imported: its store, what it declares, its tasks, which events somebody listens to, and how large
    a result may be."""

    version: int
    pid: int
    url: str
    declared: Declared
    tasks: list[TaskFacts]
    listens: list[str]
    result_bytes_max: int


class Refused(Frame, frozen=True, tag=21):
    """The app cannot be had, and why."""

    text: str
    hint: str


class Ended(Frame, frozen=True, tag=22):
    """Handlers have stopped, and what that means for their leases. `gone`: nothing is to be told to the store;
    `unknown`: never begun, the runner does not know their tasks."""

    settlements: list[Settlement]
    releases: list[Release]
    gone: list[tuple[str, str]]
    unknown: list[tuple[str, str]] = []


class Said(Struct, frozen=True, array_like=True):
    """What one handler reported since the last time."""

    token: str
    moved: bool
    fraction: float | None
    text: str | None
    lines: list[str]
    slow_for: float = 0.0  # seconds its queue is to rest


class Reported(Frame, frozen=True, tag=23):
    """Progress, log lines and slow-downs."""

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
        parts.append(_HEAD.pack(_MARK, len(encoded)))
        parts.append(encoded)
    return b"".join(parts)


def pack_ends(ended: Ended) -> bytes:
    """Ends as they travel: in one frame, unless the keeper would not take that."""
    packed = pack([ended])
    if len(packed) <= SHARE_BYTES:
        return packed
    return pack(shares(ended.settlements, ended.releases, ended.gone, ended.unknown))


def pack_reports(said: Sequence[Said]) -> bytes:
    """The same for reports."""
    packed = pack([Reported(list(said))])
    return packed if len(packed) <= SHARE_BYTES else pack(told_shares(said))


def shares(
    settlements: Sequence[Settlement],
    releases: Sequence[Release],
    gone: Sequence[tuple[str, str]],
    unknown: Sequence[tuple[str, str]] = (),
) -> Iterator[Ended]:
    """Ends, in frames that the keeper takes."""
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
    """About as large as it travels, rather more."""
    size = 0 if settlement.value is None else len(settlement.value)
    failure = settlement.failure
    return size if failure is None else size + 4 * (len(failure.text) + len(failure.traceback))


def told_shares(said: Sequence[Said]) -> Iterator[Reported]:
    """Reports, in frames that the keeper takes."""
    start = size = 0
    for place, one in enumerate(said):
        own = 4 * (len(one.text or "") + sum(map(len, one.lines)))
        if place > start and (size + own > SHARE_BYTES or place - start >= SHARE_PARTS):
            yield Reported(list(said[start:place]))
            start, size = place, 0
        size += own
    yield Reported(list(said[start:]))


class Reader:
    """Takes what arrives, in whatever pieces, and gives whole frames."""

    def __init__(self, kind: object, most: int) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.most = most  # bytes of one frame
        self._pieces: list[bytes] = []
        self._have, self._need = 0, HEAD_BYTES

    @property
    def missing(self) -> int:
        """How many bytes the next frame, or its head, still lacks."""
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
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # junk in a text field is not msgspec's own error
            text = f"a frame cannot be read: {error}. Keeper and runner must be of one version."
            raise ConfigurationError(text) from None


def from_keeper() -> Reader:
    return Reader(FromKeeper, FRAME_BYTES_MAX)


def from_runner() -> Reader:
    return Reader(FromRunner, RUNNER_FRAME_BYTES_MAX)
