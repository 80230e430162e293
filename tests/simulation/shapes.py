"""What the model is made of: its jobs, letters, workers and leases, as plain mutable values.

Called by the model and the random walk. No behaviour beyond facts derived from the fields beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.errors import HoldfastError
from holdfast.lifecycle import Ending, State
from holdfast.records import Answer, NewJob

DAY, TEN_MINUTES = 86400.0, 600.0
UNSTARTED = (State.SCHEDULED, State.WAITING, State.READY)
LIVE = (*UNSTARTED, State.RUNNING)
Turn = tuple[float, ...]  # ticks of the clock, the step it became claimable in, its place within that step


class Refused(Exception):
    """The verb is refused with an error of this kind, and nothing changed."""

    def __init__(self, kind: type[HoldfastError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


@dataclass(frozen=True, eq=False)
class Ticket:
    """One lease that was handed out, with the token each store under test gave it."""

    job_id: str
    tokens: tuple[str, ...]
    worker: str = ""
    call: int = 0


def key_name(new: NewJob) -> tuple[str, ...] | None:
    """What a key is one of; None: no key."""
    if new.key is None:
        return None
    return (new.task, new.key) if new.key_scope == "global" else (new.queue, new.task, new.key)


@dataclass(eq=False)
class ModelJob:
    new: NewJob
    seq: int
    args: bytes
    priority: int
    group: str | None
    due_at: float
    expires_at: float | None
    created_at: float = 0.0
    due_max: float | None = None
    holds_key: bool = False
    state: State = State.SCHEDULED
    attempts: int = 0
    failures: int = 0
    stalls: int = 0
    shared_stalls: int = 0
    suspect: bool = False
    held: bool = False
    begun: bool = False
    cancel_requested: bool = False
    turn: Turn | None = None
    ticket: Ticket | None = None  # while running
    started_at: float | None = None
    finished_at: float | None = None
    prune_at: float | None = None
    reason: str | None = None
    value: bytes | None = None
    progress: float | None = None
    errors: list[tuple[str, int]] = field(default_factory=list)  # reason and attempt
    logs: list[str] = field(default_factory=list)

    @property
    def logical(self) -> tuple[str, ...]:
        return (self.new.id,) if self.new.key is None else (self.new.queue, self.new.task, self.new.key)

    @property
    def key_name(self) -> tuple[str, ...] | None:
        return key_name(self.new)

    @property
    def window_ends_at(self) -> float:
        """Until when its key's window keeps it; long ago where it has none."""
        return self.created_at + self.new.key_window if self.new.key is not None and self.new.key_window else 0.0

    @property
    def in_play(self) -> bool:
        return self.state in (State.READY, State.RUNNING) or (self.state in (State.SCHEDULED, State.DEAD) and self.held)


@dataclass
class ModelLetter:
    id: str
    count: int
    first_failed_at: float
    failed_at: float
    reason: str
    args: bytes
    history: list[tuple[str, float, str]]
    cycles: int = 0
    revive_at: float | None = None
    revived_at: float | None = None


@dataclass
class ModelWorker:
    lease_seconds: float
    deadline: float
    isolates: bool = False
    last_call: int = 0
    answers: tuple[Answer, ...] = ()


@dataclass
class ModelExchange:
    """What an exchange must answer. `shares`: the lanes' cuts a new claim takes; `again`: the leases of a repeat."""

    answers: tuple[Answer, ...]
    known: bool = True
    still: bool = False  # nothing may change
    recovered: dict[str, tuple[State, int, int, bool]] = field(default_factory=dict)
    shares: list[list[ModelJob]] | None = None
    again: list[ModelJob] = field(default_factory=list)


@dataclass(frozen=True)
class ModelSettlement:
    ticket: Ticket
    ending: Ending
    failed: bool = False
    delay: float = 0.0
    retain: float = DAY
    value: bytes | None = None
    alone: bool = False


@dataclass(frozen=True)
class ModelRelease:
    ticket: Ticket
    delay: float = 0.0


ModelEnding = ModelSettlement | ModelRelease
