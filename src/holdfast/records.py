"""The frozen data that crosses the backend contract: what is stored, leased, settled and queried.

Called by backends, the engine and the public API. Holds no behaviour beyond derived facts and never does I/O.
Times are wall-clock seconds since the epoch on the store's clock; arguments and values are JSON bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from .dependencies import Edge, OnParentFailure
from .lifecycle import Failure, Settlement, State
from .names import known_options
from .rates import Rate
from .schedules import CronEntry as CronEntry
from .steps import Step
from .worker_status import Command as Command

Conflict = Literal["keep", "replace", "raise", "debounce", "extend"]
KeyScope = Literal["queue", "global"]
KeyUntil = Literal["finished", "started"]
OnExpire = Literal["bury", "drop"]
Overlap = Literal["allow", "skip", "cancel"]  # as stores implement it; "queue" is implemented as a serial group
Part = Literal["rules", "jobs", "letters", "edges", "steps"]

# The parts of a move, in this order; cron entries belong to the rules.
PARTS: tuple[Part, ...] = ("rules", "jobs", "letters", "edges", "steps")

ERRORS_KEPT_MAX = 10  # per job: the newest failures and stalls
HISTORY_KEPT_MAX = 10  # per dead letter: earlier deaths
SHARDS_MAX = 1024  # per queue
LOGS_KEPT_MAX = 200  # per job: the newest log lines
EVENTS_KEPT_MAX = 10_000  # in the store: the newest
EVENT_BYTES_MAX = 2_000  # size of one encoded event
RECORDINGS_REMEMBERED_SECONDS = 3600.0  # a repeated call is recognised for at least this long
ROLLUPS_PER_PRUNE_MAX = 500  # removed by one call, per span
MARKS_KEPT_MAX = 50  # per job: its first mark and the newest ones
CLAIM_BYTES_MAX = 4 * 1024 * 1024  # total arguments handed out by one claim, unless a single job has more
CLAIM_SWEEP_MAX = 200  # jobs that a claim's own promote touches; its recover ends at most half as many leases
GROUP_COUNT_MAX = 1000  # jobs of one group and state that a SQL store counts: a group of any size costs the same
REMEMBER_SECONDS_MIN = 600.0  # ids of finished jobs are remembered at least this long


class Answer(StrEnum):
    """A store's reply to one write about a lease. LOST and CANCELLED changed nothing."""

    OK = "ok"
    LOST = "lost"  # not the current token
    CANCELLED = "cancelled"  # cancellation was requested: only settling as cancelled is accepted
    UNHEARD = "unheard"  # the part of the store that holds this job did not respond: retry in a later call
    BUSY = "busy"  # another session holds a lock on the job's row (PostgreSQL): retry later


@dataclass(frozen=True, init=False, slots=True)
class Revival:
    """Automatic revival of a dead letter: a growing cooldown from the latest failure, up to a maximum of cycles."""

    after: float = 3600.0
    factor: float = 2.0
    cap: float = 86400.0
    cycles: int = 5

    @known_options("Revival()")
    def __init__(self, *, after: float = 3600.0, factor: float = 2.0, cap: float = 86400.0, cycles: int = 5) -> None:
        put = object.__setattr__  # the dataclass is frozen
        put(self, "after", after)
        put(self, "factor", factor)
        put(self, "cap", cap)
        put(self, "cycles", cycles)

    def cooldown(self, cycles_done: int) -> float | None:
        """Seconds from the latest failure to the next automatic revival; None if no cycles are left."""
        if cycles_done >= self.cycles:
            return None
        try:
            return float(min(self.cap, self.after * self.factor**cycles_done))
        except OverflowError:
            return self.cap


