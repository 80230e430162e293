"""The routines the reference's verbs share: place, refill, end a lease, bury, revive, promote, take.

Called by backend.py, always inside its critical section. ONE routine ends leases, ONE refills groups, ONE buries.
It never reads a clock and never checks a token: times come in, and the verbs judge who may ask.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from msgspec.structs import replace

from holdfast.backends.formulas import ALONE, Numbering
from holdfast.backends.seals import refusal
from holdfast.backends.shard import Noted
from holdfast.dead_copies import Death, deaths_of, with_death
from holdfast.dependencies import DUE_AFTER_PARENTS, PROPAGATE_MAX
from holdfast.lifecycle import FAILURE_TEXTS, Failure, State
from holdfast.rates import Rate, opens_at
from holdfast.records import (
    ERRORS_KEPT_MAX,
    HISTORY_KEPT_MAX,
    MARKS_KEPT_MAX,
    READY_PER_GROUP_MAX,
    REMEMBER_SECONDS_MIN,
    STAGED_LOOKS_MAX,
    STAGGER_TICKS,
    DeadLetter,
    Mark,
    NewJob,
    PastDeath,
    Promoted,
    Seal,
)
from holdfast.rollups import Rollup

from .flow import FlowIndex
from .recording import History
from .rows import LANE_GROUPED, Group, GroupName, Holder, KeyName, Row, due_time, expiry

RETAIN_SECONDS = 86400.0  # how long a finished job is kept where no settlement says it


class Store(FlowIndex):
    """The index with the rules by which jobs move."""

    def __init__(self, numbering: Numbering = ALONE) -> None:
        super().__init__()
        self._numbering = numbering
        self._seq, self._turn, self._fence = numbering.seq, numbering.tick, numbering.tick
        self.wall = 0.0  # of the step under way
        self.seal: Seal | None = None
        self.history = History()

    def refuse_sealed(self) -> None:
        if self.seal is not None and self.seal.closed:
            raise refusal(self.seal)

    @property
    def tick(self) -> int:
        """No fence or turn issued so far is above it."""
        return max(self._turn, self._fence)

    def catch_up(self, *, tick: int = 0, seq: int = 0) -> None:
        """Go on above numbers that another store has issued."""
        self._turn, self._fence = max(self._turn, tick), max(self._fence, tick)
        self._seq = max(self._seq, seq)

    # ------------------------------------------------------------------ groups and lanes

    def next_turn(self) -> int:
        """Never below the clock: priorities that age are worth seconds of it."""
        self._turn = max(self._turn + 1, int(self.wall * 1_000_000))
        return self._turn

    def make_ready(self, row: Row, **changes: Any) -> None:
        """Make a job claimable, with the turn it had or a new one."""
        turn = changes.pop("turn", row.turn)
        rank = row.rank if row.state is State.READY else 0 if self.age_shift(row) is not None else row.priority
        self.move(row, State.READY, turn=turn or self._new_turn(row), rank=rank, lane=self.lane_of(row), **changes)

    def _new_turn(self, row: Row) -> int:
        """The next turn; behind the heads of all groups where others of its own are ready before it."""
        if self.newest_first(row):
            return -self.next_turn()
        turn = self.next_turn() - (self.age_shift(row) or 0)
        group = None if row.group is None else self.groups.get((row.queue, row.group))
        before = [other.turn or 0 for other in group.ready.values()] if group is not None else []
        if before:
            return max(turn + len(before) * STAGGER_TICKS, max(before) + 1)
        return turn if row.group is None else self._weighted(row, turn)

    def _weighted(self, row: Row, turn: int) -> int:
        """A turn in its part of the line, if its group has a weight."""
        rank = 0 if self.age_shift(row) is not None else row.priority
        line = [self.jobs[job_id] for job_id in self.lanes.get((row.queue, LANE_GROUPED, ""), ())]
        turns = sorted(other.turn or 0 for other in line if other.rank == rank)
        weight = self.weight((row.queue, row.group or ""))
        ahead = max(1, len(turns) // weight)
        if weight == 1 or len(turns) <= ahead:
            return turn
        return min(turn, (turns[ahead - 1] + turns[ahead]) // 2)

    def place(self, row: Row, **changes: Any) -> None:
        """Bring a due job into play: ready, or behind its group until refill makes it ready."""
        if row.group is None:
            self.make_ready(row, **changes)
        else:
            self.move(row, State.WAITING, **changes)

    def refill(self, name: GroupName) -> int:
        """Bring a group to its limit and its rate: waiting jobs in while there is room, ready ones out where too many.

        THE routine that refills; every step that touched a group ends with it. Returns how many became ready.
        """
        group = self.groups.get(name)
        if group is None:
            self._wake_group(name, None)
            return 0
        made = 0
        rate = self.group_rate(name)
        if group.waiting or group.ready:
            self.set_back(rate, (*name, None), self.wall)
        budget = self.bucket_room(rate, (*name, None), self.wall)
        room = min(self.group_limit(name) - group.in_play, budget - len(group.ready))
        if room > 0 and group.waiting:
            # who is due but not yet promoted must not be overtaken by a later one of its group
            for row in [row for row in group.scheduled.values() if row.due_at <= self.wall]:
                self.move(row, State.WAITING)
        room += self._make_way(name, group)
        fill = min(room, READY_PER_GROUP_MAX - len(group.ready))
        while made < fill and (first := group.waiting.first()) is not None:
            self.make_ready(self.jobs[first[1]])
            made += 1
        while room < 0 and group.ready:
            last = max(group.ready.values(), key=lambda row: row.place)
            self.move(last, State.WAITING)
            room += 1
        held_back = len(group.waiting) and self.group_limit(name) > group.in_play and budget <= len(group.ready)
        self._wake_group(name, rate if held_back and len(group.ready) < READY_PER_GROUP_MAX else None)
        return made

    def _make_way(self, name: GroupName, group: Group) -> int:
        """Let lower orders go before those that have not started; returns the room this made."""
        limit, window = self.group_limit(name), self.order_window(name[0])
        if window is not None and limit > 0 and (limit > group.in_play or group.ready):
            unstarted = [self.jobs[job_id] for job_id in group.waiting] + list(group.ready.values())
            last = max((row.place for row in unstarted if not row.held), default=None)
            staged = sorted((row for row in group.scheduled.values() if row.staged), key=lambda row: row.place)
            for row in staged[:STAGED_LOOKS_MAX]:
                if row.due_at <= self.wall + window and last is not None and row.place < last:
                    self.move(row, State.WAITING)
        first = group.waiting.first()
        if limit != 1 or first is None or self.jobs[first[1]].order is None:
            return 0
        for row in list(group.ready.values()):
            if row.order is not None and not row.held and first[0] < row.place:
                self.move(row, State.WAITING)
                return 1
        return 0

    def _wake_group(self, name: GroupName, rate: Rate | None) -> None:
        """Remember when the rate lets one more of the group's waiting jobs start, or that nothing waits for it."""
        flow = self.flows.get((*name, None))
        if flow is None:
            return
        wakes_at = None
        if rate is not None and flow.spent_until > self.wall:
            group = self.groups.get(name)
            ready = 0 if group is None else len(group.ready)
            wakes_at = opens_at(rate, flow.spent_until) + ready * rate.every
        if wakes_at != flow.wakes_at:
            self.keep_flow(replace(flow, wakes_at=wakes_at))

    def refill_touched(self) -> None:
        while self.touched:  # a withdrawal touches its group once more; that second look moves nothing
            names = list(self.touched)
            self.touched.clear()
            for name in names:
                self.refill(name)

    def change_lane(self, task: str) -> None:
        """A pause, a limit or a rule of a task changed: its ready jobs go where they now belong."""
        ready = [job_id for lane in list(self.lanes.values()) for job_id in lane]
        for row in map(self.jobs.__getitem__, ready):
            if row.task == task and row.lane != self.lane_of(row):
                self.make_ready(row)

    # ------------------------------------------------------------------ keys

    def key_holder(self, name: KeyName, wall: float) -> Row | None:
        """The job that holds a key. One whose window has passed holds it no longer."""
        job_id = self.key_holders.get(name)
        if job_id is None:
            return None
        row = self.jobs[job_id]
        return row if row.key_window is None or wall < row.window_ends_at else None

    def free_key(self, name: KeyName) -> None:
        """Another job takes the key: the flag of a holder whose window has passed falls."""
        job_id = self.key_holders.get(name)
        if job_id is not None:
            row = self.jobs[job_id]
            self.move(row, row.state, holds_key=False, rank=row.rank)

    # ------------------------------------------------------------------ producing

    def add(self, job: NewJob, wall: float, state: State | None = None) -> None:
        self._seq = self._numbering.after(self._seq, wall)
        due_at = due_time(job, wall, self.order_window(job.queue))
        row = Row(
            id=job.id,
            seq=self._seq,
            task=job.task,
            queue=job.queue,
            state=state or (State.SCHEDULED if due_at > wall else State.READY if job.group is None else State.WAITING),
            args=job.args,
            priority=job.priority,
            group=job.group,
            key=job.key,
            max_stalls=job.max_stalls,
            created_at=wall,
            due_at=due_at,
            expires_at=expiry(job, due_at),
            revival=job.revival,
            options=job.options,
            key_scope=job.key_scope,
            key_until=job.key_until,
            key_window=job.key_window,
            holds_key=job.key is not None,
            due_max=None if job.wait_max is None else wall + job.wait_max,
            on_expire=job.on_expire,
            order=job.order,
        )
        if row.holds_key:
            self.free_key(row.key_name)
        if row.state is State.READY:
            shift = self.age_shift(row)
            row.turn, row.rank, row.lane = self._new_turn(row), row.priority if shift is None else 0, self.lane_of(row)
        self.insert(row)

    def replace_call(self, row: Row, job: NewJob, wall: float) -> None:
        """Give an unstarted job the call of a newer one of its key; id and seq stay, its turn if nothing is against."""
        due_at = due_time(job, wall, self.order_window(job.queue))
        if job.on_conflict == "debounce" and row.due_max is not None:
            due_at = min(due_at, max(row.due_max, wall))  # past it: at once, and not overdue from the start
        in_line = due_at <= wall and (row.group, row.priority, row.order) == (job.group, job.priority, job.order)
        self.move(
            row,
            State.SCHEDULED,
            args=job.args,
            key_until=job.key_until,
            key_window=job.key_window,
            on_expire=job.on_expire,
            priority=job.priority,
            order=job.order,
            group=job.group,
            max_stalls=max(job.max_stalls, row.stalls),
            revival=job.revival,
            options=job.options,
            due_at=due_at,
            expires_at=expiry(job, due_at),
            held=row.held and row.group == job.group,
            turn=row.turn if in_line else None,
        )
        if due_at <= wall:
            self.place(row)

    # ------------------------------------------------------------------ ending

    def end_lease(
        self,
        row: Row,
        wall: float,
        into: State,
        *,
        counted: bool = False,
        failed: bool = False,
        stalled: bool = False,
        alone: bool = False,
        delay: float = 0.0,
        retain: float = RETAIN_SECONDS,
        failure: Failure | None = None,
        value: bytes | None = None,
        reason: str | None = None,
    ) -> None:
        """THE routine that ends leases, whatever the cause: the token is void, the counters say why, the slot is free.

        `into` READY means claimable again by the job's old turn; SCHEDULED, due after `delay`.
        """
        attempts = row.attempts + counted
        if failure is not None:
            failure = replace(
                failure, at=wall, attempt=attempts, fence=row.fence, worker=row.worker, started_at=row.started_at
            )
        ended: dict[str, Any] = {
            "token": None,
            "worker": None,
            "claim_call": None,
            "attempts": attempts,
            "failures": row.failures + failed,
            "stalls": row.stalls + (stalled and alone),
            "shared_stalls": row.shared_stalls + (stalled and not alone),
            "suspect": stalled or (row.suspect and not counted),
            "errors": _with(row.errors, failure),
        }
        if not into.finished:
            ended["held"] = row.group is not None and self.strict(row.queue, row.group)
        if counted and not into.finished:
            ended["expires_at"] = None  # it was claimed in time; what follows is not a late start
        if into is State.DEAD:
            stops = row.group is not None and self.stops(row.queue, row.group)
            self.bury(row, wall, reason or "failed", failure, stops=stops, **ended)
        elif into.finished:
            self.finish(row, wall, into, retain, value=value, **ended)
        elif into is State.SCHEDULED:
            self.move(row, State.SCHEDULED, due_at=wall + delay, turn=None, **ended)
        else:
            self.place(row, **ended)

    def count_ended(self, row: Row, outcome: str, wall: float) -> None:
        """Count a job that ends without a lease."""
        self.history.add(Rollup(outcome=outcome, count=1, queue=row.queue, task=row.task), wall)

    def mark(self, row: Row, kind: str, wall: float, **facts: Any) -> None:
        """Append to the job's timeline; of more than MARKS_KEPT_MAX the second goes."""
        marks = self.marks.setdefault(row.id, [])
        if len(marks) >= MARKS_KEPT_MAX:
            del marks[1]
        marks.append(Mark(kind=kind, at=wall, **facts))

    def note(self, row: Row, kind: str, wall: float, **facts: Any) -> None:
        """Like mark, but of those of one kind and lease in a row only the first and the newest stay."""
        marks, count = self.marks.setdefault(row.id, []), 1
        if len(marks) > 1 and all(one.kind == kind and one.fence == row.fence for one in marks[-2:]):
            count = marks.pop().count + 1
        self.mark(row, kind, wall, worker=row.worker, fence=row.fence, count=count, **facts)

    def mark_lease(self, row: Row, kind: str, wall: float) -> None:
        self.mark(row, kind, wall, worker=row.worker, fence=row.fence, started_at=row.started_at)

    def give_back(self, row: Row, wall: float, delay: float = 0.0) -> None:
        """End a lease that costs nothing; where a cancel was asked for, the job is cancelled."""
        self.mark_lease(row, "release", wall)
        if row.cancel_requested:
            self.end_lease(row, wall, State.CANCELLED)
        else:
            self.end_lease(row, wall, State.SCHEDULED if delay > 0 else State.READY, delay=delay)

    def finish(self, row: Row, wall: float, state: State, retain: float, **changes: Any) -> None:
        """A logical job ended well, or was cancelled: its letter closes."""
        prune_at = max(_prune_at(wall, retain), row.window_ends_at)
        self.move(row, state, finished_at=wall, prune_at=prune_at, **changes, **_finished(row))
        letter = self.drop_letter(row.logical)
        if letter is not None and letter.id != row.id:
            self._supersede(letter.id, wall)

    def bury(
        self, row: Row, wall: float, reason: str, error: Failure | None, *, stops: bool = False, **changes: Any
    ) -> None:
        """THE routine by which jobs die: dead, and the one letter of the logical job made or merged. `stops`: it keeps
        its group's place."""
        changes = {**changes, **_finished(row), "held": stops}
        self.move(row, State.DEAD, finished_at=wall, prune_at=None, reason=reason, **changes)
        earlier = self.letters.get(row.logical)
        cycles = 0 if earlier is None else earlier.cycles
        cooldown = None if row.revival is None else row.revival.cooldown(cycles)
        letter = DeadLetter(
            id=row.id,
            task=row.task,
            queue=row.queue,
            key=row.key,
            group=row.group,
            args=row.args,
            failure_count=1,
            first_failed_at=wall,
            failed_at=wall,
            reason=reason,
            error=error,
            cycles=cycles,
            revive_at=None if cooldown is None else wall + cooldown,
        )
        if earlier is not None:
            letter = replace(
                letter,
                failure_count=earlier.failure_count + 1,
                first_failed_at=earlier.first_failed_at,
                history=(*earlier.history, _past(earlier, letter))[-HISTORY_KEPT_MAX:],
            )
            if earlier.id != row.id:
                self._supersede(earlier.id, wall)
        self.keep_letter(row.logical, letter)
        self._send_copy(row, letter)

    def _send_copy(self, row: Row, letter: DeadLetter) -> None:
        """Store a copy of a dead job in its queue's dead_queue; in a shard, as a note (R120)."""
        rule = self.rules.get(row.queue)
        if rule is None or rule.dead_queue is None:
            return
        before = deaths_of(row.options)
        if rule.dead_queue in [death.queue for death in before]:
            return
        job = Noted(
            id=f"{row.id}.{letter.failure_count}.{int(letter.failed_at * 1e6)}",
            task=row.task,
            queue=rule.dead_queue,
            args=row.args,
            priority=row.priority,
            group=row.group,
            order=row.order,
            max_stalls=row.max_stalls,
            delay=0.0,
            options=with_death(row.options, Death(row.queue, row.id, letter.reason)),
        )
        if self._numbering is not ALONE:
            self.notes[job.id] = job
            self.outbox["job", job.id] = self.next_turn()
        elif job.id not in self.jobs:
            self.add(job, letter.failed_at, State.SCHEDULED)

    def bury_unstarted(self, row: Row, wall: float, reason: str, text: str) -> None:
        """Death without a lease: expired, or by an operator's word."""
        failure = Failure(at=wall, reason=reason, text=text, attempt=row.attempts, fence=row.fence)
        self.bury(row, wall, reason, failure, errors=_with(row.errors, failure))

    def expire(self, row: Row, wall: float) -> None:
        self.count_ended(row, "expired", wall)
        if row.on_expire == "drop":
            self.finish(row, wall, State.CANCELLED, RETAIN_SECONDS, reason="expired")
        else:
            self.bury_unstarted(row, wall, "expired", FAILURE_TEXTS["expired"])

    def _supersede(self, job_id: str, wall: float) -> None:
        """The job no longer holds its letter: if it is dead it stays so and may be pruned; revived, it goes on."""
        row = self.jobs[job_id]
        if row.state is State.DEAD:
            self.let_go(row, wall, "superseded")

    def let_go(self, row: Row, wall: float, reason: str) -> None:
        prune_at = max(wall + REMEMBER_SECONDS_MIN, row.window_ends_at)
        self.move(row, State.DEAD, reason=reason, prune_at=prune_at, held=False)

    # ------------------------------------------------------------------ again

    def again(self, row: Row, wall: float, *, waits: bool = False) -> None:
        """A finished job comes into play with fresh budgets and its key; what it suffered stays on record. `waits`: it
        waits for its parents again."""
        if row.key is not None and not row.holds_key:
            self.free_key(row.key_name)
        bring = partial(self.move, row, State.SCHEDULED) if waits else partial(self.place, row)
        bring(
            turn=None,
            holds_key=row.key is not None,
            attempts=0,
            failures=0,
            stalls=0,
            shared_stalls=0,
            suspect=False,
            due_at=DUE_AFTER_PARENTS if waits else wall,
            expires_at=None,
            finished_at=None,
            prune_at=None,
            reason=None,
            value=None,
            begun=False,
            cancel_requested=False,
            progress=None,
            progress_text=None,
        )

    def revive(self, row: Row, wall: float, *, cycles: int = 0) -> None:
        """Bring a dead job back; its letter stays and says so. `cycles` is 1 for an automatic revival."""
        self.again(row, wall)
        letter = self.letters.get(row.logical)
        if letter is not None and letter.id == row.id:
            revived = replace(letter, revived_at=wall, revive_at=None, cycles=letter.cycles + cycles)
            self.keep_letter(row.logical, revived)

    # ------------------------------------------------------------------ a sweep, also inside claim

    def promote(self, wall: float, limit: int) -> Promoted:
        """Bury what expired unstarted, bring what is due into play, revive letters whose time has come.

        A letter that may not be revived counts towards `limit`, too: it was looked at, and its revival is unset.
        """
        from . import depending

        most = min(limit, PROPAGATE_MAX)
        told = depending.propagate(self, wall, most)
        limit = max(0, limit - told)
        expired = due = revived = refused = 0
        while expired < limit and (first := self.expiring.first()) is not None and first[0] <= wall:
            self.expire(self.jobs[first[1]], wall)
            expired += 1
        while expired + due < limit and (first := self.due.first()) is not None and first[0][0] <= wall:
            self.place(self.jobs[first[1]])
            due += 1
        while (looked := expired + due + revived + refused) < limit:
            if (late := self.revivals.first()) is None or late[0] > wall:
                break
            letter = self.letters[late[1]]
            if self._key_taken(self.jobs[letter.id], wall):
                # a newer job of this key is on its way: its end will close or merge the letter
                self.keep_letter(late[1], replace(letter, revive_at=None))
                refused += 1
                continue
            self.revive(self.jobs[letter.id], wall, cycles=1)
            self.mark(self.jobs[letter.id], "revive", wall, text="automatic")
            revived += 1
        for _ in range(limit):
            if (waking := self.waking.first()) is None or waking[0] > wall:
                break
            queue, group, _task = waking[1]
            self.keep_flow(replace(self.flows[waking[1]], wakes_at=None))
            self.touched[queue or "", group or ""] = None
        self.refill_touched()
        return Promoted(due=due, expired=expired, revived=revived, more=told >= most or looked >= limit)

    def _key_taken(self, row: Row, wall: float) -> bool:
        holder = None if row.key is None else self.key_holder(row.key_name, wall)
        return holder is not None and holder.id != row.id

    # ------------------------------------------------------------------ leasing

    def lease_to(self, row: Row, holder: Holder, call: int, wall: float) -> None:
        self._fence = max(self._fence + 1, int(wall * 1_000_000))
        started = row.holds_key and row.key_until == "started" and row.key_window is None
        self.move(
            row,
            State.RUNNING,
            token=secrets.token_hex(16),
            fence=self._fence,
            worker=holder.record.id,
            claim_call=call,
            started_at=wall,
            begun=False,
            holds_key=row.holds_key and not started,
        )


def _finished(row: Row) -> dict[str, Any]:
    """What every end takes from a job: its place at the head, and its key unless a window keeps it."""
    return {"held": False, "holds_key": row.holds_key and row.key_window is not None}


def _with(errors: tuple[Failure, ...], failure: Failure | None) -> tuple[Failure, ...]:
    return errors if failure is None else (*errors, failure)[-ERRORS_KEPT_MAX:]


def _prune_at(wall: float, retain: float) -> float:
    return wall + max(retain, REMEMBER_SECONDS_MIN)


def _past(earlier: DeadLetter, letter: DeadLetter) -> PastDeath:
    return PastDeath(
        job_id=earlier.id,
        at=earlier.failed_at,
        reason=earlier.reason,
        error="" if earlier.error is None else earlier.error.text,
        args=None if earlier.args == letter.args else earlier.args,
    )
