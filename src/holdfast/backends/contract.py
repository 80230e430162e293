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
  An undeclared queue is strict with limit 1. A group whose name begins with SERIAL_PREFIX is strict in every queue.
  A group has at most READY_PER_GROUP_MAX ready jobs, whatever its limit. With a rate (the group's override, else the
  queue's group_rate) it has no more ready jobs than its bucket allows; where that alone keeps jobs waiting, its flow
  says in `wakes_at` when promote is to refill it (and unset it): opens_at of rates.py + every * its ready jobs, if
  spent_until is to come. A hint: it may be set although nobody waits any more.
  Ready jobs above the limit or the bucket are withdrawn: waiting again, turn kept, the last of the order first.
* seq: integer issued at enqueue, never changes. turn: issued when a job becomes ready, from a growing counter that is
  never below the wall clock in microseconds (ticks); release and recover keep the turn they had (also through
  `waiting`); a job that leaves for `scheduled` gets a new one later.
  A grouped job that becomes ready while k others of its group are ready gets a turn k * STAGGER_TICKS beyond the
  counter, but above all of theirs: so groups take turns, and who has one job does not wait for who has a million.
  Staggered turns do not move the counter.
* rank of a ready job: its priority; in a queue with `aging` 0, and its turn, when it is issued, is earlier by
  priority * aging seconds (in ticks, rounded down). Claim takes the highest rank first. A changed `aging`
  holds for jobs that become ready from then on.
* lane of a ready job: 2 parked (its task is paused; not claimable, keeps its place and turn), else 3 apart (its task
  has a limit or a rate in force, or its rule or an override says `apart`), else 0 ungrouped, 1 grouped. A job of a task
  apart holds its group's place like any other.
* A changed rule holds at once; the jobs it concerns are rearranged piecewise. Whatever changes a task's lane (pause,
  resume, limit, declare) moves at most `rule_step_max` of its ready jobs in its own step; whatever changes the limit,
  order or rate of a queue's groups refills or withdraws at most `rule_step_max` groups in its own step. What is left is
  remembered in the store and carried on by `rearrange`, and by every claim with at most sweep_max. Until then claim
  leases no job that the rules as they stand would not let it: a ready job that is not in the lane its task's rule says
  is moved, not leased; a group that is still to be fitted is fitted before one of its jobs is leased. A further change
  takes over what is left. The readers show rules as they stand, jobs where they are.
* Limits in force: an override's value, else the declared one. A queue's limit counts its running jobs, a task's those
  of all queues: counted from the jobs (or by what is changed in the one place that moves jobs, and audited).
* Buckets (rates.py): of a queue, of a task, of a group. Only claim charges them: each bucket is read once and, if jobs
  were leased from it, written once per claim, with all that were leased. No other verb gives anything back to them.
  Where no rate is in force (none, or NO_RATE) nothing is charged or written. Before claim (of a queue or a task) and
  refill (of a group with waiting or ready jobs) reckon with a bucket they set it back by `bounded`, where the rate was
  raised or the clock set back, and store that.
  A flow's row is there from its first charge or slow_down until prune finds both times past (and no wakes_at).
* fence: from one growing store-wide counter that is never below the wall clock in microseconds, so it grows per job
  and per group even if the store is rolled back. token: unique per claim and job, unguessable.
* Counters: attempts += 1 when a lease ends by a settlement (any ending) or a counted stall; failures += 1 only when
  the settlement says `failed`; stalls += 1 only for a counted stall suffered alone, shared_stalls += 1 only for one
  suffered among others. Nothing else ever touches them, except revive and retry, which set all four to 0.
* Keys. A job holds its key from its creation: until it finished; or, with key_until "started", until its first lease;
  or, with key_window (key_until is not looked at then), until created_at + key_window, whatever became of it (it is
  not pruned before, not by older_than either). `holds_key` says so; a window that has passed (at that very moment it
  has) counts for nothing, and its holder's flag falls when another job takes the key. Keys are one per (queue, task),
  with key_scope "global" per task; the two scopes know nothing of each other. At most one job holds a key. Retry,
  snooze, release and recovery never ask for it. revive and retry of a finished job take the key again (StateConflict
  while another holds it): also that of "started", until the next lease; also that of a window that has passed.
  Automatic revival asks the same and is unset where it is refused. Without a key, what a call says about it means
  nothing and need not be kept.
