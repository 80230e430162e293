"""What the reference keeps: a job's row, a worker's row, a group's members, an instant.

Called by the reference alone. Rows are mutable and never leave it: what goes out is made by read.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.lifecycle import Failure, State
from holdfast.records import Answer, Command, KeyScope, KeyUntil, NewJob, OnExpire, Revival, WorkerRecord

from .ranked import Ranked

CLOCK_BACK_SECONDS = 1.0  # a deadline further away than the lease by this much: the clock went back
LANE_UNGROUPED, LANE_GROUPED, LANE_PARKED, LANE_APART = 0, 1, 2, 3

GroupName = tuple[str, str]  # queue, group
Logical = tuple[str, ...]  # queue, task, key; or the id alone
KeyName = tuple[KeyScope, str, str, str]  # scope, queue ("" where global), task, key
Scope = tuple[str | None, str | None, str | None]  # of a pause, an override, a flow: queue, group, task
LaneName = tuple[str, int, str]  # queue, lane, task (where it is apart)


@dataclass(frozen=True, slots=True)
class Instant:
    """The time of one step: wall for due times, steady for lease deadlines. `given`: a caller's `now` is both."""

    wall: float
    steady: float
    given: bool


@dataclass(slots=True, eq=False)
class Row:
    """A job. Fields by which it is found are changed only inside Index.move."""

    id: str
    seq: int
    task: str
    queue: str
    state: State
    args: bytes
    priority: int
    group: str | None
    key: str | None
    max_stalls: int
    created_at: float
    due_at: float
    expires_at: float | None
    revival: Revival | None
    options: bytes | None
    key_scope: KeyScope = "queue"
    key_until: KeyUntil = "finished"
    key_window: float | None = None
    holds_key: bool = False
    due_max: float | None = None
    on_expire: OnExpire = "bury"
    attempts: int = 0
    failures: int = 0
    stalls: int = 0
    shared_stalls: int = 0
    suspect: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    fence: int = 0
    worker: str | None = None
    begun: bool = False
    held: bool = False
    cancel_requested: bool = False
    progress: float | None = None
    progress_text: str | None = None
    value: bytes | None = None
    reason: str | None = None
    errors: tuple[Failure, ...] = ()
    order: int | None = None
    # beyond JobRecord: what only the store and its dump know
    token: str | None = None
    turn: int | None = None
    rank: int = 0
    lane: int = LANE_UNGROUPED
    claim_call: int | None = None
    prune_at: float | None = None

    @property
    def logical(self) -> Logical:
        return (self.queue, self.task, self.key) if self.key is not None else (self.id,)

    @property
    def place(self) -> tuple[bool, int, bool, int, int]:
        """Where it stands in its group: held, by priority, without an order, by order, by seq."""
        return (not self.held, -self.priority, self.order is not None, self.order or 0, self.seq)

    @property
    def staged(self) -> bool:
        """Whether it may wait for lower orders."""
        return self.state is State.SCHEDULED and self.order is not None and not self.held and self.fence == 0

    @property
    def stops(self) -> bool:
        """Whether it is dead and keeps its group from going on."""
        return self.state is State.DEAD and self.held

    @property
    def lane_name(self) -> LaneName:
        return (self.queue, self.lane, self.task if self.lane == LANE_APART else "")

    @property
    def key_name(self) -> KeyName:
        return key_name(self.key_scope, self.queue, self.task, self.key or "")

    @property
    def window_ends_at(self) -> float:
        """When its key is free because its window has passed; for ever ago where it has none."""
        return float("-inf") if self.key is None or self.key_window is None else self.created_at + self.key_window


def key_name(scope: KeyScope, queue: str, task: str, key: str) -> KeyName:
    return (scope, queue if scope == "queue" else "", task, key)


def due_time(job: NewJob, wall: float, order_window: float | None) -> float:
    """When a new job is due, on the store's clock."""
    if job.due_at is not None:
        return job.due_at
    staged = job.delay is None and job.order is not None and job.group is not None
    return wall + ((order_window or 0.0) if staged else (job.delay or 0.0))


def expiry(job: NewJob, due_at: float) -> float | None:
    """The last moment at which a new job may be claimed."""
    return None if job.expires is None else due_at + job.expires


class Holder:
    """A worker's row: one deadline for all its leases, and its latest numbered call with the answers given."""

    __slots__ = ("answers", "commands", "deadline", "last_call", "leases", "record")

    def __init__(self, record: WorkerRecord, deadline: float) -> None:
        self.record = record
        self.deadline = deadline
        self.last_call = 0
        self.answers: tuple[Answer, ...] = ()
        self.commands: list[Command] = []  # oldest first
        self.leases: dict[str, Row] = {}  # in the order of their fences

    def expired(self, at: Instant) -> bool:
        if at.steady >= self.deadline:
            return True
        return not at.given and self.deadline - at.steady > self.record.lease_seconds + CLOCK_BACK_SECONDS


class Group:
    """The unfinished jobs of one group and the dead ones that stop it, by where they stand. In play is the size of four
    of these, never a counter."""

    __slots__ = ("dead", "held", "ready", "running", "scheduled", "waiting")

    def __init__(self) -> None:
        self.scheduled: dict[str, Row] = {}
        self.held: dict[str, Row] = {}  # scheduled, and keeping the group's place
        self.dead: dict[str, Row] = {}
        self.waiting: Ranked[str] = Ranked()
        self.ready: dict[str, Row] = {}
        self.running: dict[str, Row] = {}

    @property
    def in_play(self) -> int:
        return len(self.ready) + len(self.running) + len(self.held) + len(self.dead)

    @property
    def empty(self) -> bool:
        return not (self.waiting or self.in_play or self.scheduled)
