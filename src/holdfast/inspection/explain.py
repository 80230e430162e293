"""Explain: in plain sentences, why a job is where it is and what must happen for it to run.

Called by `holdfast explain` and the dashboard. Does several small reads through the contract: an explanation is for
people and may be slightly stale. Never changes anything and never shows arguments or results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from ..backends.contract import Backend
from ..dead_copies import copy_id, deaths_of
from ..dependencies import BATCH_TASK, DUE_AFTER_PARENTS, Relatives
from ..errors import JobNotFound, StoreSealed
from ..lifecycle import SHARED_STALLS_MAX, UNSTARTED, State
from ..names import nearest
from ..rates import UNLIMITED, Rate, bounded, opens_at
from ..records import (
    Flow,
    GroupRecord,
    JobQuery,
    JobRecord,
    Mark,
    Override,
    Pause,
    QueueRecord,
    TaskRecord,
    WorkerRecord,
)
from ..steps import Step, open_wait
from ..worker_status import WorkerStatus, read
from .pace import backlog, duration, look_at_slots, turn, usual_runs

PARENTS_SHOWN_MAX = 5
PARENTS_LOOKED_MAX = 1000  # the unfinished ones may be the last of many
BACKLOG_TOLD_MIN = 20  # ready jobs of the queue: with fewer, no estimate is needed
STALLS = ("stalled", "crash")  # error reasons that are not failures of the handler


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job is where it is: a one-sentence summary, then the reasons, then what must happen."""

    job_id: str
    state: State
    summary: str
    reasons: tuple[str, ...] = ()
    next: tuple[str, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        return (self.summary, *self.reasons, *self.next)


RUNNING_MAX = 300  # running jobs of a group that are read


class _Scene(Struct, frozen=True, kw_only=True):
    """What the explanation is based on, read once."""

    now: float
    job: JobRecord
    pauses: list[Pause]
    workers: list[WorkerRecord]
    tasks: Collection[str] | None
    brakes: list[str] = []
    cancelled: str = ""  # by whom and why, as part of a sentence

    @property
    def serving(self) -> list[WorkerRecord]:
        return [worker for worker in self.workers if not worker.expired and self.job.queue in worker.queues]

    @property
    def taking(self) -> list[WorkerRecord]:
        """Those of the serving workers that take jobs of its priority."""
        return [worker for worker in self.serving if (read(worker.portrait) or WorkerStatus()).takes(self.job.priority)]


async def explain(backend: Backend, job_id: str, tasks: Collection[str] | None = None) -> Explanation:
    """Explain one job. `tasks`: the names the caller's app knows (a mapping will do); None if there is no app."""
    job = await backend.get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    scene = _Scene(
        now=await backend.clock(),
        job=job,
        pauses=await backend.pauses(),
        workers=await backend.workers(),
        tasks=tasks,
    )
    if job.state in UNSTARTED:
        scene = await _braked(backend, scene)
    if job.state is State.CANCELLED or job.cancel_requested:
        scene = replace(scene, cancelled=_cancelled(await backend.marks(job.id)))
    explanation = await _explained(backend, scene)
    copies = await _copies(backend, job)
    explanation = replace(explanation, reasons=(*explanation.reasons, *copies)) if copies else explanation
    if job.unreadable:
        fields = ", ".join(job.unreadable)
        bad = f"Some of its stored fields cannot be read ({fields}): this explanation assumes their defaults."
        explanation = replace(
            explanation,
            reasons=(bad, *explanation.reasons),
            next=(*explanation.next, "Look at the row in the store: `holdfast audit` names it."),
        )
    seal = await backend.sealed()
    if seal is None or not seal.closed or job.state.finished:
        return explanation
    sealed = f"The store is sealed: {StoreSealed(seal.role, seal.stage, seal.other).why}"
    return replace(explanation, reasons=(sealed, *explanation.reasons))


async def _copies(backend: Backend, job: JobRecord) -> list[str]:
    """The job it is a copy of, and the copy made when it died (dead_queue=)."""
    found = [
        f"It is a copy of job {death.id}, which died in queue {death.queue!r} ({death.reason})."
        for death in deaths_of(job.options)[:1]
    ]
    letter = await backend.letter(job.id) if job.state is State.DEAD else None
    copy = None if letter is None else await backend.get(copy_id(job.id, letter.failure_count, letter.failed_at))
    if copy is not None:
        found.append(f"A copy of it is in queue {copy.queue!r}: job {copy.id} ({copy.state.value}).")
    return found


async def _braked(backend: Backend, scene: _Scene) -> _Scene:
    """Add what blocks the job although it is due."""
    return replace(scene, brakes=await brakes(backend, scene.job, scene.now, lambda at: _when(at, scene.now)))


def _cancelled(marks: Sequence[Mark]) -> str:
    """Who cancelled it and why, as part of a sentence; "" if that is not known."""
    last = next((mark for mark in reversed(marks) if mark.kind == "cancel"), None)
    if last is None:
        return ""
    return (f" by {last.by}" if last.by else "") + (f' ("{last.text}")' if last.text else "")


async def _explained(backend: Backend, scene: _Scene) -> Explanation:
    match scene.job.state:
        case State.SCHEDULED:
            if scene.job.due_at == DUE_AFTER_PARENTS:
                return _after_parents(scene, await backend.relatives(scene.job.id, limit=PARENTS_LOOKED_MAX))
            wait = await _open_wait(backend, scene.job)
            if wait is not None:
                return _asleep(scene, wait)
            return _scheduled(scene, is_staged=await _is_staged(backend, scene.job))
        case State.WAITING:
            return await _waiting(backend, scene)
        case State.READY:
            return await _ready(backend, scene)
        case State.RUNNING:
            return _running(scene, await _chained(backend, scene.job) or await _usual_run(backend, scene))
        case State.DEAD:
            return await _dead(backend, scene)
        case _:
            return _ended(scene)


def _after_parents(scene: _Scene, relatives: Relatives) -> Explanation:
    """A job that waits for others: which of them have not succeeded yet."""
    job, pending = scene.job, relatives.pending
    open_ones = [parent for parent in relatives.parents if parent.status != "met"]
    done = "finished (it is a batch)" if job.task == BATCH_TASK else "succeeded (after=)"
    summary = f"It waits until {_count(pending, 'other job')} {'has' if pending == 1 else 'have'} {done}."
    reasons = [f"Parent {one.id} ({one.task}) is {one.state.value}." for one in open_ones[:PARENTS_SHOWN_MAX]]
    if pending > len(reasons):
        reasons.append(f"… and {pending - len(reasons)} more: `holdfast job {job.id}` lists its parents.")
    steps = [f"`holdfast explain {one.id}` shows why that one has not succeeded." for one in open_ones[:1]]
    steps.append(f"Or run it without waiting: `holdfast run-now {job.id}`.")
    return _explanation(scene, summary, [*reasons, *_obstacles(scene)], steps)


async def _open_wait(backend: Backend, job: JobRecord) -> Step | None:
    """The sleep or the wait that its latest attempt ended in."""
    return open_wait((await backend.steps(job.id)).steps, job.fence) if job.attempts else None


def _asleep(scene: _Scene, wait: Step) -> Explanation:
    """A job that sleeps, or waits for a signal, in the middle of its handler."""
    job, when = scene.job, _when(scene.job.due_at, scene.now)
    steps: list[str] = []
    if job.due_at <= scene.now:
        summary = "Its sleep is over: the next claim or sweep of any worker brings it into play."
    elif wait.kind == "wait":
        summary = f"It waits for signal {wait.name!r} (ctx.wait_for), at most until {when}."
        steps = [f"Send it: `holdfast signal {job.id} {wait.name} VALUE`. Then the job is due immediately."]
    else:
        summary = f"It sleeps (ctx.sleep, {wait.name!r}) until {when}."
    held = [f"It is the head of strict group {job.group!r}: the jobs behind it wait until it ends."] if job.held else []
    return _explanation(scene, summary, [*held, *_obstacles(scene)], steps)


async def _is_staged(backend: Backend, job: JobRecord) -> bool:
    """Whether it waits for lower orders of its group to arrive."""
    if job.order is None or job.group is None or job.held or job.fence:
        return False
    windows = [queue.order_window or 0.0 for queue in await backend.queues() if queue.name == job.queue]
    return any(job.due_at <= job.created_at + window for window in windows)


def _scheduled(scene: _Scene, *, is_staged: bool) -> Explanation:
    job = scene.job
    if job.due_at <= scene.now:
        summary = "It is due: the next claim or sweep of any worker brings it into play."
    elif job.errors and not job.suspect and job.errors[-1].reason not in STALLS and job.attempts:
        summary = f"It is backing off after failure {job.failures}; due again {_when(job.due_at, scene.now)}."
    elif is_staged:
        until = _when(job.due_at, scene.now)
        summary = f"It waits until {until} for jobs of its group with an order below {job.order} (order_window=)."
    else:
        summary = f"It is not due until {_when(job.due_at, scene.now)}."
    reasons = [*_suspicion(scene), *_last_error(job)]
    if job.group is not None and job.held:
        reasons.append(f"It is the head of strict group {job.group!r}: the jobs behind it wait until it ends.")
    elif is_staged:
        reasons.append(f"It runs earlier, in its order, if a later job of group {job.group!r} is due before that.")
    elif job.group is not None:
        reasons.append(f"When due it takes its turn in group {job.group!r}.")
    pause = None if job.group is None else _pause_of(scene, queue=job.queue, group=job.group)
    if pause is not None:
        reasons.append(f"Its group is {_paused(pause, scene.now)}; {_resumed(job)} ends that.")
    wanted = [f"Wait, or run it now: `holdfast run-now {job.id}`."] if job.due_at > scene.now else []
    if _is_unknown(scene):
        wanted = [_UNKNOWN_ADVICE]
    return _explanation(scene, summary, [*reasons, *_expiry(scene), *_obstacles(scene)], wanted)


_IN_PLAY = frozenset({State.READY, State.RUNNING})


async def _waiting(backend: Backend, scene: _Scene) -> Explanation:
    job = scene.job
    if job.group is None:
        return _explanation(scene, "It waits for a group but has none: see `holdfast audit`.", [], [])
    group = await backend.group(job.queue, job.group)
    pause = _pause_of(scene, queue=job.queue, group=job.group)
    if pause is not None:
        summary = f"Its group {job.group!r} is {_paused(pause, scene.now)}."
        steps = [f"Resume the group: {_resumed(job)}."]
        return _explanation(scene, summary, [*_stop(group), *_obstacles(scene)], steps)
    if group.stopped_by is not None:
        dead = await backend.get(group.stopped_by)
        task = "" if dead is None else f" ({dead.task})"
        summary = f'Its group {job.group!r} is stopped by job {group.stopped_by}{task}, which died (on_dead="stop").'
        return _explanation(scene, summary, _obstacles(scene), _ways_on(job, group.stopped_by))
    more = "+" if _IN_PLAY.intersection(group.capped) else ""
    ahead = f"{sum(group.counts.get(state, 0) for state in _IN_PLAY)}{more}"
    limit = "none" if group.limit >= UNLIMITED else group.limit
    reasons = [f"The group is {group.order}, limit {limit}; {group.number(State.WAITING)} waiting in it."]
    head = await backend.get(group.head) if group.head is not None and group.head != job.id else None
    obstacles = _obstacles(scene)
    rated = group_brake(group, scene.now, lambda at: _when(at, scene.now))
    if rated is not None:  # the group has room: the rate, not the job ahead, blocks it
        summary = rated
    elif head is None:
        summary = f"It is due and waits for a place in group {job.group!r} ({ahead} in play, limit {limit})."
    else:
        held = _obstacles(await _braked(backend, replace(scene, job=head))) if head.state is State.READY else []
        summary = f"It is behind job {head.id} of its group {job.group!r}, which {_doing(head, scene, bool(held))}."
        obstacles = [*(sentence for sentence in held if sentence not in obstacles), *obstacles]
    return _explanation(
        scene,
        summary,
        [*reasons, *_suspicion(scene), *_expiry(scene), *obstacles],
        [_UNKNOWN_ADVICE if _is_unknown(scene) else "It becomes ready when its turn comes."],
    )


async def _ready(backend: Backend, scene: _Scene) -> Explanation:
    obstacles = _obstacles(scene)
    reasons = [*_suspicion(scene), *_last_error(scene.job), *_expiry(scene)]
    if obstacles:
        then = _UNKNOWN_ADVICE if _is_unknown(scene) else "Once that has changed, it runs when its turn comes."
        return _explanation(scene, obstacles[0], [*reasons, *obstacles[1:]], [then])
    serving = scene.taking
    slots, busy = sum(worker.slots for worker in serving), sum(worker.running for worker in serving)
    summary = f"It can be claimed now by {_count(len(serving), 'live worker')} of queue {scene.job.queue!r}."
    if slots and busy >= slots:
        summary = f"It is ready, but no slot is free: {_count(len(serving), 'live worker')}, {_count(slots, 'slot')}."
        reasons += [one.text for one in await look_at_slots(backend, scene.now, serving)]
    counts = (await backend.count(scene.job.queue)).get(scene.job.queue, {})
    ready = counts.get(State.READY, 0)
    reasons.append(f"{_count(ready, 'job')} of queue {scene.job.queue!r} ready, this one among them.")
    if ready >= BACKLOG_TOLD_MIN:
        waiting = ready + counts.get(State.WAITING, 0)
        told = turn(await backlog(backend, scene.now, scene.job.queue, waiting, None))
        reasons += [told] if told else []
    return _explanation(scene, summary, reasons, ["It runs when its turn comes, higher priorities first."])


async def _usual_run(backend: Backend, scene: _Scene) -> list[str]:
    """How its run time compares with its task's other runs, if it is far longer."""
    job = scene.job
    usual = (await usual_runs(backend, scene.now, job.task)).get(job.task)
    if usual is None or job.started_at is None or not usual.is_long(scene.now - job.started_at):
        return []
    return [
        f"It has run for {duration(scene.now - job.started_at)}; half of its task's runs in the last day took "
        f"{duration(usual.p50)} or less, 99 of 100 {duration(usual.p99)} or less. `holdfast cancel {job.id}` stops it."
    ]


def _running(scene: _Scene, usual: list[str]) -> Explanation:
    job = scene.job
    worker = next((worker for worker in scene.workers if worker.id == job.worker), None)
    since = f"since {_when(job.started_at, scene.now)}" if job.started_at is not None else ""
    reasons: list[str] = []
    if worker is None:
        summary = f"It is running on worker {job.worker} {since}".rstrip() + "."
    else:
        summary = f"It is running on worker {worker.id} (pid {worker.pid} on {worker.host or 'this host'}) {since}."
        if worker.expired:
            reasons.append("That worker's lease has run out: the next claim or sweep counts a stall and runs it again.")
        else:
            reasons.append(
                f"That worker renewed its {worker.lease_seconds:g} s lease {_ago(worker.renewed_at, scene.now)}."
            )
            reasons += [*_handler(job, worker), *usual]
    if job.progress is not None:
        reasons.append(f"Progress {job.progress:.0%}{f': {job.progress_text}' if job.progress_text else ''}.")
    if job.cancel_requested:
        asked = f"Cancellation was requested{scene.cancelled}: the job ends as cancelled once its handler has stopped."
        reasons.append(asked)
    reasons += [*_suspicion(scene), *_last_error(job)]
    return _explanation(scene, summary, reasons, ["It ends when its handler does."])


async def _chained(backend: Backend, job: JobRecord) -> list[str]:
    """The jobs of its group that its worker leased before it and runs first, if there are any."""
    if job.group is None:
        return []
    query = JobQuery(states=(State.RUNNING,), queue=job.queue, group=job.group, limit=RUNNING_MAX)
    here = [one for one in await backend.find(query) if one.worker == job.worker and one.started_at == job.started_at]
    before = sorted((one for one in here if one.fence < job.fence), key=lambda one: one.fence)
    group = (await backend.group(job.queue, job.group)) if before else None
    if group is None or group.order != "strict":
        return []
    first, number = before[0].id, _count(len(before), "job")
    return [
        f"It was leased together with {number} before it in group {job.group!r} (group_prefetch), {first} first. It "
        "begins once they have succeeded, and goes back to the store if one does not."
    ]


def _handler(job: JobRecord, worker: WorkerRecord) -> list[str]:
    """What the worker's status reports about its handler: not begun, or its runner does not respond."""
    portrait = read(worker.portrait)
    if portrait is None:
        return []
    if job.id in portrait.unbegun:
        return [
            "Its handler has not begun: no runner has started it yet. The worker takes it back within seconds and "
            "gives it to another runner, or to the store."
        ]
    batch = portrait.batches.get(job.task)
    if batch is not None and not any(job.id in one.jobs for one in portrait.runners):
        return [f"Its task takes up to {batch} jobs per call: it runs with others, or waits for its batch to fill."]
    silent = [one.pid for one in portrait.runners if job.id in one.jobs and not one.responds]
    return [f"Its runner {pid} does not respond: a handler holds its loop or its interpreter." for pid in silent]


async def _dead(backend: Backend, scene: _Scene) -> Explanation:
    job = scene.job
    letter = await backend.letter(job.id)
    since = f" at {_when(job.finished_at, scene.now)}" if job.finished_at is not None else ""
    causes = {
        "failed": f"its handler failed {_count(job.failures, 'time')} and no retry is left",
        "memory": "its handler ran out of memory and no retry is left",
        "cpu": "its handler used up its cpu_limit and no retry is left",
        "file": "its handler wrote a larger file than its file_limit allows and no retry is left",
        "timeout": "its handler exceeded its timeout and no retry is left",
        "stalled": f"its worker died or lost its lease {_stalls(job)}",
        "crash": f"its process died {_stalls(job)}",
        "expired": "it was not claimed before it expired",
        "parent": "a job that it waited for died or was cancelled; it waits again when that one is revived",
        "undecodable": "its stored arguments no longer fit its function",
        "bury": "it was buried",
        "starts": "it has started as often as max_starts allows",
        "superseded": "a newer job with the same key died after it and holds the dead letter",
        "discarded": "its dead letter was discarded",
    }
    why = causes.get(job.reason or "", f"reason {job.reason}")
    reasons = _last_error(job)
    steps: list[str] = []
    if letter is not None and letter.id == job.id:
        reasons.append(f"Its dead letter counts {_count(letter.failure_count, 'death')} of this logical job.")
        if letter.revive_at is not None:
            reasons.append(f"It will be revived automatically {_when(letter.revive_at, scene.now)}.")
        steps.append(f"It runs again only if revived: `holdfast dead revive {job.id}`.")
        if job.held:
            reasons.append(f'Its group {job.group!r} is stopped until somebody acts (on_dead="stop").')
            steps = _ways_on(job, job.id)
    elif job.reason == "discarded":
        steps.append(f"`holdfast retry {job.id}` runs it again with fresh budgets.")
    return _explanation(scene, f"It died{since}: {why}.", reasons, steps)


def _ended(scene: _Scene) -> Explanation:
    job = scene.job
    since = f" at {_when(job.finished_at, scene.now)}" if job.finished_at is not None else ""
    dropped = f"It was dropped{since}: it was not claimed before it expired."
    told = f"It was cancelled{since}: a job that it waited for died or was cancelled."
    cancelled = {"expired": dropped, "parent": told}.get(job.reason or "", f"It was cancelled{since}{scene.cancelled}.")
    summary = f"It succeeded{since}." if job.state is State.SUCCEEDED else cancelled
    return _explanation(scene, summary, [], [f"`holdfast retry {job.id}` runs it again with fresh budgets."])


def _obstacles(scene: _Scene) -> list[str]:
    """What keeps any worker from claiming it, whatever its turn; most important first."""
    job, found = scene.job, []
    pause = _pause_of(scene, queue=job.queue)
    if pause is not None:
        found.append(
            f"Queue {job.queue!r} is {_paused(pause, scene.now)}; `holdfast resume --queue {job.queue}` ends that."
        )
    pause = _pause_of(scene, task=job.task)
    if pause is not None:
        found.append(
            f"Task {job.task!r} is {_paused(pause, scene.now)}; `holdfast resume --task {job.task}` ends that."
        )
    found += scene.brakes
    if not scene.serving:
        live = [worker for worker in scene.workers if not worker.expired]
        others = sorted({queue for worker in live for queue in worker.queues})
        tail = f" Live workers serve {', '.join(others)}." if others else " There is no live worker."
        found.append(
            f"No live worker serves queue {job.queue!r}.{tail} Start one: `holdfast work MODULE:APP -q {job.queue}`."
        )
    elif not scene.taking:
        ranges = sorted({(read(worker.portrait) or WorkerStatus()).priorities for worker in scene.serving})
        found.append(
            f"No live worker of queue {job.queue!r} takes jobs of its priority, which is {job.priority}; they take "
            f"{', '.join(ranges)}. Start one without `--priority`, or `holdfast edit {job.id} --priority N`."
        )
    found += _workers_without_task(scene)
    if scene.tasks is not None and job.task not in scene.tasks:
        found.append(f"The app has no task {job.task!r}: a worker running this code gives the job back untouched.")
    return found


def _workers_without_task(scene: _Scene) -> list[str]:
    """Workers serving its queue that do not have its task."""
    task, serving = scene.job.task, scene.taking
    views = {worker.id: read(worker.portrait) for worker in serving}
    unaware = [name for name, view in views.items() if view is not None and view.knows(task) is False]
    if not unaware:
        return []
    if len(unaware) == len(serving):
        known = {name for view in views.values() if view is not None for name in view.tasks or ()}
        return [f"No live worker of queue {scene.job.queue!r} knows task {task!r}.{nearest(task, known)}"]
    others = ", ".join(worker.id for worker in serving if worker.id not in unaware)
    return [
        f"Task {task!r} is unknown to {_count(len(unaware), 'live worker')} of queue {scene.job.queue!r} "
        f"({', '.join(unaware[:5])}), which leave it to the others: {others}."
    ]


_UNKNOWN_ADVICE = "Deploy code that has it, give another task that name as an alias, or cancel the job."


def _is_unknown(scene: _Scene) -> bool:
    """Whether no live worker has its task, as far as is known: waiting would not help."""
    views = [read(worker.portrait) for worker in scene.taking]
    known = [None if view is None else view.knows(scene.job.task) for view in views]
    if known and not any(one is not False for one in known):
        return True
    return True not in known and scene.tasks is not None and scene.job.task not in scene.tasks


def _pause_of(
    scene: _Scene, *, queue: str | None = None, group: str | None = None, task: str | None = None
) -> Pause | None:
    return next((p for p in scene.pauses if (p.queue, p.group, p.task) == (queue, group, task)), None)


def _paused(pause: Pause, now: float) -> str:
    by = f" by {pause.by}" if pause.by else ""
    because = f' because "{pause.reason}"' if pause.reason else ""
    return f"paused{by} since {_when(pause.paused_at, now)}{because}"


def _stop(group: GroupRecord) -> list[str]:
    """What else stops a paused group."""
    return [] if group.stopped_by is None else [f"Apart from that, dead job {group.stopped_by} stops it."]


def _ways_on(job: JobRecord, dead: str) -> list[str]:
    """How to let a group continue that a dead job stops."""
    return [
        f"Run it again, before all others of its group: `holdfast dead revive {dead}`.",
        f"Or give it up: `holdfast dead discard {dead}`.",
        f"Or continue without it and keep its dead letter: {_resumed(job)[:-1]} --skip-dead`.",
    ]


def _resumed(job: JobRecord) -> str:
    return f"`holdfast resume --queue {job.queue} --group {job.group}`"


def _doing(head: JobRecord, scene: _Scene, held: bool) -> str:
    if head.state is State.RUNNING:
        return f"is running on worker {head.worker}"
    if head.state is State.SCHEDULED:
        return f"is backing off until {_when(head.due_at, scene.now)}"
    if head.state is State.READY:
        return "is ready and held back" if held else "is ready and next in turn"
    return f"is {head.state}"


def _suspicion(scene: _Scene) -> list[str]:
    """That its process died in the previous attempt, and what follows from that."""
    if not scene.job.suspect:
        return []
    if scene.job.state is not State.RUNNING:
        return ["It is a suspect: its process died. It runs alone next, if the worker that claims it can isolate jobs."]
    alone = any(worker.isolates for worker in scene.workers if worker.id == scene.job.worker)
    return [f"It is a suspect: its process died in the previous attempt{'; now it runs alone' if alone else ''}."]


def _stalls(job: JobRecord) -> str:
    """How often it stalled, by the counter that ended it."""
    if job.stalls > job.max_stalls:
        return f"{_count(job.stalls, 'time')} ({job.max_stalls} allowed)"
    cap = SHARED_STALLS_MAX if job.max_stalls else 0
    return f"{_count(job.shared_stalls, 'time')} among other jobs ({cap} allowed)"


def _last_error(job: JobRecord) -> list[str]:
    if not job.errors:
        return []
    error = job.errors[-1]
    kind = f"{error.type}: " if error.type else ""
    return [f"Its latest failure ({error.reason}, attempt {error.attempt}): {kind}{error.text or 'no text'}."]


def _expiry(scene: _Scene) -> list[str]:
    at = scene.job.expires_at
    return [] if at is None else [f"It expires if not claimed by {_when(at, scene.now)}."]


def _explanation(scene: _Scene, summary: str, reasons: list[str], steps: list[str]) -> Explanation:
    return Explanation(
        job_id=scene.job.id, state=scene.job.state, summary=summary, reasons=tuple(reasons), next=tuple(steps)
    )


def _when(at: float | None, now: float) -> str:
    """A time, absolute and relative."""
    if at is None:
        return "an unknown time"
    clock = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{clock} ({_ago(at, now)})"


def _ago(at: float, now: float) -> str:
    seconds = abs(now - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            amount = f"{seconds / size:.0f} {unit}"
            return f"in {amount}" if at > now else f"{amount} ago"
    return "now" if at > now else "just now"


def _count(number: int, noun: str) -> str:
    if noun == "time":
        return {1: "once", 2: "twice"}.get(number, f"{number} times")
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# ----------------------------------------------------------------------------------------------------------------------
# What blocks a due job: limits, rates and slow-downs of its queue, task and group. The command line also shows the
# values in force from here.


V = TypeVar("V", int, Rate)
When = Callable[[float], str]


def limit_in_force(declared: int | None, override: Override | None) -> int | None:
    """The effective limit; None if there is none."""
    limit = _in_force(declared, UNSET if override is None else override.limit)
    return None if limit is None or limit >= UNLIMITED else limit


def rate_in_force(declared: Rate | None, override: Override | None) -> Rate | None:
    """The effective rate; None if there is none."""
    rate = _in_force(declared, UNSET if override is None else override.rate)
    return None if rate is None or rate.none else rate


def _in_force(declared: V | None, override: V | UnsetType | None) -> V | None:
    return declared if override is None or override is UNSET else override


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
        whose = _whose(queue.limit, limit)
        found.append(f"Queue {queue.name!r} runs {_count(running, 'job')}, and its limit is {limit}{whose}.")
    rate = rate_in_force(queue.rate, queue.override)
    opens = _opens(rate, queue.flow, now)
    if opens is not None:
        found.append(f"Queue {queue.name!r} has used up its rate of {rate}; the next may start {when(opens)}.")
    return found


def _of_task(task: TaskRecord, now: float, when: When) -> list[str]:
    found: list[str] = []
    name, limit = task.rule.name, limit_in_force(task.rule.limit, task.override)
    if limit is not None and task.running >= limit:
        whose = _whose(task.rule.limit, limit)
        found.append(f"Task {name!r} runs {_count(task.running, 'job')}, and its limit is {limit}{whose}.")
    rate = rate_in_force(task.rule.rate, task.override)
    opens = _opens(rate, task.flow, now)
    if opens is not None:
        found.append(f"Task {name!r} has used up its rate of {rate}; the next may start {when(opens)}.")
    return found


def _opens(rate: Rate | None, flow: Flow | None, now: float) -> float | None:
    if rate is None or flow is None:
        return None
    at = opens_at(rate, bounded(rate, flow.spent_until, now))  # as the next claim computes it if the rate was raised
    return at if at > now else None


def _whose(declared: int | None, limit: int) -> str:
    if declared == limit:
        return ""
    return f" (set by an operator; the code declares {'none' if declared is None else declared})"