class NewJob(Struct, frozen=True, kw_only=True):
    """A job as its producer passes it to enqueue. The producer makes the id: repeating the call creates one job."""

    id: str
    task: str
    queue: str = "default"
    args: bytes = b"{}"
    priority: int = 0
    group: str | None = None
    key: str | None = None
    on_conflict: Conflict = "keep"
    key_scope: KeyScope = "queue"  # the key is unique per (queue, task), or per task across all queues
    key_until: KeyUntil = "finished"  # how long it holds its key: until it finishes, or until its first lease
    key_window: float | None = None  # or this many seconds from its creation, whatever happens to it
    delay: float | None = None  # seconds from the store's now; excludes due_at
    due_at: float | None = None
    wait_max: float | None = None  # debounce: latest possible due time, in seconds after its creation
    expires: float | None = None  # seconds after its due time within which it must first be claimed
    on_expire: OnExpire = "bury"
    max_stalls: int = 3
    revival: Revival | None = None
    options: bytes | None = None  # task options given for this call only (retry, timeout, retain), JSON
    order: int | None = None  # the caller's own value for its place in its group: lower ones go first (R103)
    after: tuple[str, ...] = ()  # ids of its parents: it waits until they have succeeded; stored earlier (R83)
    on_parent_failure: OnParentFailure = "bury"  # what to do with it if one of them dies or is cancelled
    before: str | None = None  # id of a job that waits for others, and from now on for this one, too (R87)


def with_conflicts_kept(job: NewJob) -> NewJob:
    """The job as it is stored where a duplicate cannot be reported to anyone: "raise" is treated as "keep"."""
    return replace(job, on_conflict="keep") if job.on_conflict == "raise" else job


class Enqueued(Struct, frozen=True):
    """enqueue's result for one job: the id of the new or existing job, and whether this call created it."""

    id: str
    created: bool
    replaced: bool = False  # on_conflict "replace" or "debounce" updated the call of an unstarted job
    waits: bool = False  # this call created only this job, and its group has no room for it yet


class JobRecord(Struct, frozen=True, kw_only=True):
    """A stored job as get and find return it. Never carries the token: only claim grants rights."""

    id: str
    seq: int
    task: str
    queue: str
    state: State
    args: bytes
    priority: int = 0
    group: str | None = None
    key: str | None = None
    attempts: int = 0
    failures: int = 0
    stalls: int = 0  # while running alone
    shared_stalls: int = 0  # while sharing a process with other jobs
    suspect: bool = False  # its latest attempt stalled: a worker that supports it runs the job alone next
    max_stalls: int = 3
    created_at: float = 0.0
    due_at: float = 0.0
    expires_at: float | None = None
    started_at: float | None = None  # when the latest lease began
    finished_at: float | None = None
    fence: int = 0  # of the latest lease; 0 if never leased
    worker: str | None = None  # holder of the live lease
    begun: bool = False
    held: bool = False  # keeps its place in a strict group while it backs off
    cancel_requested: bool = False
    progress: float | None = None
    progress_text: str | None = None
    value: bytes | None = None
    reason: str | None = None  # why it is dead, or was dropped ("expired")
    errors: tuple[Failure, ...] = ()  # oldest first, at most ERRORS_KEPT_MAX
    revival: Revival | None = None
    options: bytes | None = None
    key_scope: KeyScope = "queue"
    key_until: KeyUntil = "finished"
    key_window: float | None = None
    holds_key: bool = False  # no other job may take its key (an expired window no longer counts)
    due_max: float | None = None  # debounce: the latest due time it may be pushed to
    on_expire: OnExpire = "bury"
    order: int | None = None  # its place in its group, as its caller gave it (R103)
    unreadable: tuple[str, ...] = ()  # fields whose stored value cannot be read; they show their defaults here


class Lease(Struct, frozen=True):
    """The right to run and settle one job; handed out by claim."""

    id: str
    token: str
    fence: int
    task: str
    queue: str
    args: bytes
    priority: int = 0
    group: str | None = None
    key: str | None = None
    attempt: int = 1  # attempts + 1
    failures: int = 0
    stalls: int = 0
    max_stalls: int = 3
    created_at: float = 0.0
    started_at: float = 0.0
    options: bytes | None = None  # as in NewJob
    suspect: bool = False  # to be run alone in its process
    shared_stalls: int = 0
    due_at: float = 0.0
    chained: bool = False  # may begin only once the lease before it, of the same group and claim, has succeeded


