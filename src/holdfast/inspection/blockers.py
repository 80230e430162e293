"""What blocks a due job: limits, rates and slow-downs of its queue, task and group.

Called by explain, and by the command line for the values in force. Reads through the contract, so it may be slightly
stale, like every explanation. Never changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import UNSET, UnsetType

from ..backends.contract import Backend
from ..lifecycle import State
from ..rates import UNLIMITED, Rate, bounded, opens_at
from ..records import Flow, GroupRecord, JobRecord, Override, QueueRecord, TaskRecord

V = TypeVar("V", int, Rate)
When = Callable[[float], str]


def limit_in_force(declared: int | None, override: Override | None) -> int | None:
    """The effective limit; None if there is none."""
    limit = _said(declared, UNSET if override is None else override.limit)
    return None if limit is None or limit >= UNLIMITED else limit


def rate_in_force(declared: Rate | None, override: Override | None) -> Rate | None:
    """The effective rate; None if there is none."""
    rate = _said(declared, UNSET if override is None else override.rate)
    return None if rate is None or rate.none else rate


def _said(declared: V | None, said: V | UnsetType | None) -> V | None:
    return declared if said is None or said is UNSET else said


async def brakes(backend: Backend, job: JobRecord, now: float, when: When) -> list[str]:
    """Sentences about what blocks this job now. `when` formats a time."""
    queue = next((one for one in await backend.queues() if one.name == job.queue), None)
    task = next((one for one in await backend.tasks() if one.rule.name == job.task), None)
    found = [] if queue is None else _of_queue(queue, now, when)
    found += [] if task is None else _of_task(task, now, when)
    return found


def group_brake(group: GroupRecord, now: float, when: When) -> str | None:
    """A sentence if the group's rate, and nothing else about the group, blocks its waiting jobs; else None."""
    wakes_at = None if group.flow is None else group.flow.wakes_at
    if wakes_at is None or wakes_at <= now or group.rate is None:
        return None
    return f"Group {group.name!r} has used up its rate of {group.rate}; the next may start {when(wakes_at)}."


def _of_queue(queue: QueueRecord, now: float, when: When) -> list[str]:
    found: list[str] = []
    if queue.flow is not None and queue.flow.shut_until > now:
        found.append(f"Queue {queue.name!r} is slowed down; nothing of it starts before {when(queue.flow.shut_until)}.")
    running, limit = queue.counts.get(State.RUNNING, 0), limit_in_force(queue.limit, queue.override)
    if limit is not None and running >= limit:
        said = _whose(queue.limit, limit)
        found.append(f"Queue {queue.name!r} runs {running} jobs, and its limit is {limit}{said}.")
    rate = rate_in_force(queue.rate, queue.override)
    opens = _opens(rate, queue.flow, now)
    if opens is not None:
        found.append(f"Queue {queue.name!r} has used up its rate of {rate}; the next may start {when(opens)}.")
    return found


def _of_task(task: TaskRecord, now: float, when: When) -> list[str]:
    found: list[str] = []
    name, limit = task.rule.name, limit_in_force(task.rule.limit, task.override)
    if limit is not None and task.running >= limit:
        said = _whose(task.rule.limit, limit)
        found.append(f"Task {name!r} runs {task.running} jobs, and its limit is {limit}{said}: its lane is closed.")
    rate = rate_in_force(task.rule.rate, task.override)
    opens = _opens(rate, task.flow, now)
    if opens is not None:
        found.append(f"Task {name!r} has used up its rate of {rate}; its lane opens {when(opens)}.")
    return found


def _opens(rate: Rate | None, flow: Flow | None, now: float) -> float | None:
    if rate is None or flow is None:
        return None
    at = opens_at(rate, bounded(rate, flow.spent_until, now))  # as the next claim computes it if the rate was raised
    return at if at > now else None


def _whose(declared: int | None, limit: int) -> str:
    if declared == limit:
        return ""
    return f" (an operator's word; the code says {'nothing' if declared is None else declared})"
