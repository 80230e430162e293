"""Is the work being done: are workers alive, is every queue with jobs served, is every waiting task known?

Called by the doctor. `look_at_service` reads through the contract, bounded, and changes nothing; `judge_service` is
pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ..backends.contract import Backend
from ..lifecycle import UNSTARTED, State
from ..records import GroupRecord, JobQuery, Pause, WorkerRecord
from ..worker_status import WorkerStatus, read
from .machine import Finding, fine, note, wrong

PAGE = 500
JOBS_LOOKED_AT_MAX = 5000
GROUPS_LOOKED_AT_MAX = 500  # of each queue
NAMES_SHOWN = 5


class AppFacts(Struct, frozen=True, kw_only=True):
    """What the doctor needs to know about the app's code."""

    name: str  # MODULE:APP
    tasks: Mapping[str, str]  # task → its queue
    aliases: frozenset[str] = frozenset()
    isolated: frozenset[str] = frozenset()  # queues of tasks with isolation="process"
    catch_all: str | None = None  # the task that gets the jobs of unknown ones


class Service(Struct, frozen=True, kw_only=True):
    """The workers, and what is waiting."""

    workers: Sequence[WorkerRecord] = ()
    counts: Mapping[str, Mapping[State, int]] = {}
    pauses: Sequence[Pause] = ()
    stopped: Sequence[GroupRecord] = ()  # groups that a dead job stops, among those examined
    waiting: Mapping[str, int] = {}  # task → unstarted jobs, among those examined
    looked_at: int = 0
    more: bool = False  # there are older ones that were not examined
    untaken: Mapping[str, int] = {}  # queue → ready jobs of priorities that none of its workers takes


async def look_at_service(backend: Backend, *, tasks: bool) -> Service:
    """Read the state of workers and queues; the names of waiting tasks only if the caller knows the app's tasks."""
    waiting: dict[str, int] = {}
    looked_at, before, more = 0, None, tasks
    while more and looked_at < JOBS_LOOKED_AT_MAX:
        page = await backend.find(JobQuery(states=tuple(sorted(UNSTARTED)), before=before, limit=PAGE))
        for job in page:
            waiting[job.task] = waiting.get(job.task, 0) + 1
        looked_at += len(page)
        more = len(page) == PAGE
        before = page[-1].seq if page else None
    workers = await backend.workers()
    return Service(
        workers=workers,
        counts=await backend.count(),
        pauses=await backend.pauses(),
        stopped=await _stopped_groups(backend),
        waiting=waiting,
        looked_at=looked_at,
        more=more,
        untaken=await _untaken(backend, workers),
    )


async def _untaken(backend: Backend, workers: Sequence[WorkerRecord]) -> dict[str, int]:
    """Check the newest ready jobs of queues whose live workers all use `--priority`."""
    views = [(worker, read(worker.portrait) or WorkerStatus()) for worker in workers if not worker.expired]
    served = {queue for worker, _ in views for queue in worker.queues}
    whole = {queue for worker, view in views if view.priority is None for queue in worker.queues}
    untaken: dict[str, int] = {}
    for queue in sorted(served - whole):
        takers = [view for worker, view in views if queue in worker.queues]
        jobs = await backend.find(JobQuery(states=(State.READY,), queue=queue, limit=PAGE))
        if number := sum(not any(view.takes(job.priority) for view in takers) for job in jobs):
            untaken[queue] = number
    return untaken


async def _stopped_groups(backend: Backend) -> list[GroupRecord]:
    """Read groups only in queues whose rule can stop one."""
    queues = [queue.name for queue in await backend.queues() if queue.on_dead == "stop"]
    found = [group for queue in queues for group in await backend.groups(queue, limit=GROUPS_LOOKED_AT_MAX)]
    return [group for group in found if group.stopped_by is not None]


def judge_service(service: Service, app: AppFacts | None = None) -> list[Finding]:
    """Findings about workers and queues and, with an app, about its tasks."""
    findings = [_workers(service), _queues(service)]
    if service.untaken:
        findings.append(_priorities(service.untaken))
    findings += _runners(service)
    findings += _workers_without_task(service)
    if service.pauses:
        findings.append(_pauses(service.pauses))
    if service.stopped:
        findings.append(_stopped(service.stopped))
    if app is not None:
        findings += [_own_queues(service, app), _unknown(service, app)]
        findings += _embedded(service, app)
    return findings