class Held(Struct, frozen=True):
    """A reference to a lease: every write about a lease carries at least this."""

    id: str
    token: str


class SettlementWithJobs(Settlement, frozen=True, kw_only=True):
    """A success, and the jobs that its handler enqueued: both are stored, or neither (settle_with)."""

    jobs: tuple[NewJob, ...] = ()


class Release(Struct, frozen=True, kw_only=True):
    """A lease given back unfinished; costs nothing. With a delay (unknown task) the job is due again later."""

    id: str
    token: str
    delay: float = 0.0


class Report(Struct, frozen=True, kw_only=True):
    """Progress and log lines of a running job; checked against the token like every write about a lease."""

    id: str
    token: str
    progress: float | None = None
    text: str | None = None
    lines: tuple[str, ...] = ()  # each already encoded; the newest LOGS_KEPT_MAX are kept


class LogLine(Struct, frozen=True):
    """One stored log line of a job."""

    at: float
    text: str


ONLY_SIGNED = b'{"by":'  # job options that begin so hold only who enqueued it and perhaps headers, no task option
BY_CHARS_MAX = 200  # of an operator's name, or of the reason given
NOTE_CHARS_MAX = 2000  # of a note on a job
AUTOMATIC = "automatic"  # the mark's text for an automatic revival


