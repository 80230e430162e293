"""The protocol between keeper and runners: msgpack frames over a socketpair. Begin flags are in begin_flags.py.

Used by runner_process.py (the keeper's end) and runner_endpoint.py (the runner's end). Frames are prefixed with their
length and carry many jobs each. Arguments and results are bytes that pass through untouched. The first frame each way
carries the version; both ends must have the same one.

A handler can write to its runner's socket. So every frame starts with a magic number, and frames from a runner are
bounded: garbage is rejected at its first bytes, and no announced length makes the keeper buffer more than
RUNNER_FRAME_BYTES_MAX plus one result.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from ...context import Outcome
from ...errors import ConfigurationError
from ...lifecycle import Settlement
from ...options import OnTimeout
from ...records import Lease, Release, SettlementWithJobs
from ...worker_status import SlotsFrom
from ..keeper.declare import Declared

VERSION = 9
FRAME_BYTES_MAX = 1 << 30  # from the keeper, which forwards what it got from the store
RUNNER_FRAME_BYTES_MAX = 16 << 20  # from a runner, in addition to one result of the maximum size the app allows
FRAME_BYTES_TARGET = 4 << 20  # target size of a runner's frame; only a single larger item exceeds it
FRAME_ITEMS_MAX = 10_000
START_BYTES_TARGET = 1 << 19  # of arguments in one frame: fits into the processor's cache while it is copied
READ_BYTES = 1 << 16  # size of a reader's buffer, unless a frame is larger
READ_BYTES_KEPT = 1 << 20  # a larger buffer is freed after its frame
_MARK = 0x7466_6468  # magic number, "hdft" in memory: rejects data that is not a frame
_HEAD = struct.Struct("<II")  # magic number, bytes that follow
HEAD_BYTES = _HEAD.size
_NO_HEAD = bytes(HEAD_BYTES)


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
    slots: int | None  # None: as many as suit the tasks of `queues`
    queues: tuple[str, ...] | None  # the queues the worker serves; None: those of its tasks
    dedicated: bool  # runs one job at a time, alone
    unknown_delay: float
    log_level: str
    log_format: str
    timeout: float | None = None  # for tasks that set none


class Start(Frame, frozen=True, tag=2):
    """Start these, now or as soon as a slot is free. `flags` are the numbers of their begin flags."""

    flags: list[int]
    leases: list[Lease]
    together: bool = False  # as one batch


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


class Emit(Frame, frozen=True, tag=7):
    """The keeper's events for the app's listeners, each as its name and msgpack."""

    events: list[tuple[str, bytes]]


class ApplyRetryPolicy(Frame, frozen=True, tag=8):
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
    isolated: bool  # isolation="process"
    memory_limit: int | None
    cpu_limit: float | None
    aliases: tuple[str, ...]
    retries: int | None  # retry limit; None: unlimited
    retain: float
    batch: int | None = None
    batch_within: float | None = None
    exit_fails: bool = False  # on_exit="failure"
    on_timeout: OnTimeout = "retry"
    catch_all: bool = False

    @property
    def batching(self) -> tuple[Sequence[str], str, int | None, float | None]:
        """How its jobs are batched, in the form that `batch_plan` takes."""
        return (self.name, *self.aliases), self.queue, self.batch, self.batch_within


class Hello(Frame, frozen=True, tag=20):
    """The app was imported: its store, its declarations, its tasks, the events it listens to, the maximum size of a
    result, how many jobs this runner runs at once, and why."""

    version: int
    pid: int
    url: str
    declared: Declared
    tasks: list[TaskFacts]
    listens: list[str]
    result_bytes_max: int
    slots: int
    slots_from: SlotsFrom


class Refused(Frame, frozen=True, tag=21):
    """The app could not be loaded, and why."""

    text: str
    hint: str


class Ended(Frame, frozen=True, tag=22):
    """Outcomes of handlers that have stopped. `gone`: there is nothing to send to the store; `unknown`: not started,
    because the runner does not know their tasks. `seconds`: the total run time of these handlers. `with_jobs`:
    successes whose handlers enqueued jobs."""

    settlements: list[Settlement]
    releases: list[Release]
    gone: list[tuple[str, str]]
    unknown: list[tuple[str, str]] = []
    seconds: float = 0.0
    with_jobs: list[SettlementWithJobs] = []


class JobReport(Struct, frozen=True, array_like=True):
    """What one handler has reported since the last frame."""

    token: str
    moved: bool
    fraction: float | None
    text: str | None
    lines: list[str]
    slow_for: float = 0.0  # requested slow-down of its queue, in seconds
    settles: bool = False  # the handler settles its job in its own transaction


class Reported(Frame, frozen=True, tag=23):
    """Progress, log lines and slow-down requests."""

    reports: list[JobReport]


class Pong(Frame, frozen=True, tag=24):
    """The loop responds; `memory` is the process's resident bytes."""

    number: int
    memory: int


FromKeeper = Setup | Start | Halt | HaltAll | Open | Name | Emit | ApplyRetryPolicy | Ping | Quit
FromRunner = Hello | Refused | Ended | Reported | Pong

_encoder = msgspec.msgpack.Encoder()
encode_part = _encoder.encode


def pack(frames: Iterable[Frame]) -> bytearray:
    """Encode frames, one after the other."""
    packed = bytearray()
    for frame in frames:
        append(packed, frame)
    return packed


def append(packed: bytearray, frame: Frame) -> None:
    """Append an encoded frame without an intermediate copy."""
    start = len(packed)
    packed += _NO_HEAD
    _encoder.encode_into(frame, packed, -1)
    _HEAD.pack_into(packed, start, _MARK, len(packed) - start - HEAD_BYTES)


