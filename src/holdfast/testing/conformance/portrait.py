"""A portrait of a store: everything the contract lets one read, without what differs by chance.

Called after every case, by random walks and by tests that compare two stores. It reads through the contract only, so
two stores that went through the same history have the same portrait whatever their tables look like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...backends.contract import Backend
from ...lifecycle import Failure, State
from ...records import (
    CronEntry,
    DeadLetter,
    Flow,
    GroupRecord,
    JobQuery,
    JobRecord,
    LetterQuery,
    PastDeath,
    Pause,
    QueueRecord,
    TaskRecord,
    WorkerRecord,
)
from .compare import ranked

ALL = 1_000_000


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What can be read of a store at one moment. `hidden` is by job id, `turns` the ids in order of their turn."""

    jobs: tuple[JobRecord, ...]
    letters: tuple[DeadLetter, ...]
    workers: tuple[WorkerRecord, ...]
    queues: tuple[QueueRecord, ...]
    groups: tuple[GroupRecord, ...]
    pauses: tuple[Pause, ...]
    tasks: tuple[TaskRecord, ...]
    entries: tuple[CronEntry, ...]
    hidden: dict[str, tuple[Any, ...]]
    turns: tuple[str, ...]
    counts: dict[str, dict[str, int]]
    edges: dict[str, tuple[Mapping[str, Any], ...]]
    steps: tuple[dict[str, Any], ...]


async def portray(backend: Backend, now: float) -> WorkerStatus:
    """Read everything. Fences, seqs and turns are numbers of the store's own: only their order is kept."""
    tables = (await backend.dump()).tables
    rows = tables["jobs"]
    letters = await backend.letters(LetterQuery(limit=ALL))
    return WorkerStatus(
        jobs=tuple(_plain_job(job) for job in await backend.find(JobQuery(limit=ALL))),
        letters=tuple(sorted((_plain_letter(letter) for letter in letters), key=lambda letter: letter.id)),
        workers=tuple(sorted(await backend.workers(now=now), key=lambda worker: worker.id)),
        queues=tuple(_plain_queue(queue, now) for queue in await backend.queues()),
        groups=tuple(_plain_group(group, now) for group in await backend.groups(limit=ALL)),
        pauses=tuple(sorted(await backend.pauses(), key=repr)),
        tasks=tuple(_plain_task(task, now) for task in await backend.tasks() if _is_said(task, now)),
        entries=tuple(await backend.entries()),
        hidden={row["id"]: _hidden(row) for row in rows},
        turns=tuple(ranked([row for row in rows if row["state"] == State.READY], "turn")),
        counts={queue: {str(s): n for s, n in states.items()} for queue, states in (await backend.count()).items()},
        edges={name: tables[name] for name in ("edges", "dependents", "propagating")},
        steps=tuple({name: value for name, value in row.items() if name != "fence"} for row in tables["steps"]),
    )


def unlike(one: WorkerStatus, other: WorkerStatus) -> list[str]:
    """Where two portraits differ, as readable lines; empty when they are the same."""
    lines: list[str] = []
    for field in WorkerStatus.__struct_fields__:
        a, b = getattr(one, field), getattr(other, field)
        if a == b:
            continue
        if field in ("jobs", "letters", "workers") and [x.id for x in a] == [x.id for x in b]:
            lines.extend(_fields_apart(x, y) for x, y in zip(a, b, strict=True) if x != y)
        elif isinstance(a, tuple) and len(a) == len(b):
            lines.extend(f"{field}: {x} | {y}" for x, y in zip(a, b, strict=True) if x != y)
        else:
            lines.append(f"{field}: {a} | {b}")
    return lines


def _fields_apart(one: Any, other: Any) -> str:
    apart = [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
    shown = ", ".join(f"{name} {getattr(one, name)!r} | {getattr(other, name)!r}" for name in apart)
    return f"{type(one).__name__} {one.id}: {shown}"


def _plain_failure(failure: Failure) -> Failure:
    """Without the fence, and without the sentence where it is the store's own."""
    ours = failure.reason in ("stalled", "expired")
    return msgspec.structs.replace(failure, fence=0, text="" if ours else failure.text)


def _plain_past(past: PastDeath) -> PastDeath:
    ours = past.reason in ("stalled", "expired")
    return msgspec.structs.replace(past, error="" if ours else past.error)


def _hidden(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What no record shows and chance does not touch; the lane only where it means something."""
    return (row["lane"] if row["state"] == State.READY else None, row["rank"], row["claim_call"], row["prune_at"])


def _plain_job(job: JobRecord) -> JobRecord:
    if job.key is None:
        job = msgspec.structs.replace(job, key_scope="queue", key_until="finished", key_window=None)
    return msgspec.structs.replace(job, seq=0, fence=int(job.fence > 0), errors=tuple(map(_plain_failure, job.errors)))


def _plain_letter(letter: DeadLetter) -> DeadLetter:
    error = None if letter.error is None else _plain_failure(letter.error)
    return msgspec.structs.replace(letter, error=error, history=tuple(map(_plain_past, letter.history)))


def _plain_flow(flow: Flow | None, now: float) -> Flow | None:
    """A bucket that says something; when a group is to be woken is a hint and may outlive its reason."""
    if flow is None or max(flow.spent_until, flow.shut_until) <= now:
        return None
    return msgspec.structs.replace(flow, wakes_at=None)


def _is_said(task: TaskRecord, now: float) -> bool:
    return task.declared or task.override is not None or _plain_flow(task.flow, now) is not None


def _plain_task(task: TaskRecord, now: float) -> TaskRecord:
    return msgspec.structs.replace(task, flow=_plain_flow(task.flow, now))


def _plain_queue(queue: QueueRecord, now: float) -> QueueRecord:
    counts = {str(s): n for s, n in queue.counts.items() if n}
    return msgspec.structs.replace(queue, counts=counts, flow=_plain_flow(queue.flow, now))


def _plain_group(group: GroupRecord, now: float) -> GroupRecord:
    """With a head only where the contract has one: in a strict group."""
    head = group.head if group.order == "strict" else None
    counts = {str(s): n for s, n in group.counts.items() if n}
    return msgspec.structs.replace(group, head=head, counts=counts, flow=_plain_flow(group.flow, now))