class Mark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stored entry of a job's timeline: a transition that the rest of its row does not show (R65).

    `kind` is the verb. A release or snooze names the lease it ended, an operator's verb names the caller. A progress
    report and a late renewal name the lease they belong to, without its start.
    """

    kind: str  # release snooze cancel bury run_now revive retry discard … progress renewal
    at: float = 0.0
    by: str = ""  # who called the verb, as given
    text: str = ""
    worker: str | None = None
    fence: int = 0
    started_at: float | None = None
    progress: float | None = None
    gap: float | None = None  # renewal: seconds for which the lease was not renewed
    count: int = 1  # this mark and the earlier ones that it replaced


def mark_row(job_id: str, mark: Mark) -> dict[str, Any]:
    """A mark as a dump shows it."""
    return {"job_id": job_id, **asdict(mark)}


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """A registered worker. Its one deadline applies to all of its leases."""

    id: str  # random, new at every start
    host: str = ""
    pid: int = 0
    boot_id: str = ""
    pid_namespace: str = ""
    lease_seconds: float = 30.0
    queues: tuple[str, ...] = ()
    slots: int = 0
    isolates: bool = False  # it runs each suspect alone in a process of its own
    portrait: bytes | None = None  # its latest encoded WorkerStatus (worker_status.py); written by renew only
    started_at: float = 0.0  # set by the store
    renewed_at: float = 0.0  # set by the store
    expired: bool = False  # set by the store when read
    running: int = 0  # set by the store when read: leases held


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """What a worker can start right now. `call` numbers its claims 1, 2, 3 …, so a repeated claim is recognised."""

    worker: str
    call: int
    queues: tuple[str, ...]  # in the order they are served
    most: int  # free slots in total
    most_by_queue: Mapping[str, int] = {}  # free slots of a queue with a cap of its own
    most_by_task: Mapping[str, int] = {}  # free slots of a task, over all queues; only for tasks with a dedicated lane
    most_by_group: int | None = None  # jobs of any one group that this worker may hold at once
    priorities: tuple[int, int] | None = None  # lowest and highest priority of the jobs it takes
    bytes_max: int = CLAIM_BYTES_MAX  # total bytes of arguments in the leases; a single job always fits
    sweep_max: int = CLAIM_SWEEP_MAX  # jobs the claim's own promote may touch; its recover ends at most half as many
    chain_by_queue: Mapping[str, int] = {}  # jobs of a strict group that may be leased together, if more than 1
    chained_max: int = 0  # total leases that may follow another one in a chain, in addition to `most`


class Exchanged(Struct, frozen=True, kw_only=True):
    """Result of settle + claim in one step. `known` False: the worker row is gone, and every lease with it."""

    answers: tuple[Answer, ...] = ()  # one per settlement, then one per release, in order
    leases: tuple[Lease, ...] = ()
    known: bool = True
    recovered: tuple[Recovered, ...] = ()  # leases this claim recovered inline
    sealed: Seal | None = None  # the store is sealed: outcomes were recorded, nothing was leased
    quiet_seconds: float = 0.0  # above 0: the store may have lost writes and leases nothing for this long
    opens_in: float | None = None  # seconds until a rate or slow-down that held this claim back allows the next start


class Renewal(Struct, frozen=True, kw_only=True):
    """Result of renew."""

    known: bool = True  # False: the worker row is gone; stop every handler
    lost: tuple[str, ...] = ()  # named ids that are no longer ours
    cancelled: tuple[str, ...] = ()  # named ids whose cancellation was requested
    released: tuple[str, ...] = ()  # ids the store had as ours that were not named: released at no cost
    unheard: tuple[str, ...] = ()  # named ids whose part of the store did not respond: their deadline did not move
    commands: tuple[Command, ...] = ()  # those the worker has not answered yet, oldest first


class Recovered(Struct, frozen=True, kw_only=True):
    """One lease ended by recover."""

    id: str
    task: str
    queue: str
    group: str | None
    state: State  # the job's new state
    worker: str
    stalls: int
    counted: bool  # False: the lease never began and was released at no cost
    shared_stalls: int = 0


class Promoted(Struct, frozen=True, kw_only=True):
    """What one promote pass did."""

    due: int = 0  # scheduled jobs that became ready or waiting
    expired: int = 0  # unstarted jobs buried or dropped as expired
    revived: int = 0  # dead letters revived automatically
    more: bool = False  # the limit was reached; call again


class Edit(Struct, frozen=True, kw_only=True):
    """What an operator changes about one unstarted job; UNSET keeps a value."""

    args: bytes | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    group: str | UnsetType | None = UNSET
    priority: int | UnsetType = UNSET
    order: int | UnsetType | None = UNSET
    due_at: float | UnsetType = UNSET
    delay: float | UnsetType = UNSET  # seconds from the store's now; excludes due_at
    revive: bool = False  # a dead job is revived first, in the same step

    @property
    def text(self) -> str:  # what is changed, for the job's timeline
        changed = [name for name in ("args", "queue", "group", "priority", "order") if getattr(self, name) is not UNSET]
        return ", ".join([*changed, *(["due"] if self.due_at is not UNSET or self.delay is not UNSET else [])])


class Pause(Struct, frozen=True, kw_only=True):
    """A pause: of a queue, of a group (queue and group), or of a task."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    reason: str = ""
    by: str = ""
    paused_at: float = 0.0  # set by the store


class QueueRecord(Struct, frozen=True, kw_only=True):
    """A queue as displayed: its declared rule and override, GCRA state, pause, and number of jobs per state."""

    name: str
    group_limit: int = 1
    group_order: GroupOrder = "strict"
    group_rate: Rate | None = None
    aging: float | None = None
    on_dead: OnDead = "go_on"
    order_window: float | None = None
    dead_queue: str | None = None
    declared: bool = False
    limit: int | None = None  # declared
    rate: Rate | None = None  # declared
    override: Override | None = None
    flow: Flow | None = None
    pause: Pause | None = None
    counts: Mapping[str, int] = {}
    oldest_due_at: float | None = None  # of ready jobs; of more than 10,000, of those that are claimed first

    @property
    def order(self) -> JobOrder:
        return "lifo" if self.aging == LIFO else "fifo"