def start_frames(flags: list[int], leases: Sequence[Lease]) -> Iterator[Start]:
    """Split jobs with large arguments into several frames, so that the runner starts the first while the next is sent.
    A chain is never split."""
    first = size = 0
    for number, lease in enumerate(leases):
        own = len(lease.args)
        if size and size + own > START_BYTES_TARGET and not lease.chained:
            yield Start(flags[first:number], list(leases[first:number]))
            first, size = number, 0
        size += own
    yield Start(flags[first:], list(leases[first:]))


def pack_outcomes(ended: Ended) -> bytearray:
    """Encode outcomes: in one frame if it is small enough, otherwise in several."""
    packed = pack([ended])
    if len(packed) <= FRAME_BYTES_TARGET:
        return packed
    frames = outcome_frames(ended.settlements, ended.releases, ended.gone, ended.unknown)
    return pack([*frames, *(Ended([], [], [], [], 0.0, [one]) for one in ended.with_jobs)])


def pack_reports(reports: Sequence[JobReport]) -> bytearray:
    """Encode reports: in one frame if it is small enough, otherwise in several."""
    packed = pack([Reported(list(reports))])
    return packed if len(packed) <= FRAME_BYTES_TARGET else pack(report_frames(reports))


def outcome_frames(
    settlements: Sequence[Settlement],
    releases: Sequence[Release],
    gone: Sequence[tuple[str, str]],
    unknown: Sequence[tuple[str, str]] = (),
) -> Iterator[Ended]:
    """Split outcomes into frames that the keeper accepts."""
    start = size = 0
    for number, settlement in enumerate(settlements):
        own = _settlement_bytes(settlement)
        if number > start and (size + own > FRAME_BYTES_TARGET or number - start >= FRAME_ITEMS_MAX):
            yield Ended(list(settlements[start:number]), [], [])
            start, size = number, 0
        size += own
    for first in range(0, max(len(releases), len(gone), len(unknown), 1), FRAME_ITEMS_MAX):
        last = first + FRAME_ITEMS_MAX
        ended = list(settlements[start:]) if first == 0 else []
        yield Ended(ended, list(releases[first:last]), list(gone[first:last]), list(unknown[first:last]))


def _settlement_bytes(settlement: Settlement) -> int:
    """Upper estimate of the encoded size."""
    size = 0 if settlement.value is None else len(settlement.value)
    failure = settlement.failure
    return size if failure is None else size + 4 * (len(failure.text) + len(failure.traceback))


def report_frames(reports: Sequence[JobReport]) -> Iterator[Reported]:
    """Split reports into frames that the keeper accepts."""
    start = size = 0
    for number, report in enumerate(reports):
        own = 4 * (len(report.text or "") + sum(map(len, report.lines)))
        if number > start and (size + own > FRAME_BYTES_TARGET or number - start >= FRAME_ITEMS_MAX):
            yield Reported(list(reports[start:number]))
            start, size = number, 0
        size += own
    yield Reported(list(reports[start:]))


class Reader:
    """Assembles frames from a byte stream. The buffer is reused, so decoded values must not refer to it."""

    def __init__(self, kind: object, most: int) -> None:
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.most = most  # maximum bytes of one frame
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._have, self._need = 0, HEAD_BYTES  # bytes in the buffer; bytes of the next frame or its header

    @property
    def missing(self) -> int:
        """How many bytes are missing from the next frame or its header."""
        return self._need - self._have

    def space(self) -> memoryview:
        """Where the next bytes go. For a large frame, no more than its rest, so nothing after it has to be moved."""
        return self._buffer[self._have : self._need if self._need > READ_BYTES else len(self._buffer)]

    def received(self, count: int) -> list[object]:
        """Return the frames that these bytes complete. Raise ConfigurationError if the data is not a frame."""
        self._have += count
        if self._have < self._need:
            return []
        buffer, start, have = self._buffer, 0, self._have
        frames: list[object] = []
        self._need = HEAD_BYTES
        while have - start >= HEAD_BYTES:
            mark, size = _HEAD.unpack_from(buffer, start)
            if mark != _MARK:
                raise ConfigurationError("the data received does not begin with a frame header.")
            if size > self.most:
                raise ConfigurationError(f"a frame of {size} bytes was announced; at most {self.most} are accepted.")
            end = start + HEAD_BYTES + size
            if end > have:
                self._need = end - start
                break
            frames.append(self._decode(buffer[start + HEAD_BYTES : end]))
            start = end
        self._move(start)
        return frames

    def _move(self, start: int) -> None:
        """Make room for the next frame: bytes from `start` on are part of it."""
        rest, old = self._buffer[start : self._have], self._buffer
        if self._need > len(old) or READ_BYTES_KEPT < len(old) > self._need:
            self._buffer = memoryview(bytearray(max(READ_BYTES, self._need)))
        if start or self._buffer is not old:
            self._buffer[: len(rest)] = rest
        self._have = len(rest)

    def _decode(self, view: memoryview) -> object:
        try:
            return self._decoder.decode(view)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:  # not all are MsgspecErrors
            text = f"a frame cannot be read: {error}. Keeper and runner must be of one version."
            raise ConfigurationError(text) from None


def from_keeper() -> Reader:
    return Reader(FromKeeper, FRAME_BYTES_MAX)


def from_runner() -> Reader:
    return Reader(FromRunner, RUNNER_FRAME_BYTES_MAX)
