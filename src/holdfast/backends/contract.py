"""The contract every store fulfils: one async method per verb, each one transaction, script or critical section.

Called by the app and the worker engine; fulfilled by memory (the reference), sqlite and later stores. A method never
runs user code, never sleeps for longer than its call timeout (wait_for_work excepted) and never lets a driver's
error escape: only errors of `holdfast.errors`.

Rules that hold for every method
* `now`: wall-clock seconds. None means the store's own clock, which alone decides; then lease deadlines live on a
  clock that does not jump. A given `now` replaces both clocks (tests travel in time by it).
* Batches answer item by item, in order; one refused item changes nothing of its own and nothing of its neighbours.
* A write about a lease names (id, token). If the job is not running under exactly that token: `Answer.LOST`, and a
  dump of the store is the same as before. Where somebody else's session holds the row: `Answer.BUSY`, and nothing
  of this lease has changed; its neighbours are carried out.
* What a group has in play is read off the jobs: ready + running + (scheduled and held). `held` is set when a lease of
  a *strict* group ends without finishing the job (retry, snooze, release, stall); it marks the head, which goes first
  when its group is refilled and keeps its group's place while it is scheduled.
* expires_at is dropped when an attempt ends and the job goes on: it was claimed in time.
* Every grouped job becomes claimable the same way: it is `waiting`, then REFILL makes as many waiting jobs ready as the
  group has room: room = limit − in play; order held first, then priority (high first), then seq. Where there is room
  and someone waits, scheduled jobs of the group that are due and not held join the waiting ones first. The effective
  limit is 0 while the group is paused, else 1 for strict, else the group's override, else the queue's group_limit.
  An undeclared queue is strict with limit 1.
* seq: integer issued at enqueue, never changes. turn: issued from a growing counter when a job becomes ready; release
  and recover keep the turn they had (also through `waiting`); a job that leaves for `scheduled` gets a new one later.
* lane of a ready job: 0 ungrouped, 1 grouped, 2 parked (its task is paused; not claimable, keeps its place and turn).
* fence: from one growing store-wide counter that is never below the wall clock in microseconds, so it grows per job
  and per group even if the store is rolled back. token: unique per claim and job, unguessable.
* Counters: attempts += 1 when a lease ends by a settlement (any ending) or a counted stall; failures += 1 only when
  the settlement says `failed`; stalls += 1 only for a counted stall suffered alone, shared_stalls += 1 only for one
  suffered among others. Nothing else ever touches them, except revive and retry, which set all four to 0.
* Death (settle buried, one stall too many, expiry, operator's bury) is one step: the job becomes dead with its reason
  and the dead letter of its logical job is made or merged: count + 1, first_failed_at kept, failed_at and arguments
  newest, the earlier death moved into history. If an older job of the same key held the letter, that job stays dead
  with reason "superseded" and may be pruned. `prune` never takes a dead job that holds its letter.
* Success or cancellation of a logical job closes (removes) its dead letter; an older dead job that held it becomes
  "superseded". A superseded or discarded job may be pruned after 600 s.
* A stall: recover ends the lease, or its owner settles it as `stalled` (the process that ran it died without a result,
  so it had begun). ONE routine decides both, by lifecycle.stall_verdict. It was suffered alone if the settlement says
  so; for recover, if the job was leased as a suspect, or its worker does not isolate (nobody can tell then: every stall
  counts). A counted stall makes the job a suspect and appends its failure; it is dead at one stall too many (stalls
  above max_stalls, shared_stalls above SHARED_STALLS_MAX, or any where max_stalls is 0), with the failure's reason;
  else ready or waiting with its old turn. With a cancel asked for the job becomes cancelled; it counts all the same. A
  max_stalls 0 lease that recover finds not begun is given back free.
* suspect: set by a counted stall; cleared by a settlement with any other ending, by revive and retry; release and all
  else keep it. Suspects are claimed like other jobs; the lease says so, and a worker that isolates runs it alone.
* A claim after the worker's own deadline finds that worker among the stalled: it is recovered, the answer known=False.
* A store that many hosts share and that may have lost its latest writes (a failover) hands out no leases and recovers
  nothing for the longest lease it knows of; renewals, settlements and releases are served. `quiet_seconds` tells.
* Jobs that become ready in one step have no promised order among different groups.
* Finishing a job sets when it may be pruned: finished_at + max(retain, 600 s). A dead job that holds a letter: never.
* A sealed store (one whose Seal is closed) takes no work in, starts none and lets operators change nothing: enqueue, a
  declare that would change a rule, promote, refill, prune, bury, run_now, revive, retry, discard, pause, resume,
  limit_group and the cancel of an unstarted job raise StoreSealed and change nothing. A claim carries out its
  settlements and releases, recovers, leases nothing and answers `sealed`. All that lets a running job end goes on:
  register, begin, renew, report, settle, release, retire, recover, and the cancel of a running job. So once a sealed
  store has no running job, no job, letter, rule or pause in it changes any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from ..errors import ConfigurationError
from ..lifecycle import Settlement, State
from ..records import (
    Answer,
    ClaimRequest,
    DeadLetter,
    Dump,
    Enqueued,
    Exchanged,
    GroupRecord,
    Held,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    NewJob,
    Part,
    Pause,
    Promoted,
    QueueRecord,
    QueueRule,
    Recovered,
    Release,
    Renewal,
    Report,
    Seal,
    Shipment,
    WorkerRecord,
)


class Backend(ABC):
    """A store of jobs."""

    scheme: ClassVar[str]
    durable: ClassVar[bool]  # an acknowledged enqueue survives the end of this process
    sharded: ClassVar[bool] = False  # ids, keys and fences are unique per shard (a group is in one), not store-wide

    # ------------------------------------------------------------------ opening and closing

    @abstractmethod
    async def open(self) -> None:
        """Connect; create or migrate where the store sets itself up. Idempotent; called before anything else.

        Raises SchemaMismatch (store newer), ConfigurationError (not a store of ours), BackendUnavailable.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and threads. Idempotent; the backend may be opened again."""

    @abstractmethod
    async def migrate(self) -> tuple[int, int]:
        """Bring the schema to this version's; answers (before, after). Safe twice and by two at once."""

    @abstractmethod
    async def clock(self) -> float:
        """The store's wall clock."""

    # ------------------------------------------------------------------ producing

    @abstractmethod
    async def declare(self, rules: Sequence[QueueRule], now: float | None = None) -> None:
        """Store the queues' rules; the latest word wins. Where a rule changed, groups are refilled or withdrawn."""

    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        """Store jobs, all in one step. A known id: (id, created=False), nothing changed, also when it finished.

        A key that a live job of the same (queue, task) has: "keep" answers the live id, created=False; "replace" gives
        an unstarted live job everything of the new call but its id (it keeps id, seq, counters; max_stalls never falls
        below the stalls it suffered) and answers replaced=True, while a running one is kept as with "keep"; "raise"
        raises DuplicateJob and NOTHING of the batch is stored. Due later → scheduled; due now → ready, or waiting +
        refill when it has a group.
        """

    # ------------------------------------------------------------------ leasing

    @abstractmethod
    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        """Store the worker's row, deadline now + lease_seconds. Repeating it renews the deadline and takes over
        `queues` and `slots`, nothing else."""

    @abstractmethod
    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        """Lease up to `most` ready jobs of the queues: first recover (at most 100 leases), then promote (at
        most 200 jobs), then the lanes.

        Per queue, in the order given, skipping paused queues: two lanes, ungrouped and grouped, each ordered by
        priority (high first), turn, seq; jobs of paused tasks are in neither. Of n jobs to take, the lane whose number
        has the parity of `call` (0 ungrouped, 1 grouped) gets n - n // 2, the other n // 2; what one cannot use the
        other may.
        An expired job met here is buried, not leased. A repeated `call` answers the leases of the first time that are
        still ours (nothing is claimed anew, nothing counted); a `call` below the last one
        answers no leases (its settlements are fenced and carried out like any).
        Unknown worker (recovered or never registered): known=False, no leases; the settlements and releases of an
        exchange are still carried out, each by its token.
        """

    @abstractmethod
    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        """Mark leases begun before their handlers start (at-most-once tasks need it). Cancel asked for: CANCELLED."""

    @abstractmethod
    async def renew(
        self,
        worker: str,
        held: Sequence[Held],
        *,
        seen_call: int,
        portrait: bytes | None = None,
        now: float | None = None,
    ) -> Renewal:
        """Move the worker's deadline to now + its lease_seconds; ONE write however many leases.

        Names what the worker holds and the last claim whose answer it has (`seen_call`). Leases of this worker from a
        claim ≤ seen_call that are not named are given back free. Accepted after the deadline too, while the row exists.
        A `portrait` (JSON of the runners, for people) is kept with the row in the same step and goes with it; None
        leaves the one that is there, as does one of more than PORTRAIT_BYTES_MAX: it must not cost a renewal. No other
        verb but the reading ones touches it, so that it costs them nothing.
        """

    @abstractmethod
    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        """Store progress and log lines of running jobs, fenced; a cancel asked for does not refuse them."""

    @abstractmethod
    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        """End leases with outcomes, fenced. Where a cancel was asked for, anything but `cancelled` and `stalled`
        answers CANCELLED.

        Accepted after the deadline while nobody recovered the lease. The store fills in the failure's at, attempt,
        fence, worker and started_at. Touched groups are refilled in the same step.
        """

    @abstractmethod
    async def exchange(
        self,
        settlements: Sequence[Settlement],
        releases: Sequence[Release],
        request: ClaimRequest | None,
        now: float | None = None,
    ) -> Exchanged:
        """settle, release and claim (of 0 jobs, too) in one step, in that order.

        A repeated request.call answers as the first time:

        the first answers to the settlements and releases (they are not applied again), the leases still ours.
        """

    @abstractmethod
    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        """Give leases back unfinished; no counter changes; with a cancel asked for the job becomes cancelled.

        Without delay: ready (its old turn) or, in a group, waiting + refill. With delay: scheduled.
        """

    @abstractmethod
    async def retire(self, worker: str, now: float | None = None) -> int:
        """The worker stops for good: what it holds is given back free, its row goes. Answers how many leases."""

    @abstractmethod
    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        """End the leases of workers whose deadline passed, and of workers the caller proved dead (`dead`).

        Also used inside claim. Each lease ends as a stall with Failure(reason="stalled"): free (no counter), again
        (ready/waiting, old turn), bury (dead) or cancel (cancelled). The worker's row goes once it holds nothing.
        Bounded by `limit`.
        """

    # ------------------------------------------------------------------ sweeping

    @abstractmethod
    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        """Bring due scheduled jobs into play, bury expired unstarted ones, revive dead letters that are due for it."""

    @abstractmethod
    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        """Safety net: refill groups that have waiting jobs and room. Answers how many it made ready; 0 is normal."""

    @abstractmethod
    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        """Remove finished jobs past their retention (or finished over `older_than` seconds ago, at least 600)."""

    # ------------------------------------------------------------------ operating, one job at a time

    @abstractmethod
    async def cancel(self, job_id: str, now: float | None = None) -> JobRecord:
        """Unstarted → cancelled (its group refilled). Running → marked, still running. Cancelled → unchanged.

        succeeded, dead → StateConflict. Unknown → JobNotFound (as for every method here).
        """

    @abstractmethod
    async def bury(self, job_id: str, reason: str, now: float | None = None) -> JobRecord:
        """Unstarted → dead, with its dead letter (reason "bury", text = the reason given). Else StateConflict."""

    @abstractmethod
    async def run_now(self, job_id: str, now: float | None = None) -> JobRecord:
        """scheduled → due now, in play. Else StateConflict."""

    @abstractmethod
    async def revive(self, job_id: str, now: float | None = None) -> JobRecord:
        """dead → in play with fresh budgets (all counters 0, no suspect), due now, expiry dropped; errors are kept.

        The letter stays, marked revived_at, and its automatic revival is unset. Already revived and live: unchanged, no
        error. Superseded or another live job has its key: StateConflict with that id. Not dead and without a letter:
        StateConflict.
        """

    @abstractmethod
    async def retry(self, job_id: str, now: float | None = None) -> JobRecord:
        """Any finished job again with fresh budgets. On a dead one it IS revive. Key live elsewhere: StateConflict."""

    @abstractmethod
    async def discard(self, job_id: str, now: float | None = None) -> DeadLetter:
        """Remove a dead letter; its job stays dead, reason "discarded", prunable. Revived and live: StateConflict."""

    @abstractmethod
    async def pause(self, pause: Pause, now: float | None = None) -> None:
        """Pause a queue (nothing of it is claimed), a group (ready ones withdrawn) or a task (parked). Idempotent."""

    @abstractmethod
    async def resume(self, pause: Pause, now: float | None = None) -> bool:
        """End that pause (same queue, queue + group, or task); False if there was none. A group is refilled."""

    @abstractmethod
    async def limit_group(self, queue: str, group: str, limit: int | None, now: float | None = None) -> None:
        """Override a group's limit; None: back to the queue's. Below 1, or above 1 on strict: ConfigurationError."""

    # ------------------------------------------------------------------ reading

    @abstractmethod
    async def get(self, job_id: str) -> JobRecord | None: ...

    @abstractmethod
    async def find(self, query: JobQuery) -> list[JobRecord]: ...

    @abstractmethod
    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        """Jobs by queue and state; queues and states with none are left out."""

    @abstractmethod
    async def logs(self, job_id: str) -> list[LogLine]: ...

    @abstractmethod
    async def letter(self, job_id: str) -> DeadLetter | None: ...

    @abstractmethod
    async def letters(self, query: LetterQuery) -> list[DeadLetter]: ...

    @abstractmethod
    async def queues(self) -> list[QueueRecord]:
        """Every queue that is declared, paused or has jobs, by name."""

    @abstractmethod
    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        """Groups with unfinished jobs, an override or a pause, by queue and name."""

    @abstractmethod
    async def group(self, queue: str, name: str) -> GroupRecord: ...

    @abstractmethod
    async def pauses(self) -> list[Pause]: ...

    @abstractmethod
    async def workers(self, now: float | None = None) -> list[WorkerRecord]: ...

    @abstractmethod
    async def dump(self) -> Dump:
        """One consistent picture of everything: tables `jobs` (as in `JobRecord`, plus token, turn, lane, claim_call,
        prune_at), `letters` (as `DeadLetter`), `workers` (as `WorkerRecord`, plus deadline, last_call), `queues` (as
        `QueueRule`), `groups` (queue, name, override), `pauses` (as `Pause`), `logs` (job_id, at, text). States are
        text, structs are dicts, bytes stay bytes."""

    # ------------------------------------------------------------------ moving to another store

    @abstractmethod
    async def sealed(self) -> Seal | None:
        """The store's side in a move, also one that has ended and left it open; None: it never took part in one."""

    @abstractmethod
    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        """Put `seal` in the place of exactly `instead_of`; False: another one is there, and nothing was changed.

        Nobody is in the middle of a step when a seal closes the store: every enqueue, claim and caller's transaction
        that got in before has ended, and none gets in after. Waits for them no longer than the call timeout, then
        BackendUnavailable.
        A new seal (other move or none before) with the role of target: ConfigurationError unless the store has no job,
        letter, override and pause; rules of queues are removed, they come with the move and with every start.
        """

    @abstractmethod
    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        """A piece of the store: `limit` jobs by seq or letters by id after that place, or all rules at once.

        Reads only. Complete and the same every time only on a sealed store without running jobs.
        """

    @abstractmethod
    async def carry(self, move: str, shipment: Shipment) -> None:
        """Put a shipment into this store, in one step with the place its seal remembers (part and after).

        Ids, seq, turns, counters, states, times, fences stay as they are; nothing is refilled or promoted. What is
        there already (by id, name or queue and name) stays as it is, so repeating a shipment changes nothing. All
        counters of the store move above those that come in: fences, turns and seqs go on growing.
        StoreSealed or ConfigurationError unless the store is the target of exactly this move, still `moving`.
        A shipment with a running job, or with a live job whose key another live job of its queue and task has here (a
        store of shards may hold both): ConfigurationError.
        """

    # ------------------------------------------------------------------ waiting

    @abstractmethod
    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        """Return when there may be work in these queues, or after `timeout` seconds. A hint; polling is the truth."""

    # ------------------------------------------------------------------ the caller's own transaction

    def enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue through the caller's own driver connection, inside the caller's transaction.

        Plain INSERTs: every job goes in due-now `scheduled` (or later), promote brings it into play.
        Raises ConfigurationError where the store or the connection does not allow it.
        """
        self._refuse_to_join()

    async def aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """As `enqueue_on`, through an async driver on the caller's own loop."""
        self._refuse_to_join()

    def _refuse_to_join(self) -> NoReturn:
        raise ConfigurationError(f"{self.scheme}:// cannot join a caller's transaction. Enqueue without connection=.")