class GroupRecord(Struct, frozen=True, kw_only=True):
    """A group as displayed: effective limit, override, pause, and its jobs in play and waiting."""

    queue: str
    name: str
    limit: int  # effective, 0 while paused
    override: int | None = None
    rate: Rate | None = None  # effective
    rate_override: Rate | None = None
    weight: int = 1
    flow: Flow | None = None
    order: GroupOrder = "strict"
    pause: Pause | None = None
    counts: Mapping[str, int] = {}  # unfinished jobs by state
    capped: tuple[str, ...] = ()  # states with more jobs than that: SQL stores count up to GROUP_COUNT_MAX of each
    head: str | None = None  # id of the job whose turn it is
    stopped_by: str | None = None  # id of the dead job that stops it (on_dead="stop")

    def number(self, state: str) -> str:
        """How many jobs are in this state, for display: "1000+" if not all of them were counted."""
        return f"{self.counts.get(state, 0)}{'+' if state in self.capped else ''}"


class PastDeath(Struct, frozen=True, kw_only=True):
    """An earlier death, kept in a dead letter's history."""

    job_id: str
    at: float
    reason: str
    error: str = ""
    args: bytes | None = None  # only if they differ from the newest


class DeadLetter(Struct, frozen=True, kw_only=True):
    """The one dead letter of a logical job: (queue, task, key), or the id if it has no key."""

    id: str  # the job that died most recently
    task: str
    queue: str
    key: str | None
    group: str | None
    args: bytes
    failure_count: int
    first_failed_at: float
    failed_at: float
    reason: str
    error: Failure | None = None
    history: tuple[PastDeath, ...] = ()  # oldest first, at most HISTORY_KEPT_MAX
    cycles: int = 0  # automatic revivals so far
    revive_at: float | None = None  # next automatic revival
    revived_at: float | None = None  # set while the revived job is live
    options: bytes | None = None  # of its job; filled in only by `letter` and `letters`


class Flaw(Struct, frozen=True, kw_only=True):
    """Something in the store that cannot be read or contradicts something else; listed by audit and doctor."""

    place: str  # table, index or key, e.g. "jobs", "ready", "letters"
    text: str  # what is wrong, without any payload
    id: str | None = None  # of the affected job, letter, worker or entry
    field: str | None = None


Comparison = Literal["=", "<", "<=", ">", ">="]
Sort = Literal["created", "due", "finished", "priority"]

SORTS: tuple[Sort, ...] = ("created", "due", "finished", "priority")


class Wanted(Struct, frozen=True):
    """One value of a condition. A text in several parts has anything between them: send_* is ("send_", "")."""

    op: Comparison = "="
    parts: tuple[str, ...] = ()
    number: float | None = None  # of a field with numbers; durations are seconds


class Condition(Struct, frozen=True, kw_only=True):
    """A condition that queries/match.py evaluates: one of the tests holds or, negated, none of them."""

    field: str
    tests: tuple[Wanted, ...]
    path: tuple[str, ...] = ()  # of "args": the keys down to the value
    negated: bool = False


class JobQuery(Struct, frozen=True, kw_only=True):
    """Which jobs: all given conditions must match. Newest first; `before` is the seq to continue below."""

    states: tuple[State, ...] = ()
    queue: str | None = None
    task: str | None = None
    group: str | None = None
    key: str | None = None
    worker: str | None = None
    id_prefix: str | None = None
    id_ends: tuple[str, ...] = ()  # the id begins or ends with one of these
    more: tuple[Condition, ...] = ()
    sort: Sort = "created"
    before: int | None = None
    beyond: float | None = None  # with a sort other than "created": the value at that seq
    limit: int = 50

    @property
    def by_due_index(self) -> bool:
        """Whether every store has an index in the order asked for: scheduled jobs by due time, soonest first."""
        return self.sort == "due" and self.states == (State.SCHEDULED,)

    def order(self, seq: int, due_at: float) -> tuple[float, float]:
        """Sorts as a scan goes: by due time, then seq; else newest first."""
        return (due_at, seq) if self.by_due_index else (-seq, 0.0)


