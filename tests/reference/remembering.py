"""What jobs remember between their attempts: steps of their handlers, and signals (R91 to R94).

Called by the reference's verbs. Steps are kept per job, by kind and name.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.seals import too_many_signals
from holdfast.dependencies import DUE_AFTER_PARENTS
from holdfast.lifecycle import Ending, Settlement, State, state_conflict
from holdfast.records import Answer, Held
from holdfast.steps import SIGNALS_MAX, NewStep, Step

from . import leasing, operating
from .rows import Row
from .store import Store


def checkpoint(store: Store, held: Held, steps: Sequence[NewStep], wall: float) -> Answer:
    row = leasing.fenced(store, held.id, held.token)
    if row is None:
        return Answer.LOST
    for step in steps:
        until = None if step.delay is None else wall + step.delay
        kept = Step(
            job_id=row.id,
            kind=step.kind,
            name=step.name,
            number=step.number,
            value=step.value,
            until=until,
            at=wall,
            fence=row.fence,
        )
        store.steps.setdefault(row.id, {})[step.kind, step.name] = kept
    return Answer.OK


def signal(store: Store, job_id: str, name: str, value: bytes, wall: float, by: str) -> Row:
    row = operating.find(store, job_id)
    if row.state.finished:
        raise state_conflict(job_id, "signal", row.state)
    kept = store.steps.setdefault(job_id, {})
    if ("signal", name) in kept:
        return row
    if sum(kind == "signal" for kind, _ in kept) >= SIGNALS_MAX:
        raise too_many_signals(job_id)
    kept["signal", name] = Step(job_id=job_id, kind="signal", name=name, value=value, at=wall, fence=row.fence)
    wait = kept.get(("wait", name))
    if row.state is State.SCHEDULED and row.due_at != DUE_AFTER_PARENTS and wait and wait.fence == row.fence:
        store.place(row, due_at=wall)
    store.mark(row, "signal", wall, by=by, text=name)
    return row


def is_due(store: Store, item: Settlement) -> bool:
    """Whether the signal that a snooze waits for is there."""
    return item.ending is Ending.SNOOZED and ("signal", item.reason) in store.steps.get(item.id, {})


def in_order(store: Store) -> list[Step]:
    every = [step for steps in store.steps.values() for step in steps.values()]
    return sorted(every, key=lambda step: (step.job_id, step.kind, step.name))


def of_job(store: Store, job_id: str) -> tuple[Step, ...]:
    return tuple(step for _, step in sorted(store.steps.get(job_id, {}).items()))


def carry(store: Store, shipped: Sequence[Step]) -> None:
    for step in shipped:
        store.steps.setdefault(step.job_id, {}).setdefault((step.kind, step.name), step)
