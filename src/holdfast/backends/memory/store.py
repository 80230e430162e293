"""The routines the memory store's verbs share: place, refill, end a lease, bury, revive, promote, take.

Called by backend.py, always inside its critical section. ONE routine ends leases, ONE refills groups, ONE buries.
It never reads a clock and never checks a token: times come in, and the verbs judge who may ask.
"""

from __future__ import annotations

import secrets
from typing import Any

from msgspec.structs import replace

from ...lifecycle import Failure, State
from ...records import (
    ERRORS_KEPT_MAX,
    HISTORY_KEPT_MAX,
    REMEMBER_SECONDS_MIN,
    DeadLetter,
    NewJob,
    PastDeath,
    Promoted,
    Seal,
)
from ..numbering import ALONE, Numbering
from ..sealing import refusal
from .index import Index
from .rows import LANE_GROUPED, LANE_PARKED, LANE_UNGROUPED, GroupName, Holder, Row, due_time, expiry

RETAIN_SECONDS = 86400.0  # how long a finished job is kept where no settlement says it


class Store(Index):
    """The index with the rules by which jobs move."""

    def __init__(self, numbering: Numbering = ALONE) -> None:
        super().__init__()
        self._numbering = numbering
        self._seq, self._turn, self._fence = numbering.seq, numbering.tick, numbering.tick
        self.wall = 0.0  # of the step under way
        self.seal: Seal | None = None

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

    def strict(self, queue: str) -> bool:
        rule = self.rules.get(queue)
        return rule is None or rule.group_order == "strict"

    def group_limit(self, name: GroupName) -> int:
        """How many jobs a group may have in play."""
        if (name[0], name[1], None) in self.pauses:
            return 0
        rule = self.rules.get(name[0])
        if rule is None or rule.group_order == "strict":
            return 1
        return self.overrides.get(name, rule.group_limit)

    def lane_of(self, row: Row) -> int:
        if (None, None, row.task) in self.pauses:
            return LANE_PARKED
        return LANE_UNGROUPED if row.group is None else LANE_GROUPED

    def next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def make_ready(self, row: Row, **changes: Any) -> None:
        turn = changes.pop("turn", row.turn)
        self.move(row, State.READY, turn=turn or self.next_turn(), lane=self.lane_of(row), **changes)

    def place(self, row: Row, **changes: Any) -> None:
        """Bring a due job into play: ready, or behind its group until refill makes it ready."""
        if row.group is None:
            self.make_ready(row, **changes)
        else:
            self.move(row, State.WAITING, **changes)

    def refill(self, name: GroupName) -> int:
        """Bring a group to its limit: waiting jobs in while there is room, ready ones out where there are too many.

        THE routine that refills; every step that touched a group ends with it. Answers how many became ready.
        """
        group = self.groups.get(name)
        if group is None:
            return 0
        made = 0
        room = self.group_limit(name) - group.in_play
        if room > 0 and group.waiting:
            # who is due but not yet promoted must not be overtaken by a later one of its group
            for row in [row for row in group.scheduled.values() if row.due_at <= self.wall]:
                self.move(row, State.WAITING)
        while room > 0 and (first := group.waiting.first()) is not None:
            self.make_ready(self.jobs[first[1]])
            room -= 1
            made += 1
        while room < 0 and group.ready:
            last = max(group.ready.values(), key=lambda row: (not row.held, -row.priority, row.seq))
            self.move(last, State.WAITING)
            room += 1
        return made

    def refill_touched(self) -> None:
        while self.touched:  # a withdrawal touches its group once more; that second look moves nothing
            names = list(self.touched)
            self.touched.clear()
            for name in names:
                self.refill(name)

    # ------------------------------------------------------------------ producing

    def add(self, job: NewJob, wall: float) -> None:
        self._seq = self._numbering.after(self._seq, wall)
        due_at = due_time(job, wall)
        row = Row(
            id=job.id,
            seq=self._seq,
            task=job.task,
            queue=job.queue,
            state=State.SCHEDULED if due_at > wall else State.READY if job.group is None else State.WAITING,
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
        )
        if row.state is State.READY:
            row.turn, row.lane = self.next_turn(), self.lane_of(row)
        self.insert(row)

    def replace_call(self, row: Row, job: NewJob, wall: float) -> None:
        """Give an unstarted job the call of a newer one of its key; id and seq stay, its place is found anew."""
        due_at = due_time(job, wall)
        self.move(
            row,
            State.SCHEDULED,
            args=job.args,
            priority=job.priority,
            group=job.group,
            max_stalls=max(job.max_stalls, row.stalls),
            revival=job.revival,
            options=job.options,
            due_at=due_at,
            expires_at=expiry(job, due_at),
            held=row.held and row.group == job.group,
            turn=None,
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
        """THE routine that ends leases, whoever noticed: the token is void, the counters say why, the place is free.

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
            "held": row.group is not None and not into.finished and self.strict(row.queue),
        }
        if counted and not into.finished:
            ended["expires_at"] = None  # it was claimed in time; what follows is not a late start
        if into is State.DEAD:
            self.bury(row, wall, reason or "failed", failure, **ended)
        elif into.finished:
            self.finish(row, wall, into, retain, value=value, **ended)
        elif into is State.SCHEDULED:
            self.move(row, State.SCHEDULED, due_at=wall + delay, turn=None, **ended)
        else:
            self.place(row, **ended)

    def give_back(self, row: Row, wall: float, delay: float = 0.0) -> None:
        """End a lease that costs nothing; where a cancel was asked for, the job is cancelled."""
        if row.cancel_requested:
            self.end_lease(row, wall, State.CANCELLED)
        else:
            self.end_lease(row, wall, State.SCHEDULED if delay > 0 else State.READY, delay=delay)

    def finish(self, row: Row, wall: float, state: State, retain: float, **changes: Any) -> None:
        """A logical job ended well, or was cancelled: its letter closes."""
        changes["held"] = False
        self.move(row, state, finished_at=wall, prune_at=_prune_at(wall, retain), **changes)
        letter = self.drop_letter(row.logical)
        if letter is not None and letter.id != row.id:
            self._supersede(letter.id, wall)

    def bury(self, row: Row, wall: float, reason: str, error: Failure | None, **changes: Any) -> None:
        """THE routine by which jobs die: dead, and the one letter of the logical job made or merged."""
        changes["held"] = False
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

    def bury_unstarted(self, row: Row, wall: float, reason: str, text: str) -> None:
        """Death without a lease: expired, or by an operator's word."""
        failure = Failure(at=wall, reason=reason, text=text, attempt=row.attempts, fence=row.fence)
        self.bury(row, wall, reason, failure, errors=_with(row.errors, failure))

    def expire(self, row: Row, wall: float) -> None:
        self.bury_unstarted(row, wall, "expired", "not claimed before it expired")

    def _supersede(self, job_id: str, wall: float) -> None:
        """The job no longer holds its letter: it stays dead and may be pruned."""
        self.let_go(self.jobs[job_id], wall, "superseded")

    def let_go(self, row: Row, wall: float, reason: str) -> None:
        self.move(row, State.DEAD, reason=reason, prune_at=wall + REMEMBER_SECONDS_MIN)

    # ------------------------------------------------------------------ again

    def again(self, row: Row, wall: float) -> None:
        """A finished job comes into play with fresh budgets; what it suffered stays on record."""
        self.place(
            row,
            turn=None,
            attempts=0,
            failures=0,
            stalls=0,
            shared_stalls=0,
            suspect=False,
            due_at=wall,
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
        """Bury what expired unstarted, bring what is due into play, revive letters whose time has come."""
        expired = due = revived = 0
        while expired < limit and (first := self.expiring.first()) is not None and first[0] <= wall:
            self.expire(self.jobs[first[1]], wall)
            expired += 1
        while expired + due < limit and (first := self.due.first()) is not None and first[0][0] <= wall:
            self.place(self.jobs[first[1]])
            due += 1
        while expired + due + revived < limit and (late := self.revivals.first()) is not None and late[0] <= wall:
            letter = self.letters[late[1]]
            if late[1] in self.live_keys:
                # a newer job of this key is on its way: its end will close or merge the letter
                self.keep_letter(late[1], replace(letter, revive_at=None))
                continue
            self.revive(self.jobs[letter.id], wall, cycles=1)
            revived += 1
        self.refill_touched()
        return Promoted(due=due, expired=expired, revived=revived, more=expired + due + revived >= limit)

    # ------------------------------------------------------------------ leasing

    def take(self, holder: Holder, call: int, queue: str, most: int, wall: float) -> list[Row]:
        """Lease up to `most` ready jobs of a queue from both lanes; the lane with the call's parity goes first."""
        lane = call % 2
        rows = self._draw(holder, call, (queue, lane), most - most // 2, wall)
        rows += self._draw(holder, call, (queue, 1 - lane), most - len(rows), wall)
        rows += self._draw(holder, call, (queue, lane), most - len(rows), wall)
        return rows

    def _draw(self, holder: Holder, call: int, lane: tuple[str, int], most: int, wall: float) -> list[Row]:
        rows: list[Row] = []
        ready = self.lanes.get(lane)
        while ready is not None and len(rows) < most and (first := ready.first()) is not None:
            row = self.jobs[first[1]]
            if row.expires_at is not None and row.expires_at <= wall:
                self.expire(row, wall)
                continue
            self._fence = max(self._fence + 1, int(wall * 1_000_000))
            self.move(
                row,
                State.RUNNING,
                token=secrets.token_hex(16),
                fence=self._fence,
                worker=holder.record.id,
                claim_call=call,
                started_at=wall,
                begun=False,
            )
            rows.append(row)
        return rows


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