def _workers(service: Service) -> Finding:
    alive = [one for one in service.workers if not one.expired]
    expired = [one for one in service.workers if one.expired]
    held = sum(one.running for one in expired)
    facts = {"alive": len(alive), "expired": len(expired), "held_by_expired": held}
    running = sum(one.running for one in alive)
    text = f"{len(alive)} alive, {running} {'job' if running == 1 else 'jobs'} running"
    if expired and held and not alive:
        text = f"none is alive; {len(expired)} expired, with {held} {'job' if held == 1 else 'jobs'} to be recovered."
        return wrong("workers", text, "Start one, or run `holdfast recover`.", **facts)
    if expired:
        text += f"; {len(expired)} expired, holding {held} {'job' if held == 1 else 'jobs'}"
        return note("workers", f"{text}.", "The live workers recover their jobs.", **facts)
    if not alive:
        return note("workers", "none is registered.", "Start one: `holdfast work MODULE:APP`.", **facts)
    return fine("workers", f"{text}.", **facts)


def _priorities(untaken: Mapping[str, int]) -> Finding:
    """Ready jobs in a served queue whose priority none of its workers takes."""
    text = f"ready jobs of priorities that no worker of their queue takes: {_with_numbers(untaken)}."
    step = "Start a worker without `--priority`, or with a range that includes theirs."
    return wrong("priorities", text, step, untaken=dict(untaken))


def _runners(service: Service) -> list[Finding]:
    """Workers that hold jobs no runner has begun, or whose runners do not respond."""
    shown = {one.id: read(one.portrait) for one in service.workers if not one.expired}
    unbegun = {worker: len(view.unbegun) for worker, view in shown.items() if view is not None and view.unbegun}
    silent = [one.pid for view in shown.values() if view is not None for one in view.runners if not one.responds]
    facts = {"unbegun": unbegun, "silent": silent}
    if unbegun:
        text = f"workers hold jobs that none of their runners has begun: {_with_numbers(unbegun)}."
        step = "Their logs say why: a runner that cannot start, or begins nothing. Such jobs are taken back in seconds."
        return [note("runners", text, step, **facts)]
    if silent:
        text = f"runners that do not respond: {', '.join(map(str, silent[:NAMES_SHOWN]))}."
        step = "A handler holds the loop or the interpreter. The worker's log shows where; a timeout= ends it."
        return [note("runners", text, step, **facts)]
    return []


def _workers_without_task(service: Service) -> list[Finding]:
    """Tasks that workers were given jobs of but do not have."""
    alive = [one for one in service.workers if not one.expired]
    views = {one.id: view for one in alive if (view := read(one.portrait)) is not None and view.unknown}
    if not views:
        return []
    names: dict[str, int] = {}
    for view in views.values():
        for name in view.unknown:
            names[name] = names.get(name, 0) + 1
    nobody = [name for name, number in names.items() if number == len(alive)]
    facts = {"tasks": names, "workers": sorted(views)}
    if nobody:
        text = f"tasks with jobs that no live worker knows: {', '.join(sorted(nobody)[:NAMES_SHOWN])}."
        return [wrong("deploy", text, "Deploy code that has them, or cancel the jobs.", **facts)]
    text = f"tasks that some live workers do not know, with the number of these workers: {_with_numbers(names)}."
    return [note("deploy", text, "Other workers run their jobs. Restart these workers with the newer code.", **facts)]


def _served(service: Service) -> set[str]:
    return {queue for worker in service.workers if not worker.expired for queue in worker.queues}


def _unstarted(counts: Mapping[State, int]) -> int:
    return sum(counts.get(state, 0) for state in UNSTARTED)


