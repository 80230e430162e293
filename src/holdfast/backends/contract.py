"""The contract every store implements: one async method per verb, each one transaction, script or critical section.

Called by the app and the worker engine; implemented by sqlite, memory (SQLite in RAM), postgres, redis and the sharded
router. A method never runs user code, never blocks for longer than its call timeout (except wait_for_work) and never
lets a driver's error escape: it raises only errors of `holdfast.errors`.

Rules for every method. They are numbered so that statements, scripts and tests can cite them; the docstrings of the
methods, and then the reader, continue the numbers.

R1. Time. `now` is wall-clock seconds. None means the store's own clock, and only that clock counts; lease deadlines
  then use a clock that does not jump. A given `now` replaces both clocks, so tests can travel in time.
R2. Batches return one result per item, in order. A refused item changes nothing, neither its own job nor others.
R3. Fencing. A write to a lease names (id, token). If the job is not running under exactly that token, the result is
  `Answer.LOST` and a dump of the store is the same as before. If another session has locked the row, the result is
  `Answer.BUSY` and nothing about this lease has changed; the other items of the batch are applied.
R4. A group's jobs in play are counted from the jobs: ready + running + (scheduled or dead, and held). `held` is set
  when a lease of a *strict* group ends without finishing the job (retry, snooze, release, stall). It marks the head of
  the group, which goes first when the group is refilled and occupies the group's slot while it is scheduled. A dead job
  is held if it stops its group (R95).
R5. expires_at is cleared when an attempt ends and the job continues: the job was claimed in time.
R6. Refill. Every grouped job becomes claimable the same way: it is `waiting`, then REFILL makes as many waiting jobs
  ready as the group has room for. room = limit − in play; order: held first, then priority (high first), then R103. If
  there is room and jobs are waiting, scheduled jobs of the group that are due and not held become waiting first. The
  effective limit is 0 while the group is paused, else 1 for strict, else the group's override, else the queue's
  group_limit. An undeclared queue is strict with limit 1. A group whose name begins with SERIAL_PREFIX is strict in
  every queue. A group has at most READY_PER_GROUP_MAX ready jobs, whatever its limit. With a rate (the group's
  override, else the queue's group_rate) it has no more ready jobs than its bucket allows; if only the rate keeps jobs
  waiting, `wakes_at` in its flow is when promote must refill it (and clear wakes_at): opens_at of rates.py + every *
  its ready jobs, if spent_until is in the future. It is a hint: it may be set although no job is waiting any more.
  Ready jobs above the limit or the bucket are withdrawn, last first: they are waiting again and keep their turn.
R103. `order` is a whole number of the caller's, at most ORDER_MAX either side of 0. Within a priority, jobs of a group
  without one come first, then by order, then by seq. "replace" and edit change it; without a group it means nothing.
R104. With an `order_window` in the queue's rule, a new job with group and order but no delay or due_at is due at now +
  order_window. Staged jobs are scheduled, with an order, not held, never leased, due within order_window. A refill of a
  group that has room or a ready job, once due jobs joined, lets those staged among its first STAGED_LOOKS_MAX scheduled
  jobs with an order join that come before a waiting or ready job (not held). Enqueue, "replace" and edit call for one.
R105. In a group of limit 1, a refill makes the ready job waiting again, with its turn, if the first waiting job comes
  before it, both have an order and neither is held. So a step that takes a waiting job away unstarted refills, too.
R7. seq is an integer issued at enqueue and never changes. turn is issued when a job becomes ready, from a growing
  counter that is never below the wall clock in microseconds (ticks). release and recover keep the job's turn (through
  `waiting`, too); a job that becomes `scheduled` gets a new one later.
  A grouped job that becomes ready while k others of its group are ready gets a turn k * STAGGER_TICKS beyond the
  counter, which does not advance, and above all of theirs: so groups alternate, whatever the number of their jobs.
R106. A job of a group with a weight w (Override) that gets a new turn t while no other of its group is ready gets one
  between the k-th and the next ready job of lane 1 in its queue with its rank, by turn, but never above t: k = max(1, n
  // w) of n; t if there are no more than k. Of n above WEIGHED_LINE_MAX: first + (t - first) // w.
R8. The rank of a ready job is its priority. In a queue with `aging` the rank is 0, and its turn, when issued, is
  earlier by priority * aging seconds (in ticks, rounded down). Claim takes the highest rank first. A changed `aging`
  applies to jobs that become ready from then on.
R98. `aging` LIFO excludes any other: the rank is the priority, and the turn of a job without a group is the negative of
  the one issued. So of two such jobs the one that became ready later goes first; jobs with a group keep their order.
R9. The lane of a ready job is 2 parked (its task is paused; not claimable, keeps its slot and turn), else 3 `apart`
  (its task has a limit or a rate in force, or its rule or an override sets `apart`), else 0 ungrouped, 1 grouped. A job
  in the `apart` lane occupies its group's slot like any other.
R10. A changed rule applies at once; the affected jobs are rearranged in steps. A call that changes a task's lane
  (pause, resume, limit, declare) moves at most `rule_step_max` of its ready jobs itself; a call that changes the limit,
  order or rate of a queue's groups refills or withdraws at most `rule_step_max` groups itself. The rest is recorded in
  the store and continued by `rearrange`, and by every claim with at most sweep_max. Until then claim leases no job that
  the current rules forbid: a ready job in the wrong lane is moved, not leased; a group that is still to be adjusted is
  adjusted before one of its jobs is leased. A further change takes over the rest. The readers show the current rules,
  and jobs where they are.
R11. The limit in force is the override's value, else the declared one. A queue's limit counts its running jobs, a
  task's limit those of all queues. Both are counted from the jobs (or by a counter that changes only in the one place
  that moves jobs, and is audited).
R12. Buckets (GCRA, see rates.py) belong to a queue, a task or a group. Only claim charges them: each bucket is read
  once per claim and, if jobs were leased from it, written once, for all of them. No other verb refunds a bucket. If no
  rate is in force (none, or NO_RATE), nothing is charged or written. Before claim (for a queue or a task) and refill
  (for a group with waiting or ready jobs) use a bucket, they clamp it with `bounded` in case the rate was raised or the
  clock set back, and store the result.
  A flow's row exists from its first charge or slow_down until prune finds both times past (and no wakes_at).
R13. fence comes from one growing store-wide counter that is never below the wall clock in microseconds, so it grows per
  job and per group even if the store is rolled back. token is unique per claim and job, and unguessable.
R14. Counters. attempts += 1 when a lease ends by a settlement (any outcome) or a counted stall; failures += 1 only if
  the settlement is `failed`; stalls += 1 only for a counted stall suffered alone, shared_stalls += 1 only for one
  suffered among others. Nothing else changes them, except revive and retry, which reset all four to 0.
R15. Unique keys. A job holds its key from its creation: until it finishes; or, with key_until "started", until its
  first lease; or, with key_window (key_until is then ignored), until created_at + key_window, whatever happens to the
  job (it is not pruned earlier, not by older_than either). `holds_key` is the flag. A window that has passed (it has at
  exactly its end) no longer counts, and the holder's flag is cleared when another job takes the key. Keys are unique
  per (queue, task), with key_scope "global" per task; the two scopes are independent. At most one job holds a key.
  Retry, snooze, release and recovery never check it. revive and retry of a finished job take the key again
  (StateConflict while another job holds it): with "started" until the next lease, and also if the window has passed.
  Automatic revival does the same check and is cleared if it is refused. Without a key the other key options mean
  nothing and need not be stored.
R16. Death (settled as buried, one stall too many, expiry, an operator's bury) is one step: the job dies with its
  reason, and the dead letter of its logical job ((queue, task, key), or the id) is created or merged: count + 1,
  first_failed_at kept, failed_at and arguments the newest, the earlier death moved into history. If an older job of the
  same key held the letter, that job stays dead with reason "superseded" and may be pruned; one that holds it, never.
R120. With a `dead_queue` in the queue's rule, the step of a death also stores a copy of the job there, scheduled and
  due, in a sealed store, too: all but key, expiry, revival and parents is the same. dead_copies.py has its id, one per
  death, and how options name the job. A copy of one that died in that queue leaves none there. A shard notes it (R118).
R17. Success or cancellation of a logical job closes (removes) its dead letter; an older dead job that held it becomes
  "superseded". A superseded or discarded job may be pruned after 600 s. If two jobs of a key are live at once (one of
  them no longer holds it) and one takes over or closes the letter of the other, which was revived, the other continues
  unchanged, without a letter.
R18. A stall: recover ends the lease, or its owner settles it as `stalled` (the process that ran it died without a
  result, so it had begun). ONE routine decides both, by lifecycle.stall_verdict. The stall was suffered alone if the
  settlement says so; for recover, if the job was leased as a suspect, or its worker does not isolate (then nobody can
  know, and every stall counts). A counted stall makes the job a suspect and appends its failure. The job is dead at one
  stall too many (stalls above max_stalls, shared_stalls above SHARED_STALLS_MAX, or any if max_stalls is 0), with the
  failure's reason; else it is ready or waiting with its old turn. If cancellation was requested, the job becomes
  cancelled; the stall still counts. A max_stalls 0 lease that recover finds not begun is released without cost.
R19. suspect is set by a counted stall and cleared by a settlement with any other outcome, by revive and retry; release
  and everything else keep it. Suspects are claimed like other jobs; the lease carries the flag, and a worker that
  isolates runs the job alone.
R20. A claim after the worker's own deadline finds it among the stalled ones: it is recovered; known=False.
R21. A store that many hosts share and that may have lost its latest writes (a failover) grants no leases and recovers
  nothing for the longest lease it knows of; renewals, settlements and releases are served. `quiet_seconds` reports it.
R22. Jobs that become ready in one step have no guaranteed order among different groups.
R23. Expiry with on_expire "drop": the job becomes cancelled with reason "expired" instead of dead and is retained for a
  day. No failure is added to its errors; promote still counts it as expired.
R24. Finishing a job sets when it may be pruned: finished_at + max(retain, 600 s), not before its key's window has
  passed. A dead job that holds a letter: never, unless its task's rule has retain_dead or retain_dead_count.
R25. Only `tick` writes cron entries, and every write compares the entry's version.
R26. A sealed store (its Seal is closed) accepts no work, starts none and refuses operator changes: enqueue, a declare
  that would change a rule, promote, refill, rearrange, prune, bury, run_now, revive, retry, edit, delete, discard,
  annotate, free_key, pause, resume, limit, slow_down, signal, tick and the cancel of an unstarted job raise StoreSealed
  and change nothing. A claim applies its settlements and releases, recovers, leases nothing and returns `sealed`.
  Everything that lets a running job end still works: register, begin, renew, report, checkpoint, settle, settle_with,
  release, retire, recover, and the cancel of a running job. So once a sealed store has no running job, no job, letter,
  rule or pause in it changes any more. The caller of `seal` must rearrange first.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

from ..errors import ConfigurationError
from ..lifecycle import Settlement
from ..records import (
    RULE_STEP_MAX,
    Answer,
    ClaimRequest,
    Command,
    DeadLetter,
    Edit,
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
from ..rollups import Recording
from ..steps import NewStep
from .reader import Reader as Reader


class Backend(Reader):
    """A job store."""

    scheme: ClassVar[str]
    durable: ClassVar[bool]  # an acknowledged enqueue survives the end of this process
    any_loop: ClassVar[bool] = False  # its calls may be awaited on any event loop, not only the one that opened it
    sharded: ClassVar[bool] = False  # ids, keys and fences are unique per shard (a group is in one), not store-wide

    rule_step_max: int = RULE_STEP_MAX  # jobs, and groups, that a rule change rearranges in its own call

    # ------------------------------------------------------------------ opening and closing

    @abstractmethod
    async def open(self) -> None:
        """Connect; create or migrate the schema if the store does that itself. Idempotent; called before anything else.
        Raises SchemaMismatch (store is newer), ConfigurationError (not a holdfast store), BackendUnavailable."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections and threads. Idempotent; the backend may be opened again."""

    @abstractmethod
    async def migrate(self) -> tuple[int, int]:
        """Migrate the schema to this version; returns (before, after). Safe to repeat, and for two callers at once."""

    # ------------------------------------------------------------------ producing

    @abstractmethod
    async def declare(
        self, rules: Sequence[QueueRule], tasks: Sequence[TaskRule] = (), now: float | None = None
    ) -> None:
        """Store the rules of queues and tasks; the latest call wins.

        R27. If a rule changed, groups are refilled or withdrawn and jobs change their lane, both in steps (R10). A task
        rule with all defaults removes the stored one. A limit below 1 raises ConfigurationError and nothing is stored.
        """

    @abstractmethod
    async def enqueue(self, jobs: Sequence[NewJob], now: float | None = None) -> list[Enqueued]:
        """Store jobs, all in one step.

        R28. A known id returns (id, created=False) and changes nothing, even if that job is finished.
        R29. If another job holds the key: "keep" returns the holder's id, created=False. "replace" gives an unstarted
        holder everything of the new call except the id (it keeps id, queue, seq, created_at, due_max and counters; also
        its turn, if due at once with group, priority and order the same; max_stalls never falls below the stalls it
        suffered) and returns replaced=True; a running or finished holder is kept as with "keep". "debounce" is
        "replace" with the new due time, but never after the holder's due_max, or now if that is past. "raise" raises
        DuplicateJob and NOTHING of the batch is stored. "extend" is "keep", and if both have a key_window, the holder's
        becomes what ends key_window seconds from now, if that is longer; its prune_at follows (R102). due_max =
        created_at + wait_max, if given, whatever on_conflict is.
        R30. Due later → scheduled; due now → ready, or waiting + refill if the job has a group. If a call of one job
        created it, `waits` tells whether it is waiting after the refill.
        R83. Dependencies. `after` names the job's parents, at most PARENTS_MAX, each with a lower seq: stored before,
        or earlier in the batch (a call for which another job was kept stands for that one). Else ParentNotFound, and
        NOTHING of the batch is stored; DuplicateJob comes first. The parents of a known id are not looked at.
        on_conflict is "keep" or "raise"; a holder that waits for parents is kept as with "keep". A new job waits for
        its parents: it is scheduled and due at DUE_AFTER_PARENTS, with one edge per parent. An edge is met once its
        parent has succeeded, permanently; else it failed if the parent is dead or cancelled, or is met if
        on_parent_failure is "run"; else it is open (formulas.edge_status).
        R84. A job that waits is decided by its edges: one failed → dead, or cancelled if on_parent_failure says so,
        with reason "parent", counted as in R67; all met → due at its due_at or now if that is past, or `delay` from
        now, with expires_at accordingly. A job that is dead or cancelled with reason "parent" waits again, as after
        `revive` or `retry` (mark: revive, text "parent"), once none of its edges failed, unless another job holds its
        key. A job that was ended or given another due time otherwise (run_now, edit, revive) is not decided any more.
        R85. A step that finishes a job, or brings a finished one back, also updates its edges and their children, and
        theirs, for up to PROPAGATE_MAX edges, beginning with the job that changed first; promote
        continues, within its limit and before all else. A job is not pruned while it has a child that has not
        finished, or edges left to follow: its prune_at is put off by REMEMBER_SECONDS_MIN. A job for which another
        waits is not deleted (StateConflict). A job that is removed takes its edges along, on both sides.
        R87. `before` names a job that an earlier call stored and that waits for its parents (R84): it gets an edge from
        the new job and waits for it, too, even beyond PARENTS_MAX. Else JobNotFound, or StateConflict if
        it waits no longer, and NOTHING of the batch is stored; both come after DuplicateJob, job by job after
        ParentNotFound. Only a job that this call creates gets the edge; that of a known id is not looked at.
        """

    # ------------------------------------------------------------------ leasing

    @abstractmethod
    async def register(self, worker: WorkerRecord, now: float | None = None) -> None:
        """Store the worker's row with deadline now + lease_seconds.

        R31. Repeating it renews the deadline and updates `queues` and `slots`, nothing else.
        """

    async def claim(self, request: ClaimRequest, now: float | None = None) -> Exchanged:
        """Lease up to `most` ready jobs of the queues.

        R32. First recover (at most ceil(sweep_max / 2) leases), then promote (at most sweep_max jobs), then the lanes.
        R33. The claim ends before the job whose arguments would bring the sum of all leased above `bytes_max`; the
        first job is leased whatever its size. Jobs left out for this stay as they are and do not affect `opens_in`.
        R34. Per queue, in the order given, skipping paused queues and those closed by slow_down: n = the minimum of
        what is left of `most`, most_by_queue, the queue's limit minus its running jobs, what its bucket allows. The
        queue's lanes are 0, 1 and, by name, one for each `apart` task that has ready jobs here and room. A task's room
        is the minimum of its limit minus its running jobs, what its bucket allows, and most_by_task (each minus what
        this claim has leased). Each lane is ordered by rank (high first), turn, seq. Of m lanes number call % m goes
        first, the others follow in cyclic order; the i-th (from 0) gets a share of ceil(left / (m - i)) of what is left
        at that point, and no more than its task's room; a second round in the same order deals out the rest.
        R35. Jobs of a group of which this worker already holds most_by_group are skipped, at most GROUP_LOOKS_MAX of
        them per lane and claim; then the lane is done.
        R107. With `priorities`, only jobs from the first to the second of them are leased. Where the rank is the
        priority (R8), the claim reads that part of each lane alone, so jobs of other priorities cost nothing. Others
        that it meets (in a queue with aging, or since a change of it) are skipped as in R35, and count with those.
        R36. `opens_in` is the seconds until the first bucket or slow-down that limited this claim lets one more job
        start; None if none did. It considers requested queues that are not paused and still have ready jobs that are
        not parked, and `apart` tasks with ready jobs in such queues, all as they are after this claim.
        R37. An expired job found here is buried or dropped, not leased.
        R38. A repeated `call` returns the leases of the first time that this worker still holds (nothing new is
        claimed, nothing is counted). A worker that repeats a call may lower `most`, `bytes_max` and `sweep_max`, never
        raise them: leases of the first time that no longer fit, in the order in which they were granted, are released
        without cost in the same step and are not returned. A `call` below the last one returns no leases (its
        settlements are fenced and applied like any others).
        R39. Unknown worker (recovered or never registered): known=False, no leases; the settlements and releases of an
        exchange are still applied, each by its token.
        R81. Chains. If chain_by_queue names the queue, the claim then leases, with each job it leased of a strict
        group, the waiting jobs behind it in the order of R6, as `chained`: up to that number together, chained_max in
        all, dealt evenly, within bytes_max. A chain ends before a job that is a suspect, has max_stalls 0, has expired,
        would not be in lane 1, has another priority than the one before or belongs before it (R103). A suspect, a job
        with max_stalls 0 and one in another lane have none behind them. No chains in a queue with a limit, a rate or an
        order_window, in a group with a rate, nor while scheduled jobs are due or rules are being rearranged. Along a
        chain fences grow and started_at is the same; the caller promises to begin a chained job only after the one
        before it has succeeded, and to release the rest otherwise. A repeated call counts chained leases against
        chained_max instead of `most`; one behind a lease that no longer fits does not fit either.
        R82. A chained job is running, and every verb treats its lease like any other: all leases of a chain count as
        in play (R4), so the group gets no ready job before the last of them has ended, in whatever order they end.
        They go back in their order: held, of one priority, by R103. Only recover differs (R47).
        """
        return await self.exchange((), (), request, now)

    @abstractmethod
    async def begin(self, held: Sequence[Held], now: float | None = None) -> list[Answer]:
        """Mark leases begun before their handlers start (needed by at-most-once tasks). Cancel requested: CANCELLED."""

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
        """Move the worker's deadline to now + its lease_seconds: ONE write, however many leases.

        R40. The call names the leases the worker holds and the last claim whose result it has received (`seen_call`).
        Leases of this worker from a claim ≤ seen_call that are not named are released without cost. It is accepted
        after the deadline, too, while the row exists.
        R41. A `portrait` (JSON about the runners, for display) is stored with the row in the same step and removed with
        it. None keeps the stored one, as does one above PORTRAIT_BYTES_MAX: it must not make a renewal fail. Apart from
        the readers no other verb touches it, so it costs them nothing.
        """

    @abstractmethod
    async def command(self, worker: str, command: Command, now: float | None = None) -> Command:
        """Store a command for a registered worker; returns it as stored. Unknown worker: JobNotFound.

        R75. Every renewal returns the commands that the worker has not answered, oldest first, so the
        worker recognises repeats by their id. A known id changes nothing. COMMANDS_KEPT_MAX are kept: answered ones go
        first; if all are unanswered, ConfigurationError. They are removed with the worker's row, and are part of
        neither dump nor move.
        """

    @abstractmethod
    async def answer(
        self, worker: str, command_id: str, result: str, *, refused: bool = False, now: float | None = None
    ) -> bool:
        """Store the result of a command; the first answer counts. False: there is no such unanswered command."""

    @abstractmethod
    async def report(self, reports: Sequence[Report], now: float | None = None) -> list[Answer]:
        """Store progress and log lines of running jobs, fenced; a requested cancel does not refuse them."""

    @abstractmethod
    async def checkpoint(self, held: Held, steps: Sequence[NewStep], now: float | None = None) -> Answer:
        """Store what the handler of a running job has done, fenced like a report; the job itself does not change.

        R91. Each step is stored by (kind, name) and replaces the one stored before. The store fills in `at`, the fence
        of the lease, and until = now + delay. LOST stores none of them. Steps are kept with the job: through retries,
        snoozes, stalls, death and revival. They go when it is pruned, deleted, or retried after it succeeded. A holder
        of a key (R29) that has steps is kept, as if it were running.
        """

    @abstractmethod
    async def signal(
        self, job_id: str, name: str, value: bytes, now: float | None = None, *, by: str = ""
    ) -> JobRecord:
        """Store a signal for an unfinished job, as a step of that kind. Finished: StateConflict. Unknown: JobNotFound.

        R92. The first signal of a name counts: another one changes nothing. More than SIGNALS_MAX: ConfigurationError.
        The job's timeline gets a mark (kind signal, text the name). If the job is scheduled and its latest lease, by
        the fence, stored a wait of this name, it is due now and in play, as after run_now. One that waits for its
        parents is not. A sealed store refuses it.
        """

    async def settle(self, settlements: Sequence[Settlement], now: float | None = None) -> list[Answer]:
        """End leases with outcomes, fenced.

        R42. If cancellation was requested, any outcome except `cancelled` and `stalled` returns CANCELLED.
        R43. Accepted after the deadline as long as nobody recovered the lease. The store fills in the failure's at,
        attempt, fence, worker and started_at. Affected groups are refilled in the same step.
        R95. If the queue's rule has on_dead "stop", a job of a strict group that dies at the end of its lease (settled
        as buried, or one stall too many, found by any worker) is held: it stays in play, so the group stops. A job that
        ends without a lease (expired, an operator's bury, because of a parent) or otherwise than dead stops nothing.
        Only the rule at the time of death counts: a later change neither stops a group nor frees it.
        R96. A stopped group continues once its dead job is revived or retried (it is waiting and held, so it
        goes first), no longer holds its letter (discarded, superseded, pruned), is deleted, or is passed by `resume`;
        the group is refilled in the same step. On PostgreSQL, if another session is working on that group and the dead
        job was superseded or pruned, the refill is left to that session or the next sweep.
        R108. A success with `retain` REMOVED also removes the job in the same step, with all that is stored about it,
        and its id is not remembered. A job with parents, children or a key_window is kept, as with retain 0.
        R93. A snooze with a `reason` waits for the signal of that name: if it is stored, the job is due now whatever
        the delay is. So a signal makes the job due either here or by `signal`, never by neither.
        """
        return list((await self.exchange(settlements, (), None, now)).answers)

    @abstractmethod
    async def settle_with(self, settlement: Settlement, jobs: Sequence[NewJob], now: float | None = None) -> Answer:
        """End a lease as succeeded and store the jobs that its handler enqueued, both in one step or neither.

        R86. First the settlement, as by `settle`; then the jobs, as by `enqueue` ("raise" is treated as "keep"), so a
        job may take the key of the one that ended; then R85, so a job that waited for the one that ended may be given
        further parents here (R87). Any answer but OK, and any error, changed nothing. A sealed store accepts it: it
        lets a running job end. In a sharded store it is one step, too; jobs elsewhere follow from it (R118).
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

        R44. A repeated request.call returns the same results as the first time: the first results of the settlements
        and releases (they are not applied again), and the leases this worker still holds.
        """

    async def release(self, releases: Sequence[Release], now: float | None = None) -> list[Answer]:
        """Give leases back unfinished; no counter changes. If cancellation was requested, the job becomes cancelled.

        R45. Without delay: ready (its old turn) or, in a group, waiting + refill. With delay: scheduled.
        """
        return list((await self.exchange((), releases, None, now)).answers)

    @abstractmethod
    async def retire(self, worker: str, now: float | None = None) -> int:
        """The worker has ended: release its leases without cost and remove its row. Returns the number of leases.

        R46. Like a release, this asserts that no handler of these leases runs or ran, so one marked begun is released,
        too. The worker must first settle a lease whose handler was stopped as stalled.
        """

    @abstractmethod
    async def recover(self, *, dead: Sequence[str] = (), limit: int = 500, now: float | None = None) -> list[Recovered]:
        """End the leases of workers whose deadline passed, and of workers the caller proved dead (`dead`).

        R47. Also used inside claim. Each lease ends as a stall with Failure(reason="stalled"): free (no counter), again
        (ready/waiting, old turn), bury (dead) or cancel (cancelled). The worker's row is removed once it holds no
        lease. At most `limit` leases per call. A lease of a strict group that follows another one of the same claim
        (with a lower fence) is released without cost: nobody knows that it began. The last of a chain goes first.
        """

    # ------------------------------------------------------------------ sweeps

    @abstractmethod
    async def promote(self, *, limit: int = 500, now: float | None = None) -> Promoted:
        """Bury or drop expired unstarted jobs, bring due scheduled ones into play, revive letters that are due for it.

        R48. In this order, after R85 (PROPAGATE_MAX at most), at most `limit` in all. `more`: one of them was reached.
        """

    @abstractmethod
    async def refill(self, *, limit: int = 500, now: float | None = None) -> int:
        """Safety net: refill groups that have waiting jobs and room. Returns how many became ready; 0 is normal."""

    @abstractmethod
    async def prune(self, *, limit: int = 1000, older_than: float | None = None, now: float | None = None) -> int:
        """Remove finished jobs past their retention (or finished over `older_than` seconds ago, at least 600), and
        flows that are no longer needed. Returns the number of jobs.

        R49. It also applies the task rules, oldest first: succeeded and cancelled jobs beyond the newest retain_count
        of a task (by finished_at, seq), dead letters with their jobs beyond the newest retain_dead_count (by failed_at,
        seq of the job) or with a failed_at more than retain_dead seconds ago. It never removes a job that finished
        within 600 s, one whose key's window has not passed, or a letter whose job is live. All within `limit`:
        retention first, then the rules (tasks by name: count, then dead by age, then dead by count).
        """

    async def rearrange(self, *, limit: int = 500, now: float | None = None) -> bool:
        """Continue what rule changes left to do (R10): at most `limit` jobs and groups. True if there is more."""
        return False

    # ------------------------------------------------------------------ history

    @abstractmethod
    async def record(self, recording: Recording, now: float | None = None) -> bool:
        """Add a worker's counts to the roll-ups of the current minute and hour, and keep its events.

        R66. Roll-ups add up by (span, start, queue, task, worker, outcome); those of a worker are kept by the minute
        only. A call whose number is not above the worker's last one changes nothing and returns False. Events get
        growing positions in the order in which their calls take effect; the newest EVENTS_KEPT_MAX are kept. With
        keep_minutes and keep_hours the call removes older roll-ups, at most ROLLUPS_PER_PRUNE_MAX of each span. It
        touches no job, no worker's row and no rule, and is accepted by a sealed store.
        R67. An attempt is counted by the worker that settled or recovered it. A job that ends without a lease is
        counted by the store, in the step that ends it, without times: expired by promote or claim (expired, whether it
        is buried or dropped), an operator's cancel (cancelled) and bury (dead), a parent's end (dead or cancelled).
        """

    # ------------------------------------------------------------------ operating on one job

    @abstractmethod
    async def cancel(self, job_id: str, now: float | None = None, *, by: str = "", reason: str = "") -> JobRecord:
        """Unstarted → cancelled (its group is refilled). Running → marked, still running. Cancelled → unchanged.

        R50. succeeded, dead → StateConflict. Unknown → JobNotFound (as for every method in this section). `by` is who
        does it, at most BY_CHARS_MAX characters; it is kept in the job's mark (R65).
        R99. So is the reason, as the mark's text. The first cancel of a running job counts.
        """

    @abstractmethod
    async def bury(self, job_id: str, reason: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """Unstarted → dead, with its dead letter (reason "bury", text = the given reason). Else StateConflict."""

    @abstractmethod
    async def run_now(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """scheduled → due now, in play. Else StateConflict."""

    @abstractmethod
    async def revive(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """dead → in play with fresh budgets (all counters 0, not a suspect), due now, no expiry; errors are kept.

        R51. The letter stays, marked revived_at, and its automatic revival is cleared. Already revived and live:
        unchanged, no error. Superseded, or another live job has its key: StateConflict with that id. Not dead and
        without a letter: StateConflict.
        """

    @abstractmethod
    async def retry(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """Run a finished job again with fresh budgets. On a dead one: revive. Key held elsewhere: StateConflict."""

    @abstractmethod
    async def rejoin(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """Let a dead or cancelled job be decided by its parents again, of which at least one has not succeeded.

        R89. Its reason becomes "parent", and R84 decides: it waits again if none of its edges failed, else it comes
        back when they do. Any other job: StateConflict; also one that is superseded or discarded.
        """

    @abstractmethod
    async def discard(self, job_id: str, now: float | None = None, *, by: str = "") -> DeadLetter:
        """Remove a dead letter; its job stays dead, reason "discarded", prunable. Revived and live: StateConflict."""

    @abstractmethod
    async def annotate(self, job_id: str, text: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """Add a note to a job's timeline, whatever its state.

        R100. A mark of kind "note" with text and `by`; nothing else changes.
        """

    @abstractmethod
    async def free_key(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """Let go of the key that a job holds, whatever its state: the next job with that key is new.

        R101. The job continues without its key; a revive or retry takes the key again (R15).
        It leaves a mark of kind "free_key". A job that holds no key is unchanged.
        """

    @abstractmethod
    async def edit(self, job_id: str, edit: Edit, now: float | None = None, *, by: str = "") -> JobRecord:
        """Change an unstarted job: arguments, queue, group, priority, order, due time. Else StateConflict.

        R71. It keeps id, task, key, seq, created_at, counters, errors, and `held` if queue and group are the same.
        Arguments alone move nothing. A new due time moves expires_at by as much; due later → scheduled, without a turn;
        due now → in play. A job in play stays so unless its due time changes, and keeps its turn if queue, group,
        priority and order do; else it gets a new one, through waiting and refill. Its former group is refilled, too.
        R72. In another queue it holds its key there: StateConflict with live_id if another job does. A dead letter that
        it holds moves with it: StateConflict if that queue has one of the same key. A sharded store refuses
        (ConfigurationError) another queue, and a group in another shard.
        R73. `revive`: a dead job is revived first, as by `revive`, in the same step; one that is live is only edited.
        """

    @abstractmethod
    async def delete(self, job_id: str, now: float | None = None, *, by: str = "") -> JobRecord:
        """Remove a job that is not running, with its logs and the dead letter it holds. Returns it as it was.

        R74. enqueue knows its id for REMEMBER_SECONDS_MIN from when it finished, else from now, then until `prune` at
        most; a move does not carry that. Its key is free, even if it was held for a window; its group is refilled; no
        other job or letter changes. Running: StateConflict.
        """

    @abstractmethod
    async def pause(self, pause: Pause, now: float | None = None) -> None:
        """Pause a queue (no claims), a group (ready jobs withdrawn) or a task (ready jobs parked). Idempotent."""

    @abstractmethod
    async def resume(self, pause: Pause, now: float | None = None, *, skip_dead: bool = False) -> bool:
        """End that pause (same queue, queue + group, or task); for a queue its slow-down, too. A group is refilled.

        R97. With skip_dead a group continues without the dead jobs that stop it (R95), which stay dead, with their
        letters, and are no longer held. Without it, the end of a pause leaves the group stopped.
        Returns False if there was nothing to end.
        """

    @abstractmethod
    async def limit(self, override: Override, now: float | None = None) -> None:
        """Store an operator's override for a queue, a group (queue and group) or a task: in force until it is reset.

        R52. UNSET keeps a value, None resets it; an override without any value left is removed. Groups are refilled or
        withdrawn, jobs change their lane, both in steps (R10). ConfigurationError: below 1, above 1 on a strict group.
        """

    @abstractmethod
    async def slow_down(self, queue: str, seconds: float, now: float | None = None) -> float:
        """Start no job of the queue for `seconds`, or until resume; leases are untouched. Never shortens.

        Returns the end (wall clock).
        """

    # ------------------------------------------------------------------ cron

    @abstractmethod
    async def tick(self, tick: Tick, now: float | None = None) -> Ticked:
        """Write a cron entry and enqueue its jobs in one step; of several concurrent callers one succeeds.

        R53. done=False and nothing changed if the stored version (0: none) is not tick.version, or not_before is after
        now. Else overlap decides: "skip" with a live `previous` omits the jobs (skipped=True) and stores
        entry_if_skipped; "cancel" cancels `previous` if it is live (like the verb cancel). Then the jobs are enqueued
        as by `enqueue` ("raise" is treated as "keep"). The entry is stored with version + 1 (None: removed).
        """

    # ------------------------------------------------------------------ moving to another store

    @abstractmethod
    async def sealed(self) -> Seal | None:
        """The store's role in a move, also in one that has ended and left it open; None: it never took part in one."""

    @abstractmethod
    async def seal(self, seal: Seal | None, *, instead_of: Seal | None) -> bool:
        """Replace exactly `instead_of` by `seal`; False if another seal is stored, and nothing was changed.

        R54. No call is in progress when a seal closes the store: every enqueue, claim and caller's transaction that
        started before has ended, and none starts after. It waits for them for the call timeout: BackendUnavailable.
        R55. A new seal (another move or none before) with the role of target: ConfigurationError unless the store has
        no job, letter, override or pause, and no cron entry except those declared by code. Rules, flows and declared
        entries are removed: they come with the move and with every start.
        """

    @abstractmethod
    async def export(self, part: Part, after: str = "", *, limit: int = 500) -> Shipment:
        """Read a piece of the store: `limit` jobs by seq or letters by id after that position, or all rules at once.

        R56. Reads only. Complete and repeatable only on a sealed store without running jobs.
        """

    @abstractmethod
    async def carry(self, move_id: str, shipment: Shipment) -> None:
        """Write a shipment into this store, in one step with the position recorded in its seal (part and after).

        R57. Ids, seq, turns, counters, states, times and fences stay as they are; nothing is refilled or promoted. What
        already exists (by id, name or queue and name) stays as it is, so repeating a shipment changes nothing. All
        counters of the store move above the incoming ones: fences, turns and seqs keep growing.
        R94. Steps follow their jobs as a part of their own, by job, kind and name.
        R58. StoreSealed or ConfigurationError unless the store is the target of exactly this move_id, still `moving`.
        A shipment with a running job, or with a job that holds a key which another job here holds, judged by holds_key
        alone (a sharded store may hold both): ConfigurationError.
        """

    # ------------------------------------------------------------------ waiting

    @abstractmethod
    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> bool:
        """Return when there may be work in these queues, or after `timeout` seconds. Only a hint: callers must poll.

        Return True if the work was there at the first look, however long that took: a caller that may not claim it (its
        own caps, a task it does not know) would return at once again and again, and must pause by itself.

        R59. Ready jobs blocked by a limit, a rate or a slow-down are not work; the end of a lease that frees a slot of
        a limited queue or task is a reason to return.
        """

    # ------------------------------------------------------------------ on the caller's thread

    def open_here(self) -> bool:
        """Blocking `open` on the calling thread, without a loop. False: not done, this store needs one."""
        return False

    def close_here(self) -> None:
        """Blocking `close` on the calling thread; for a store that `open_here` opened."""

    def enqueue_here(self, jobs: Sequence[NewJob]) -> list[Enqueued] | None:
        """Blocking enqueue on the calling thread, which runs no loop. None: not done, there is no blocking path."""
        return None

    # ------------------------------------------------------------------ in the caller's transaction

    def enqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Enqueue through the caller's own driver connection, inside the caller's transaction.

        R60. Plain INSERTs: every job is stored as `scheduled`, due now or later, and promote brings it into play.
        Raises ConfigurationError if the store or the connection does not support it, and for a job with parents.
        """
        self._refuse_to_join()

    async def wake(self, queues: Iterable[str]) -> None:
        """Hint to workers that a caller's transaction with jobs in these queues has committed. Best effort; nothing to
        do where workers notice every commit by themselves."""

    def shares_database(self, connection: Any) -> bool:
        """Whether the caller's sync connection is open on the database that holds this store, which is open: only then
        can `enqueue_on` join its transaction. Reads only, and leaves the transaction usable."""
        return False

    async def aenqueue_on(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Like `enqueue_on`, through an async driver on the caller's event loop."""
        self._refuse_to_join()

    def settle_on(self, connection: Any, settlement: Settlement) -> Answer:
        """End a lease as succeeded through the caller's own driver connection, inside the caller's transaction.

        R90. Fenced like any settlement (R9), and done if and only if that transaction commits; until then the lease is
        the worker's, and nobody else can end it. LOST, CANCELLED and BUSY change nothing and leave the transaction
        usable. No group is locked: if the job's group is not refilled in the same transaction, it is by the next
        exchange that settles this lease again, which returns LOST.
        """
        self._refuse_to_join()

    async def asettle_on(self, connection: Any, settlement: Settlement) -> Answer:
        """Like `settle_on`, through an async driver on the caller's event loop."""
        self._refuse_to_join()

    async def remove_settled(self, job_ids: Sequence[str]) -> None:
        """Remove those of these jobs that have succeeded, as in R108, once their worker has read that (R90)."""

    def _refuse_to_join(self) -> NoReturn:
        raise ConfigurationError(f"{self.scheme}:// cannot join a caller's transaction: leave out connection=.")
