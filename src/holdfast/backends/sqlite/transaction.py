"""One write transaction: its time, its counter, the groups it touched, and the routines all verbs share.

Called by the verb modules. Contains the ONE routine that buries a job; the one that refills groups is in groups.py.
Nothing here commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from ...lifecycle import Failure
from ...rates import Rate, bounded
from ...records import HISTORY_KEPT_MAX, REMEMBER_SECONDS_MIN, PastDeath, Seal
from .. import seals
from . import groups, tolerant
from .columns import SQL, Place, deaths_of, encoded, failure_of, logical_name, revival_of
from .rules import Rules, age_shift

_CLOSED = SQL["seal.closed"]
_STORE_TICK = SQL["limit.store_tick"]

TICK_MAX = 1 << 62  # microseconds: no clock comes near it, and there is room to keep counting


class Transaction:
    """What the verbs of one request share. `steady` and `boot` are the clock of lease deadlines."""

    __slots__ = ("_rules", "_tick", "_touched", "boot", "cursor", "now", "steady")

    def __init__(self, cursor: sqlite3.Cursor, now: float, steady: float, boot: str) -> None:
        self.cursor, self.now, self.steady, self.boot = cursor, now, steady, boot
        self._touched: dict[tuple[str, str], bool] = {}
        self._tick: int | None = None
        self._rules: Rules | None = None

    # ------------------------------------------------------------------ the growing counter

    def ticks(self, count: int) -> int:
        """Reserve `count` numbers above every earlier one and above the wall clock; returns the first."""
        if self._tick is None:
            stored = self.rules.tick if self.rules.tick < TICK_MAX else 0  # damaged: the clock is above all it issued
            self._tick = max(stored, int(self.now * 1_000_000))
        first = self._tick + 1
        self._tick += count
        return first

    def close(self) -> None:
        """End of the request: refill the touched groups and store the counter."""
        self.refill()
        if self._tick is not None:
            self.cursor.execute(_STORE_TICK, (self._tick,))

    # ------------------------------------------------------------------ the seal

    @property
    def closed_by(self) -> Seal | None:
        """The seal that closes this store for work; None while it is open."""
        if self._rules is not None:
            record = self._rules.closed
        else:
            row = self.cursor.execute(_CLOSED).fetchone()
            record = None if row is None else row[0]
        return None if record is None else seals.read(record)

    def refuse_sealed(self) -> None:
        """First call of every verb that accepts work, starts it, or changes jobs that are not running (R26)."""
        seal = self.closed_by
        if seal is not None:
            raise seals.refusal(seal)

    # ------------------------------------------------------------------ groups, rules and places

    def touch(self, queue: str, group: str, *, changed: bool = False) -> None:
        """This group must be refilled before the request ends; `changed`: jobs of it may have to be withdrawn."""
        self._touched[queue, group] = changed or self._touched.get((queue, group), False)

    @property
    def touched(self) -> Mapping[tuple[str, str], bool]:
        """The groups to refill, and whether one of their rules changed."""
        return self._touched

    def refilled(self) -> None:
        """The touched groups have been refilled by other means."""
        self._touched = {}

    def refill(self, *, due: bool | None = None) -> int:
        """Refill every touched group; returns how many jobs became ready. `due`: whether a scheduled job is due, if the
        caller has just checked."""
        if not self._touched:
            return 0
        touched, self._touched = self._touched, {}
        return groups.refill(self, touched, due)

    @property
    def rules(self) -> Rules:
        if self._rules is None:
            self._rules = Rules(self.cursor)
        return self._rules

    def rules_changed(self) -> None:
        """A limit, an order or a pause was written in this transaction: read the rules again."""
        self._rules = None

    def lane_of(self, task: str, group: str | None) -> int:
        return self.rules.lane_of(task, group)

    def place(self, seq: int, queue: str, task: str, group: str | None, priority: int, turn: int | None = None) -> None:
        """Bring a due job into play, with its old turn or a new one: ready, or waiting in its group until refill."""
        if group is not None:
            self.cursor.execute(SQL["promote.to_waiting"], (turn, seq))
            self.touch(queue, group)
            return
        aging = self.rules.aging(queue)
        rank = priority if aging is None else 0
        if turn is None:
            turn = self.ticks(1) - age_shift(priority, aging)
        self.cursor.execute(SQL["promote.to_ready"], (self.lane_of(task, group), turn, rank, seq))

    def spend(self, place: Place, spent_until: float) -> None:
        """Store a bucket's new number."""
        self.cursor.execute(SQL["slow_down.spend"], (*place, spent_until))
        self.rules.any_flow = True

    def set_back(self, rate: Rate | None, place: Place) -> None:
        """Clamp a bucket that is further ahead than its rate allows: rate raised or clock set back (R12)."""
        bucket = None if rate is None else self.rules.bucket(place)
        if rate is not None and bucket is not None:
            spent_until = bounded(rate, bucket.spent_until, self.now)
            if spent_until != bucket.spent_until:
                self.spend(place, spent_until)

    # ------------------------------------------------------------------ dead letters

    def bury(self, job: Mapping[str, Any], reason: str, failure: Failure | None) -> None:
        """THE routine that creates or merges a dead letter (R16); the caller makes the job dead in this transaction."""
        execute = self.cursor.execute
        self.rules.any_letter = 1
        logical = logical_name(job["id"], job["queue"], job["task"], job["key"])
        row = execute(SQL["bury.letter"], (job["seq"], logical)).fetchone()
        revival = tolerant.read_or(None, revival_of, job["revival"])
        cooldown = None if revival is None else revival.cooldown(0 if row is None else row[6])
        values = {
            "logical": logical,
            "job_id": job["id"],
            "task": job["task"],
            "queue": job["queue"],
            "key": job["key"],
            "grp": job["grp"],
            "seq": job["seq"],
            "now": self.now,
            "reason": reason,
            "error": None if failure is None else encoded(failure),
            "revive_at": None if cooldown is None else self.now + cooldown,
        }
        if row is None:
            execute(SQL["bury.insert"], values)
            return
        earlier_id, earlier_args, failed_at, earlier_reason, error, history, _ = row
        if earlier_id != job["id"]:
            execute(SQL["bury.supersede"], (self.now + REMEMBER_SECONDS_MIN, earlier_id))
        past = tolerant.read_or(None, failure_of, error)
        earlier = PastDeath(
            job_id=earlier_id,
            at=failed_at,
            reason=earlier_reason,
            error="" if past is None else past.text,
            args=earlier_args,
        )
        deaths = (*tolerant.read_or((), deaths_of, history), earlier)[-HISTORY_KEPT_MAX:]
        execute(SQL["bury.merge"], {**values, "history": encoded(deaths)})

    def close_letters(self, logicals: Iterable[str]) -> None:
        """Success or cancellation closes a logical job's dead letter; an older job that held it may be pruned (R17)."""
        if self.rules.any_letter:
            names = list(logicals)
            prune_at = self.now + REMEMBER_SECONDS_MIN
            self.cursor.executemany(SQL["settle.let_go"], [(prune_at, logical) for logical in names])
            self.cursor.executemany(SQL["settle.close_letter"], [(logical,) for logical in names])
