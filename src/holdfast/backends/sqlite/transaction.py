"""One write transaction: its time, its counter, the groups it touched, and the shared routines every verb uses.

Called by the verb modules on the writer's thread. Here are the ONE routine that
refills a group and the ONE that buries a job. Nothing here commits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...lifecycle import Failure
from ...records import ERRORS_KEPT_MAX, HISTORY_KEPT_MAX, REMEMBER_SECONDS_MIN, PastDeath, Revival, Seal
from ...rules import GroupOrder
from .. import sealing
from ..statements import load_statements

VERBS = [
    "begin",
    "bury",
    "cancel",
    "carry",
    "claim",
    "declare",
    "discard",
    "enqueue",
    "export",
    "pause",
    "promote",
    "prune",
    "read",
    "recover",
    "refill",
    "register",
    "release",
    "renew",
    "report",
    "revive",
    "seal",
    "settle",
]
SQL: Mapping[str, str] = load_statements(__package__ + ".statements", VERBS)

_encode = msgspec.json.Encoder().encode
_failures = msgspec.json.Decoder(tuple[Failure, ...]).decode
_deaths = msgspec.json.Decoder(tuple[PastDeath, ...]).decode
_failure = msgspec.json.Decoder(Failure).decode
_revival = msgspec.json.Decoder(Revival).decode

LANE_UNGROUPED, LANE_GROUPED, LANE_PARKED = 0, 1, 2

_ANY_DUE = SQL["refill.any_due"]
_JOIN_DUE = SQL["refill.join_due"]
_FILL = SQL["refill.fill"]
_FILL_ONE_EACH = SQL["refill.fill_one_each"]
_IN_PLAY = SQL["refill.in_play"]
_WITHDRAW = SQL["refill.withdraw"]
_PAUSED_TASKS = SQL["claim.paused_tasks"]
_CLOSED = SQL["seal.closed"]


class GroupRules:
    """The limits of groups as stored at this instant of a transaction; what claim and refill obey."""

    __slots__ = ("_cursor", "_overrides", "_paused", "_queues")

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self._queues: dict[str, tuple[str, int]] = {}
        self._overrides = {(row[0], row[1]): int(row[2]) for row in cursor.execute(SQL["refill.overrides"])}
        self._paused = {(row[0], row[1]) for row in cursor.execute(SQL["refill.paused_groups"])}

    def _rule(self, queue: str) -> tuple[str, int]:
        """(order, limit) of a queue; an undeclared one is strict."""
        rule = self._queues.get(queue)
        if rule is None:
            row = self._cursor.execute(SQL["refill.rule"], (queue,)).fetchone()
            rule = self._queues[queue] = ("strict", 1) if row is None else (row[0], row[1])
        return rule

    def is_strict(self, queue: str) -> bool:
        return self._rule(queue)[0] == "strict"

    def order(self, queue: str) -> GroupOrder:
        return "strict" if self.is_strict(queue) else "relaxed"

    def override(self, queue: str, group: str) -> int | None:
        return self._overrides.get((queue, group))

    def limit(self, queue: str, group: str) -> int:
        """The effective limit: 0 while paused, 1 for strict, else the override, else the queue's."""
        if (queue, group) in self._paused:
            return 0
        order, limit = self._rule(queue)
        return 1 if order == "strict" else self._overrides.get((queue, group), limit)


