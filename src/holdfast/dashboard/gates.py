"""The conditions an unstarted job must meet, in the order in which they are checked: which are met, which stops it.

Called by the job's page, beside the sentences of explain. Reads only; slightly stale data is good enough.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..inspection.explain import limit_in_force, rate_in_force
from ..job import Job
from ..lifecycle import UNSTARTED, State
from ..rates import UNLIMITED
from ..records import GroupRecord, Pause, QueueRecord, TaskRecord, WorkerRecord
from ..worker_status import WorkerStatus, read
from .formats import num


class Gate(Struct, frozen=True, kw_only=True):
    """One condition. `open` is None where it cannot be known."""

    name: str
    text: str = ""
    open: bool | None = True
    at: float | None = None  # a time to show after the text


class Scene(Struct, frozen=True, kw_only=True):
    """What the conditions are judged by, read once."""

    now: float
    job: Job[Any]
    queue: QueueRecord | None
    group: GroupRecord | None
    task: TaskRecord | None
    pauses: list[Pause]
    workers: list[WorkerRecord]
    quiet_seconds: float = 0.0  # after a failover the store hands out no jobs for this long


def gates(scene: Scene) -> list[Gate]:
    """All conditions of a job that has not started; none for any other."""
    if scene.job.state not in UNSTARTED:
        return []
    return [_due(scene), *_quiet(scene), _open(scene), *_served(scene), *_turn(scene), _limits(scene)]


def _due(scene: Scene) -> Gate:
    due = scene.job.due_at
    if scene.job.waits_for_parents:
        return Gate(name="It waits for its parents", text="jobs named by after=", open=False)
    if due is None or due.timestamp() <= scene.now:
        return Gate(name="It is due", at=None if due is None else due.timestamp())
    return Gate(name="It is not due yet", at=due.timestamp(), open=False)


def _quiet(scene: Scene) -> list[Gate]:
    if not scene.quiet_seconds:
        return []
    text = f"after a failover or restart it waits for leases it may have forgotten, {scene.quiet_seconds:.0f} s"
    return [Gate(name="The store hands nothing out", text=text, open=False)]


def _open(scene: Scene) -> Gate:
    job = scene.job
    for pause in scene.pauses:
        if pause.task == job.task or (pause.queue == job.queue and pause.group in (None, job.group)):
            kind = next(word for word in ("task", "group", "queue") if getattr(pause, word) is not None)
            by = f"by {pause.by}" if pause.by else ""
            said = ": ".join(filter(None, (by, pause.reason)))
            return Gate(name=f"Its {kind} is paused", text=said, at=pause.paused_at, open=False)
    return Gate(name="Nothing is paused", text=f"queue {job.queue}, task, group")


def _served(scene: Scene) -> list[Gate]:
    serving = [one for one in scene.workers if not one.expired and scene.job.queue in one.queues]
    if not serving:
        return [Gate(name="No worker serves it", text=f"queue {scene.job.queue}", open=False)]
    taking = [one for one in serving if (read(one.portrait) or WorkerStatus()).takes(scene.job.priority)]
    if not taking:
        return [Gate(name="No worker takes its priority", text=f"priority {scene.job.priority}", open=False)]
    serving = taking
    free = sum(max(0, one.slots - one.running) for one in serving)
    slots = sum(one.slots for one in serving)
    count = f"{len(serving)} {'worker' if len(serving) == 1 else 'workers'}"
    served = Gate(name="A worker serves it", text=f"{count}, {num(free)} of {num(slots)} slots free", open=free > 0)
    if not free:
        served = Gate(name="All slots are taken", text=f"{count}, {num(slots)} slots", open=False)
    views = [read(one.portrait) or WorkerStatus() for one in serving]
    unsure = [one for one in views if one.knows(scene.job.task) is False]
    if len(unsure) == len(serving):
        known = Gate(name="No worker knows the task", text=scene.job.task, open=False)
    elif unsure:
        known = Gate(name="Some workers know the task", text=f"{len(serving) - len(unsure)} of {len(serving)}")
    else:
        known = Gate(name="They know the task", text=scene.job.task)
    return [served, known]


def _turn(scene: Scene) -> list[Gate]:
    group = scene.group
    if scene.job.group is None or group is None:
        return []
    held = f"{group.number('running')} running, {group.number('ready')} ready, limit {_limit(group.limit)}"
    if group.stopped_by is not None:
        return [Gate(name="Its group is stopped", text=f"by dead job {group.stopped_by}", open=False)]
    if scene.job.state is State.WAITING:
        return [Gate(name="Its group has no room", text=held, open=False)]
    return [Gate(name="It is its turn in its group" if scene.job.state is State.READY else "Its group", text=held)]


def _limits(scene: Scene) -> Gate:
    """The limits of queue and task; of rates only whether they are set: explain says whether one blocks the job now."""
    said: list[str] = []
    if scene.queue is not None:
        limit = limit_in_force(scene.queue.limit, scene.queue.override)
        running = scene.queue.counts.get("running", 0)
        if limit is not None and running >= limit:
            return Gate(name="The queue is at its limit", text=f"{num(running)} of {_limit(limit)}", open=False)
        rate = rate_in_force(scene.queue.rate, scene.queue.override)
        said.append(f"queue {num(running)} of {_limit(limit)}" + (f", {rate}" if rate else ""))
    if scene.task is not None:
        limit = limit_in_force(scene.task.rule.limit, scene.task.override)
        if limit is not None and scene.task.running >= limit:
            text = f"{num(scene.task.running)} of {_limit(limit)} running"
            return Gate(name="The task is at its limit", text=text, open=False)
        rate = rate_in_force(scene.task.rule.rate, scene.task.override)
        said.append(f"task {num(scene.task.running)} of {_limit(limit)}" + (f", {rate}" if rate else ""))
    return Gate(name="Limits allow it", text=" · ".join(said) or "none set")


def _limit(limit: int | None) -> str:
    return "any" if limit is None or limit >= UNLIMITED else num(limit)