* Death (settle buried, one stall too many, expiry, operator's bury) is one step: the job becomes dead with its reason
  and the dead letter of its logical job ((queue, task, key), or the id) is made or merged: count + 1, first_failed_at
  kept, failed_at and arguments newest, the earlier death moved into history. If an older job of the same key held the
  letter, that job stays dead with reason "superseded" and may be pruned. `prune` never takes a dead job that holds its
  letter.
* Success or cancellation of a logical job closes (removes) its dead letter; an older dead job that held it becomes
  "superseded". A superseded or discarded job may be pruned after 600 s. Where two jobs of a key are live at once (one
  of them no longer holds it) and one takes over or closes the letter of the other that was revived, that other goes on
  as it is, without a letter.
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
* Expiry with on_expire "drop": the job becomes cancelled with reason "expired" instead of dead, retained for a day; no
  failure is added to its errors, and promote counts it as expired all the same.
* Finishing a job sets when it may be pruned: finished_at + max(retain, 600 s), not before its key's window has passed.
  A dead job that holds a letter: never, unless its task's rule says retain_dead or retain_dead_count.
* Cron entries are written by `tick` alone, each write compared with the entry's version.
* A sealed store (one whose Seal is closed) takes no work in, starts none and lets operators change nothing: enqueue, a
  declare that would change a rule, promote, refill, rearrange, prune, bury, run_now, revive, retry, discard, pause,
  resume, limit, slow_down, tick and the cancel of an unstarted job raise StoreSealed and change nothing. A claim
  carries out its settlements and releases, recovers, leases nothing and answers `sealed`. All that lets a running job
  end goes on: register, begin, renew, report, settle, release, retire, recover, and the cancel of a running job. So
  once a sealed store has no running job, no job, letter, rule or pause in it changes any more. Whoever seals a store
  rearranges first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from ..errors import ConfigurationError
from ..lifecycle import Settlement
from ..records import (
    RULE_STEP_MAX,
    Answer,
    ClaimRequest,
    DeadLetter,
    Enqueued,
    Exchanged,
    Held,
    JobRecord,
    NewJob,
    Override,
    Part,
    Pause,
    Promoted,
    QueueRule,
    Recovered,
    Release,
    Renewal,
    Report,
    Seal,
    Shipment,
    TaskRule,
    Tick,
    Ticked,
    WorkerRecord,
)
from .reader import Reader


class Backend(Reader):
    """A store of jobs."""

    scheme: ClassVar[str]
    durable: ClassVar[bool]  # an acknowledged enqueue survives the end of this process
    any_loop: ClassVar[bool] = False  # its calls may be awaited on any loop, not only on the one that opened it
    sharded: ClassVar[bool] = False  # ids, keys and fences are unique per shard (a group is in one), not store-wide

    rule_step_max: int = RULE_STEP_MAX  # jobs, and groups, that a changed rule rearranges in its own step

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
    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        """Store the rules of queues and tasks; the latest word wins. Where a rule changed, groups are refilled or
        withdrawn, jobs change their lane, both piecewise. A task rule that says nothing (all defaults) removes the one
        that is there.
        Limits below 1: ConfigurationError, and nothing of all is stored."""

    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        """Store jobs, all in one step. A known id: (id, created=False), nothing changed, also when it finished.

        A key that another job holds: "keep" answers the holder's id, created=False; "replace" gives an unstarted holder
        everything of the new call but its id (it keeps id, queue, seq, created_at, due_max, counters; its turn, where
        it is due at once and group and priority stay; max_stalls never falls below the stalls it suffered) and answers
        replaced=True, while a running or finished one is kept as with "keep"; "debounce" does as "replace", due at its
        new time but never after the holder's due_max, now if that is past; "raise" raises DuplicateJob and NOTHING
        of the batch is stored. due_max = created_at + wait_max, if given, whatever on_conflict says. Due later →
        scheduled; due now → ready, or waiting + refill when it has a group.
        """

    # ------------------------------------------------------------------ leasing

    @abstractmethod
    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        """Store the worker's row, deadline now + lease_seconds. Repeating it renews the deadline and takes over
        `queues` and `slots`, nothing else."""

    @abstractmethod
    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        """Lease up to `most` ready jobs of the queues: first recover (at most ceil(sweep_max / 2) leases), then promote
        (at most sweep_max jobs, whatever it does with them), then the lanes.

        The claim ends before the job whose arguments would bring the sum of all leased above `bytes_max`; the first job
        is leased whatever its size. Jobs left out by that stay as they are, and `opens_in` says nothing of them.

        Per queue, in the order given, skipping paused ones and those shut by slow_down: n = the least of what is left
        of `most`, most_by_queue, the queue's limit less what runs of it, what its bucket allows. Its lanes are 0, 1
        and, by name, one for each task apart that has ready jobs here and room: the least of the task's limit less what
        runs of it, what its bucket allows, most_by_task (each less what this claim has leased). Each lane is ordered by
        rank (high first), turn, seq. Of m lanes the one numbered call % m goes first, the others follow in their order
        and round; the i-th (from 0) gets a share of ceil(left / (m - i)) of what is then left, and no more than its
        task's room; a second round in the same order gives away what is still left.
        Jobs of a group of which this worker holds most_by_group already are passed over, at most GROUP_LOOKS_MAX of
        them per lane and claim, then the lane is done.
        `opens_in`: seconds until the first of the buckets and slow-downs that held this claim back (those of queues
        asked for and not paused that still have ready jobs not parked, of tasks apart with ready jobs in such queues;
        as things stand after this claim) lets one more start; None: none did.
        An expired job met here is buried or dropped, not leased. A repeated `call` answers the leases of the first time
        that are still ours (nothing is claimed anew, nothing counted). A worker that repeats a call may lower `most`,
        `bytes_max` and `sweep_max`, never raise them: leases of the first time that do not fit, in the order in which
        they were leased, are given back free in the same step and are not answered. A `call` below the last one
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
        """The worker stops for good: what it holds is given back free, its row goes. Answers how many leases.

        As a release, it is the holder's word that no handler of these runs or ran. So a lease marked begun is given
        back, too: its handler was not started after all. One that was stopped is settled as stalled before this.
        """

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
        """Bury or drop expired unstarted jobs, bring due scheduled ones into play, revive letters due for it: in this
        order, at most `limit` of all three together. `more`: the bound was hit."""

    @abstractmethod
    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        """Safety net: refill groups that have waiting jobs and room. Answers how many it made ready; 0 is normal."""

    @abstractmethod
    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        """Remove finished jobs past their retention (or finished over `older_than` seconds ago, at least 600),
        and flows that say nothing any more. Answers how many jobs.

        Also what the task rules let go, the oldest first: succeeded and cancelled jobs beyond the newest retain_count
        of a task (by finished_at, seq), dead letters with their jobs beyond the newest retain_dead_count (by failed_at,
        seq of the job) or whose failed_at is more than retain_dead seconds ago. Never a job finished within 600 s, nor
        one whose key's window has not passed, nor a letter whose job is live. All within `limit`: retention first,
        then by rule (tasks by name: count, then dead by age, then dead by count).
        """

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        """Carry on what changed rules left to do: at most `limit` jobs and groups. True: there is more."""
        return False

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
        """End that pause (same queue, queue + group, or task), of a queue its slow-down, too; a group is refilled.

        False if there was neither.
        """

    @abstractmethod
    async def limit(self, override: Override, now: float | None = None) -> None:
        """An operator's word on a queue, a group (queue and group) or a task: it holds until it is reset.

        UNSET leaves, None resets; an override that says nothing any more is removed. Groups are refilled or withdrawn,
        jobs change their lane, both piecewise. A limit below 1, or above 1 on a strict group: ConfigurationError.
        """

    @abstractmethod
    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        """Nothing of the queue starts for so long, or until resume; leases are untouched. Never shortens.

        Answers until when (wall).
        """

    # ------------------------------------------------------------------ cron

    @abstractmethod
    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        """Write a cron entry and enqueue its jobs, in one step: of many that try, one succeeds.

        done=False and nothing changed where the stored version (0: none) is not tick.version, or not_before is after
        now. Else overlap: "skip" with a live `previous` leaves the jobs out (skipped=True) and stores entry_if_skipped;
        "cancel" cancels `previous` if it is live (as the verb cancel does); then the jobs are enqueued as by `enqueue`
        ("raise" is taken as "keep"). The entry is stored with version + 1 (None: removed). Answers what is stored then.
        """

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
        letter, override, pause and cron entry that was not declared by code; rules, flows and declared entries are
        removed, they come with the move and with every start.
        """

    @abstractmethod
    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        """A piece of the store: `limit` jobs by seq or letters by id after that place, or all rules at once.

        Reads only. Complete and the same every time only on a sealed store without running jobs.
        """

    @abstractmethod
    async def carry(self, move_id: str, shipment: Shipment) -> None:
        """Put a shipment into this store, in one step with the place its seal remembers (part and after).

        Ids, seq, turns, counters, states, times, fences stay as they are; nothing is refilled or promoted. What is
        there already (by id, name or queue and name) stays as it is, so repeating a shipment changes nothing. All
        counters of the store move_id above those that come in: fences, turns and seqs go on growing.
        StoreSealed or ConfigurationError unless the store is the target of exactly this move_id, still `moving`.
        A shipment with a running job, or with a job that holds a key which another job holds here, going by holds_key
        alone (a store of shards may hold both): ConfigurationError.
        """

    # ------------------------------------------------------------------ waiting

    @abstractmethod
    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        """Return when there may be work in these queues, or after `timeout` seconds. A hint; polling is the truth.

        Ready jobs that a limit, a rate or a slow-down holds back are no work; the end of a lease that frees a place of
        a limited queue or task is reason to return.
        """

    # ------------------------------------------------------------------ on the caller's own thread

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """As `enqueue`, from a thread that runs no loop and waits. None: nothing was done, there is no such way."""
        return None

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