class LetterQuery(Struct, frozen=True, kw_only=True):
    """Which dead letters; newest failure first."""

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    id_prefix: str | None = None
    limit: int = 50


class Dump(Struct, frozen=True, kw_only=True):
    """Everything the store holds, as plain values, in a stable order: for comparison and audit."""

    tables: Mapping[str, tuple[Mapping[str, Any], ...]]
    sharded: bool = False  # made of several stores, each with its own fence counter
    rearranging: bool = False  # a changed rule is still being applied: jobs may be where the old one put them
    # Rows (of jobs, letters, rate states) that changed while a large store was read in pages: not those of one instant.
    moving: tuple[Mapping[str, Any], ...] = ()


class Tick(Struct, frozen=True, kw_only=True):
    """One write to a cron entry, with the jobs it creates: a tick, a pause, a new or changed entry, its removal."""

    name: str
    version: int  # of the entry this decision is based on; 0: there is none yet
    entry: CronEntry | None  # the new entry; None removes it
    entry_if_skipped: CronEntry | None = None  # the new entry if overlap skips the jobs
    jobs: tuple[NewJob, ...] = ()
    not_before: float | None = None  # rejected while the store's clock is before it
    overlap: Overlap = "allow"
    previous: str | None = None  # the job that must not be live ("skip"), or is cancelled ("cancel")


class Ticked(Struct, frozen=True, kw_only=True):
    """Result of tick. `done` False: nothing was changed; `entry` is the current one."""

    done: bool
    entry: CronEntry | None = None
    enqueued: tuple[Enqueued, ...] = ()
    skipped: bool = False  # the previous job was live: the entry was written, the jobs were not


class Seal(Struct, frozen=True, kw_only=True):
    """One store's side of a move. Written by the mover; a store only stores and obeys it."""

    move: str  # the same in both stores, new for every move
    role: Literal["source", "target"]
    other: str  # the store on the other side, with its password masked
    stage: Literal["moving", "moved", "abandoned"] = "moving"
    since: float = 0.0
    part: Part | None = "rules"  # target: what is copied next (None: everything has arrived) …
    after: str = ""  # … and the position in it to continue after

    @property
    def closed(self) -> bool:
        """Whether the store accepts no work. A target opens once everything has arrived, and remembers the move."""
        return not (self.role == "target" and self.stage == "moved")

    def moved_on(self, shipment: Shipment) -> Seal:
        """The target's seal after that shipment has arrived."""
        if shipment.after is not None:
            return replace(self, part=shipment.part, after=shipment.after)
        following = PARTS[PARTS.index(shipment.part) + 1 :]
        return replace(self, part=following[0] if following else None, after="")


class StoredJob(JobRecord, frozen=True, kw_only=True):
    """A job as copied from store to store: everything kept about it, including its log lines. Never a lease."""

    turn: int | None = None
    rank: int = 0
    lane: int = 0
    prune_at: float | None = None
    logs: tuple[LogLine, ...] = ()
    marks: tuple[Mark, ...] = ()


class Shipment(Struct, frozen=True, kw_only=True):
    """A piece of one part of a store, on its way to another store."""

    part: Part
    queues: tuple[QueueRule, ...] = ()
    tasks: tuple[TaskRule, ...] = ()
    overrides: tuple[Override, ...] = ()
    flows: tuple[Flow, ...] = ()
    entries: tuple[CronEntry, ...] = ()
    pauses: tuple[Pause, ...] = ()
    jobs: tuple[StoredJob, ...] = ()  # by seq
    letters: tuple[DeadLetter, ...] = ()  # by id
    edges: tuple[Edge, ...] = ()  # by child and parent
    steps: tuple[Step, ...] = ()  # by job, kind and name
    tick: int = 0  # with the rules: no fence or turn issued by the store is above it
    seq: int = 0  # to a shard: no seq copied into its neighbours is above it
    after: str | None = None  # the position to continue after; None: this was the last of its part


# ----------------------------------------------------------------------------------------------------------------------
# Rules that code declares and operators override for queues, groups and tasks, and the GCRA state of their rates.


