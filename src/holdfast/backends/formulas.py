"""The reference for formulas that several languages repeat: lane, rank, a group's limit, prune time, overlap.

SQLite, the router and the inspection call them; PostgreSQL and Redis spell them in SQL and Lua, once each, under the
name beside each formula. Pure. The conformance theme `formulas` holds every store to them over one table of inputs.

Three more formulas are defined elsewhere: a stall's verdict is lifecycle.stall_verdict (recover.sql
`stall`, recover.lua `hf.stall`), the cooldown of a revival is records.Revival.cooldown (operate.sql `cooldown`,
operate.lua `hf.cooldown`), and GCRA is rates.py (rates.sql, rates.lua: `allowed`, `charged`, `bounded`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec.structs import replace

from ..dependencies import EdgeStatus, OnParentFailure
from ..lifecycle import State
from ..records import MARKS_KEPT_MAX, REMEMBER_SECONDS_MIN, SERIAL_PREFIX, GroupOrder, Mark, NewJob

LANE_UNGROUPED, LANE_GROUPED, LANE_PARKED, LANE_APART = 0, 1, 2, 3

TICKS_PER_SECOND = 1_000_000


def lane(*, parked: bool, apart: bool, grouped: bool) -> int:
    """Where claims look for a ready job: a paused task's lane is never read, a task with a rule has its own.

    PostgreSQL: fragments `lane` and `lane_in_bulk` (lanes.sql), where each task has a number of its own above 2.
    SQLite: fragment `lane` (groups.sql), for jobs that a refill makes ready. Redis: fragment `TASK_LANE`.
    """
    if parked:
        return LANE_PARKED
    if apart:
        return LANE_APART
    return LANE_GROUPED if grouped else LANE_UNGROUPED


def rank(priority: int, aging: float | None) -> int:
    """The first sort key of a lane, before the turn: the priority, unless the queue's aging turns it into time.

    PostgreSQL: fragment `rank` (lanes.sql). Redis: `hf.become_ready` (groups.lua).
    """
    return priority if aging is None or aging < 0 else 0


def age_shift(priority: int, aging: float | None) -> int:
    """How many ticks earlier a priority makes a turn in a queue with aging (the seconds one step of priority is worth).

    PostgreSQL: fragment `age_shift` (lanes.sql). Redis: `hf.become_ready` (groups.lua).
    """
    return 0 if aging is None or aging < 0 else int(priority * aging * TICKS_PER_SECOND // 1)


def turn(tick: int, priority: int, aging: float | None) -> int:
    """The turn of an ungrouped job that becomes ready: its tick, earlier with aging; with LIFO, the newest goes first.

    PostgreSQL: fragment `turn` (lanes.sql). Redis: `hf.become_ready` (groups.lua).
    """
    return -tick if aging is not None and aging < 0 else tick - age_shift(priority, aging)


def ahead(line: int, weight: int) -> int:
    """How many of the ready jobs go before the next job of a group with a weight (R106)."""
    return max(1, line // weight)


def weighted(turn: int, before: int, behind: int) -> int:
    """A new turn between those of two neighbouring ready jobs; never later than its own."""
    return min(turn, before + (behind - before) // 2)


def place(order: int | None, seq: int) -> tuple[bool, int, int]:
    """Sort key within a group and priority: jobs without an order first, then by order, then by seq."""
    return order is not None, order or 0, seq


def due_time(job: NewJob, order_window: float | None, now: float) -> float:
    """When a new job is due: as requested, or after it has waited for lower orders (R104)."""
    if job.due_at is not None:
        return job.due_at
    if job.delay is None and job.order is not None and job.group is not None and order_window is not None:
        return now + order_window
    return now + (job.delay or 0.0)


def group_order(group: str, declared: GroupOrder) -> GroupOrder:
    """A group with the serial prefix is strict whatever its queue's rule.

    PostgreSQL: fragment `is_relaxed` (groups.sql). Redis: fragment `IS_STRICT`.
    """
    return "strict" if group.startswith(SERIAL_PREFIX) else declared


def group_limit(order: GroupOrder, declared: int, override: int | None, *, paused: bool) -> int:
    """How many jobs of a group may be ready or running: the operator's override applies unless the group is strict.

    PostgreSQL: `limits` (groups.sql). Redis: `hf.group_of` (groups.lua).
    """
    if paused:
        return 0
    return 1 if order == "strict" else override or declared


def window_end(key: str | None, created_at: float, key_window: float | None) -> float | None:
    """Until when a job holds its key, whatever happens to it; None without a window.

    Fragments: PostgreSQL `window_end` (unique_keys.sql), SQLite `window_end` (settle.sql), Redis `WINDOW_END`.
    """
    return None if key is None or key_window is None else created_at + key_window


def prune_at(now: float, retain: float, window_ends: float | None) -> float:
    """When a job that ends now may be removed: its id is remembered for ten minutes at least, its key for its window.

    PostgreSQL: fragment `prune_at` (settle.sql). SQLite: fragment `prune_at` (settle.sql).
    Redis: fragment `PRUNE_AT`.
    """
    kept = now + max(retain, REMEMBER_SECONDS_MIN)
    return kept if window_ends is None else max(kept, window_ends)


def edge_status(status: EdgeStatus, parent: State, policy: OnParentFailure) -> EdgeStatus:
    """The status of an edge whose parent has changed to that state. Once met, it stays met.

    PostgreSQL: fragment `edge_status` (dependencies.sql). Redis: `hf.edge_status` (dependencies.lua).
    """
    if status == "met" or parent is State.SUCCEEDED:
        return "met"
    if parent.live:
        return "open"
    return "met" if policy == "run" else "failed"


def tick_overlap(overlap: str, *, live: bool) -> tuple[bool, bool]:
    """Whether a cron tick is skipped, and whether it cancels the job of the previous tick, which may be live.

    PostgreSQL: `tick` (cron.sql). Redis: script tick (cron.lua).
    """
    return live and overlap == "skip", live and overlap == "cancel"


# ----------------------------------------------------------------------------------------------------------------------
# Which seqs a store gives its jobs: a single store counts 1, 2, 3; no two shards of one store may issue the same seq.
#
# Passed by the sharded router to its Redis shards, whose script does the arithmetic of `after`. Pure functions.


EPOCH = 1_577_836_800.0  # 2020; with 4096 shards the milliseconds since then fit into 53 bits until 2089


class Numbering(NamedTuple):
    """Every seq is congruent to `rest` modulo `step`. A shard's seqs are also never below the clock, so that the seqs
    of all shards are roughly in order of time. seqs start above `seq`, fences and turns above `tick`: the highest
    numbers that a move carried into other shards, or into a shard that no longer exists."""

    step: int = 1
    rest: int = 0
    seq: int = 0
    tick: int = 0

    def after(self, last: int, wall: float) -> int:
        """The seq after `last`."""
        least = last + 1
        if self.step > 1:
            least = max(least, math.floor((wall - EPOCH) * 1000) * self.step)
        return least + (self.rest - least) % self.step


ALONE = Numbering()  # for a store that is not a shard


def renewal_gap(now: float, renewed_at: float, started_at: float, lease_seconds: float) -> float | None:
    """For how long a lease was not renewed, if that is more than half of its worker's lease_seconds; else None.

    PostgreSQL: `note_late` (renew.sql). Redis: script `renew`.
    """
    gap = now - max(renewed_at, started_at)
    return gap if gap > lease_seconds / 2 else None


def noted(marks: tuple[Mark, ...], mark: Mark) -> tuple[Mark, ...]:
    """Add a mark of which a lease keeps only the first and the newest.

    PostgreSQL: `with_note` (history.sql). Redis: `hf.note` (settle.lua).
    """
    same = [(one.kind, one.fence) == (mark.kind, mark.fence) for one in marks[-2:]]
    if same == [True, True]:
        return (*marks[:-1], replace(mark, count=marks[-1].count + 1))
    kept = marks if len(marks) < MARKS_KEPT_MAX else (marks[0], *marks[2 - MARKS_KEPT_MAX :])
    return (*kept, mark)