def _queues(service: Service) -> Finding:
    """Queues with jobs that no live worker serves. Jobs that are not due yet do no harm yet."""
    served = _served(service)
    due: dict[str, int] = {}
    later: dict[str, int] = {}
    for queue, counts in service.counts.items():
        if queue not in served and _unstarted(counts):
            only_later = _unstarted(counts) == counts.get(State.SCHEDULED, 0)
            (later if only_later else due)[queue] = _unstarted(counts)
    facts = {"unserved": {**due, **later}}
    step = "Start a worker that serves them: `holdfast work MODULE:APP -q QUEUE`."
    if due:
        return wrong("queues", f"queues with due jobs but no live worker: {_with_numbers(due)}.", step, **facts)
    if later:
        return note("queues", f"queues with scheduled jobs but no live worker: {_with_numbers(later)}.", step, **facts)
    return fine("queues", "every queue with jobs is served.", **facts)


def _pauses(pauses: Sequence[Pause]) -> Finding:
    names = [" ".join(filter(None, (one.queue, one.group, one.task))) for one in pauses]
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    text = f"paused: {', '.join(names[:NAMES_SHOWN])}{more}."
    return note("pauses", text, "`holdfast resume` ends a pause.", paused=names)


def _stopped(groups: Sequence[GroupRecord]) -> Finding:
    """Groups that a dead job stops until an operator acts."""
    waiting = {f"{group.queue} {group.name}": group.counts.get(State.WAITING, 0) for group in groups}
    dead = {f"{group.queue} {group.name}": group.stopped_by for group in groups}
    text = f"groups stopped by a dead job, with the number of jobs that wait: {_with_numbers(waiting)}."
    step = "Revive or discard the dead job, or pass it: `holdfast resume --queue QUEUE --group GROUP --skip-dead`."
    return note("stopped", text, step, stopped=dead)


def _own_queues(service: Service, app: AppFacts) -> Finding:
    """Queues that the app's tasks name and no worker serves. If they have jobs, `_queues` reports that as wrong."""
    named = set(app.tasks.values())
    missing = sorted(named - _served(service))
    facts = {"named": sorted(named), "unserved": missing}
    if missing:
        step = f"Start a worker: `holdfast work {app.name}`."
        return note("tasks", f"queues of this app that no worker serves: {', '.join(missing)}.", step, **facts)
    size = f"{len(app.tasks)} task{'' if len(app.tasks) == 1 else 's'}"
    where = f"{len(named)} queue{'' if len(named) == 1 else 's'}"
    text = f"{size} in {where}, all served." if named else "the app has no task."
    return fine("tasks", text, **facts)


def _unknown(service: Service, app: AppFacts) -> Finding:
    unknown = {name: n for name, n in service.waiting.items() if name not in app.tasks and name not in app.aliases}
    looked = f"the newest {service.looked_at:,} waiting jobs" if service.more else "all waiting jobs"
    facts = {"unknown": unknown, "looked_at": service.looked_at}
    if unknown and app.catch_all is not None:
        text = f"{looked} were checked; task {app.catch_all!r} gets those of unknown tasks: {_with_numbers(unknown)}."
        return fine("unknown", text, **facts)
    if unknown:
        return wrong(
            "unknown",
            f"{looked} were checked; some belong to tasks that this app does not have: {_with_numbers(unknown)}.",
            "Import the modules that define them (imports=), give a task its old name as an alias, or cancel the jobs.",
            **facts,
        )
    return fine("unknown", f"{looked} belong to tasks of this app.", **facts)


def _embedded(service: Service, app: AppFacts) -> list[Finding]:
    """Isolated tasks in queues served by a worker that cannot isolate."""
    plain = {queue for one in service.workers if not (one.expired or one.isolates) for queue in one.queues}
    hurt = sorted(app.isolated & plain)
    if not hurt:
        return []
    text = f"an embedded worker serves queues of isolated tasks, and runs them without their limits: {', '.join(hurt)}."
    return [note("isolation", text, "Let only `holdfast work` serve these queues.", queues=hurt)]


def _with_numbers(numbers: Mapping[str, int]) -> str:
    most = sorted(numbers.items(), key=lambda pair: (-pair[1], pair[0]))
    shown = ", ".join(f"{name} ({number:,})" for name, number in most[:NAMES_SHOWN])
    return f"{shown} and {len(most) - NAMES_SHOWN} more" if len(most) > NAMES_SHOWN else shown