GroupOrder = Literal["strict", "relaxed"]
OnDead = Literal["go_on", "stop"]
JobOrder = Literal["fifo", "lifo"]
LIFO = -1.0  # as a queue's aging, which it excludes: jobs without a group are taken newest first

GROUP_WEIGHT_MAX = 100  # turns per round that a group may have
WEIGHED_LINE_MAX = 1000  # ready jobs counted to find its place; with more, it is computed from their turns
READY_PER_GROUP_MAX = 256  # a group never has more jobs ready at once, however high its limit
RULE_STEP_MAX = 1000  # jobs, and groups, that a rule change rearranges in its own step; the rest follows in batches
STAGGER_TICKS = 30 * 86_400_000_000  # between the turns of two ready jobs of one group: 30 days in microseconds
SERIAL_PREFIX = "one-at-a-time:"  # a group with this prefix is strict whatever its queue's rule
ORDER_MAX = 2**52 - 1  # largest order, and smallest below 0: microseconds up to the year 2112
STAGED_LOOKS_MAX = 32  # staged jobs (R104) that a refill looks at
GROUP_LOOKS_MAX = 64  # ready jobs a claim skips, per lane, because the worker already holds its share of their group


class QueueRule(Struct, frozen=True, kw_only=True):
    """A queue's declared rule. strict implies group_limit 1. Only Redis Cluster uses and keeps `shards`; no store keeps
    `group_prefetch`, which workers pass on with each claim."""

    name: str
    group_limit: int = 1  # UNLIMITED: no limit
    group_order: GroupOrder = "strict"
    shards: int = 1
    limit: int | None = None  # jobs running at once, over all workers
    rate: Rate | None = None
    group_rate: Rate | None = None  # for each group
    aging: float | None = None  # seconds of being ready that count as much as one step of priority; or LIFO
    group_prefetch: int = 1  # consecutive jobs of a strict group that a worker may lease together
    on_dead: OnDead = "go_on"  # what a strict group does when one of its jobs dies
    order_window: float | None = None  # seconds that a job with an order waits for others with lower ones (R104)
    dead_queue: str | None = None  # the queue that gets a copy of every job that dies (R120)


class TaskRule(Struct, frozen=True, kw_only=True):
    """What the code declares about a task that the store must know."""

    name: str
    limit: int | None = None  # jobs running at once, over all queues and workers
    rate: Rate | None = None
    apart: bool = False  # its ready jobs get a dedicated lane even without limit and rate
    retain_count: int | None = None  # keep at most this many succeeded and cancelled jobs
    retain_dead: float | None = None  # seconds to keep a dead letter and its job; None: forever
    retain_dead_count: int | None = None  # keep at most this many dead letters


class Override(Struct, frozen=True, kw_only=True):
    """An operator's override for a queue, a group (queue and group) or a task; beats the declared value until reset.

    UNSET keeps the current override, None resets to the declared value; UNLIMITED and NO_RATE lift a limit or rate.
    """

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    limit: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    apart: bool | UnsetType | None = UNSET  # of a task: True gives its ready jobs a dedicated lane
    weight: int | UnsetType | None = UNSET  # of a group: its turns per round; other groups have one (R106)


class Flow(Struct, frozen=True, kw_only=True):
    """The GCRA state of a queue, a group or a task. It has no effect once both times have passed."""

    queue: str | None = None
    group: str | None = None
    task: str | None = None
    spent_until: float = 0.0  # GCRA's theoretical arrival time, see rates.py
    shut_until: float = 0.0  # slowed down: nothing starts before this
    wakes_at: float | None = None  # when to refill a group whose waiting jobs the rate holds back


class TaskRecord(Struct, frozen=True, kw_only=True):
    """A task as displayed: its declared rule, its override, its GCRA state."""

    rule: TaskRule
    declared: bool = False
    override: Override | None = None
    flow: Flow | None = None
    running: int = 0