class Transaction:
    """What the verbs of one request share. `steady` and `boot` are the clock of lease deadlines."""

    __slots__ = ("_paused_tasks", "_rules", "_tick", "_touched", "boot", "cursor", "now", "steady")

    def __init__(self, cursor: sqlite3.Cursor, now: float, steady: float, boot: str) -> None:
        self.cursor, self.now, self.steady, self.boot = cursor, now, steady, boot
        self._touched: dict[tuple[str, str], None] = {}
        self._tick: int | None = None
        self._paused_tasks: frozenset[str] | None = None
        self._rules: GroupRules | None = None

    # ------------------------------------------------------------------ the growing counter

    def ticks(self, count: int) -> int:
        """Reserve `count` numbers above every earlier one and above the wall clock; answers the first."""
        if self._tick is None:
            row = self.cursor.execute("SELECT tick FROM holdfast_ticks").fetchone()
            self._tick = max(int(row[0]), int(self.now * 1_000_000))
        first = self._tick + 1
        self._tick += count
        return first

    def close(self) -> None:
        """End of the request: groups that were touched are refilled, the counter is stored."""
        self.refill()
        if self._tick is not None:
            self.cursor.execute("UPDATE holdfast_ticks SET tick = ?", (self._tick,))
            self._tick = None

    # ------------------------------------------------------------------ the seal

    @property
    def closed_by(self) -> Seal | None:
        """The seal that closes this store for work; None while it is open."""
        row = self.cursor.execute(_CLOSED).fetchone()
        return None if row is None else sealing.read(row[0])

    def refuse_sealed(self) -> None:
        """The first act of every verb that takes work in, starts it, or changes what does not run."""
        seal = self.closed_by
        if seal is not None:
            raise sealing.refusal(seal)

    # ------------------------------------------------------------------ groups

    def touch(self, queue: str, group: str) -> None:
        self._touched[queue, group] = None

    def refill(self) -> int:
        """THE routine that refills: every touched group gets as many of its waiting jobs ready as it has room."""
        if not self._touched:
            return 0
        turn = self.ticks(len(self._touched))
        rules, parking = self.rules, bool(self.paused_tasks)
        one: list[tuple[str, str]] = []
        several: list[dict[str, Any]] = []
        due = self.cursor.execute(_ANY_DUE, (self.now,)).fetchone()[0]
        for queue, group in self._touched:
            limit = rules.limit(queue, group)
            if due and limit:
                # Who is due but not yet promoted must not be overtaken by a later one of its group.
                self.cursor.execute(_JOIN_DUE, {"queue": queue, "grp": group, "limit": limit, "now": self.now})
            if limit == 1:
                one.append((queue, group))
            elif limit > 1:
                place = turn + len(one) + len(several)
                several.append({"queue": queue, "grp": group, "turn": place, "limit": limit, "parking": parking})
        self._touched.clear()
        made_ready = 0
        if one:
            groups = {"groups": _encode(one).decode(), "turn": turn, "parking": parking}
            made_ready = self.cursor.execute(_FILL_ONE_EACH, groups).rowcount
        return made_ready + (self.cursor.executemany(_FILL, several).rowcount if several else 0)

    @property
    def rules(self) -> GroupRules:
        if self._rules is None:
            self._rules = GroupRules(self.cursor)
        return self._rules

    def rules_changed(self) -> None:
        """A limit, an order or a pause was written in this transaction: read them anew."""
        self._rules = None
        self._paused_tasks = None

    def withdraw(self, queue: str, group: str) -> None:
        """After a limit was lowered or a group paused: ready members beyond the limit wait again, turn kept."""
        where = {"queue": queue, "grp": group}
        limit = self.rules.limit(queue, group)
        in_play = dict(self.cursor.execute(_IN_PLAY, where).fetchall())
        excess = min(in_play.get("ready", 0), sum(in_play.values()) - limit)
        if excess > 0:
            self.cursor.execute(_WITHDRAW, {**where, "excess": excess})
        self.touch(queue, group)

    @property
    def paused_tasks(self) -> frozenset[str]:
        if self._paused_tasks is None:
            self._paused_tasks = frozenset(row[0] for row in self.cursor.execute(_PAUSED_TASKS))
        return self._paused_tasks

    def lane_of(self, task: str, group: str | None) -> int:
        if task in self.paused_tasks:
            return LANE_PARKED
        return LANE_UNGROUPED if group is None else LANE_GROUPED

    # ------------------------------------------------------------------ dead letters

    def bury(self, job: Mapping[str, Any], reason: str, failure: Failure | None) -> None:
        """THE routine that makes or merges a dead letter; the caller makes the job dead in the same transaction."""
        execute = self.cursor.execute
        logical = logical_name(job["id"], job["queue"], job["task"], job["key"])
        row = execute(SQL["bury.letter"], (logical,)).fetchone()
        revival = None if job["revival"] is None else _revival(job["revival"])
        cooldown = None if revival is None else revival.cooldown(0 if row is None else row[7])
        values = {
            "logical": logical,
            "job_id": job["id"],
            "task": job["task"],
            "queue": job["queue"],
            "key": job["key"],
            "grp": job["grp"],
            "args": job["args"],
            "now": self.now,
            "reason": reason,
            "error": None if failure is None else _encode(failure),
            "revive_at": None if cooldown is None else self.now + cooldown,
        }
        if row is None:
            execute(SQL["bury.insert"], values)
            return
        earlier_id, earlier_args, _, failed_at, earlier_reason, error, history, _ = row
        if earlier_id != job["id"]:
            execute(SQL["bury.supersede"], (self.now + REMEMBER_SECONDS_MIN, earlier_id))
        earlier = PastDeath(
            job_id=earlier_id,
            at=failed_at,
            reason=earlier_reason,
            error="" if error is None else _failure(error).text,
            args=None if earlier_args == job["args"] else earlier_args,
        )
        deaths = (*(() if history is None else _deaths(history)), earlier)[-HISTORY_KEPT_MAX:]
        execute(SQL["bury.merge"], {**values, "history": _encode(deaths)})

    def close_letters(self, logicals: Iterable[str]) -> None:
        """Success or cancellation of a logical job closes its dead letter; an older job that held it may be pruned."""
        if self.cursor.execute(SQL["settle.any_letter"]).fetchone()[0]:
            names = list(logicals)
            prune_at = self.now + REMEMBER_SECONDS_MIN
            self.cursor.executemany(SQL["settle.let_go"], [(prune_at, logical) for logical in names])
            self.cursor.executemany(SQL["settle.close_letter"], [(logical,) for logical in names])


def logical_name(job_id: str, queue: str, task: str, key: str | None) -> str:
    """The name of the logical job: (queue, task, key), or the id where there is no key."""
    return f"id:{job_id}" if key is None else "key:" + _encode([queue, task, key]).decode()


def with_failure(errors: bytes | None, failure: Failure) -> bytes:
    """A job's error history with one more, bounded to the newest."""
    return _encode((*(() if errors is None else _failures(errors)), failure)[-ERRORS_KEPT_MAX:])


def failures_of(errors: bytes | None) -> tuple[Failure, ...]:
    return () if errors is None else _failures(errors)


def deaths_of(history: bytes | None) -> tuple[PastDeath, ...]:
    return () if history is None else _deaths(history)


def failure_of(error: bytes | None) -> Failure | None:
    return None if error is None else _failure(error)


def revival_of(revival: bytes | None) -> Revival | None:
    return None if revival is None else _revival(revival)


def encoded(value: Any) -> bytes:
    return _encode(value)
