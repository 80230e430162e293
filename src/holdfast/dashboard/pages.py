"""What each page shows: reads and arranges, decides nothing about the store. One function per page.

Called by app.py with a `Visit`; returns the template's name and its values. The same function makes the page, its live
updates and, without a script, every link on it.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Awaitable, Callable, Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from msgspec import Struct

from ..backends import formulas
from ..errors import ConfigurationError, HoldfastError, JobNotFound
from ..inspection.pace import USUAL_RUNS_MIN, Usual
from ..job import DeadLetter, Job
from ..lifecycle import UNSTARTED, State
from ..operator import LETTERS_SEEN_MAX
from ..records import JobQuery, JobRecord, WorkerRecord
from ..worker_status import WorkerStatus, read
from . import formats
from .cron_strip import TICKS_SHOWN, Strip, strip
from .gates import Gate, Scene, gates
from .job_list import PAGE, completions, jobs, row
from .lease_chart import draw
from .overview import lines_of, overview, served_by
from .store import AUDIT_MAX
from .visit import NotFound, Values, Visit

LONG_SECONDS = 600.0  # a running job older than this is marked if nothing is known about its task's usual runs


Page = Callable[[Visit], Awaitable[tuple[str, Values]]]


# --------------------------------------------------------------------------------------------------------------- a job


async def job(visit: Visit) -> tuple[str, Values]:
    id = visit.params.get("id", "")
    try:
        found = await visit.reads.job(id)
        explanation = await visit.reads.explain(id)
        logs = await visit.reads.logs(id)
    except (ConfigurationError, JobNotFound) as error:
        raise NotFound(str(error)) from None
    letter = None
    if found.state is State.DEAD:
        try:
            letter = await visit.reads.letter(id)
        except JobNotFound:
            pass
    return "job.html", {
        "job": found,
        "explanation": explanation,
        "logs": logs,
        "steps": await visit.reads.steps(found.id),
        "letter": letter,
        "args": visit.args(found.task, found.args),
        "headers": visit.args(found.task, found.headers),
        "value": visit.args(found.task, {"result": found.value}),
        "errors": list(reversed(found.errors)),
        "gates": await gates_of(visit, found),
        **await _timeline(visit, found),
        "actions": _job_actions(visit, found, letter),
        "related": [row(visit, visit.reads.as_job(record)) for record in await visit.reads.related(found)],
        "relatives": await visit.reads.relatives(id),
        "worker": await _worker(visit, found.worker),
        "editable": found.state in UNSTARTED and visit.may("operate"),
        "plain_args": visit.access.payload and visit.args(found.task, found.args) == formats.plain(found.args),
    }


async def _timeline(visit: Visit, job: Job[Any]) -> Values:
    """What happened to the job, in words and as a drawing."""
    entries = await visit.reads.history(job.id)
    hosts = {worker.id: f"{worker.host} pid {worker.pid}" for worker in await visit.reads.workers()}
    return {
        "entries": list(reversed(entries)),
        "hosts": hosts,
        "lanes": draw(entries, visit.now, hosts, job.state.value),
        "events": EVENTS,
    }


async def gates_of(visit: Visit, job: Job[Any]) -> list[Gate]:
    """What stands between the job and its start."""
    if job.state not in UNSTARTED:
        return []
    reads = visit.reads
    try:
        group = None if job.group is None else await reads.group(job.queue, job.group)
    except (ConfigurationError, JobNotFound):
        group = None
    scene = Scene(
        now=visit.now,
        job=job,
        queue=next((one for one in await reads.queues() if one.name == job.queue), None),
        group=group,
        task=next((one for one in await reads.tasks() if one.rule.name == job.task), None),
        pauses=await reads.pauses(),
        workers=await reads.workers(),
        quiet_seconds=await reads.quiet_seconds(),
    )
    return gates(scene)


async def _worker(visit: Visit, id: str | None) -> WorkerRecord | None:
    return next((worker for worker in await visit.reads.workers() if worker.id == id), None)


EVENTS: Mapping[str, tuple[str, str]] = {  # kind → hue, words
    "enqueued": ("ready", "Enqueued"),
    "claimed": ("running", "Claimed"),
    "progress": ("running", "Progress"),
    "renewal": ("scheduled", "Renewed"),
    "failed": ("scheduled", "Failed"),
    "stalled": ("dead", "Stalled"),
    "expired": ("dead", "Expired"),
    "release": ("ready", "Given back unfinished; it costs nothing"),
    "snooze": ("scheduled", "Snoozed"),
    "succeeded": ("succeeded", "Succeeded"),
    "dead": ("dead", "Died"),
    "cancelled": ("cancelled", "Cancelled"),
    "cancel": ("cancelled", "Asked to cancel"),
    "bury": ("dead", "Buried"),
    "run_now": ("ready", "Made due now"),
    "signal": ("ready", "Signal"),
    "revive": ("ready", "Revived"),
    "retry": ("ready", "Run again"),
    "edit": ("ready", "Edited"),
    "discard": ("cancelled", "Letter discarded"),
    "note": ("waiting", "Note"),
    "free_key": ("waiting", "Key freed"),
}


class Action(Struct, frozen=True, kw_only=True):
    """Something to do with one job: a form, and the command that does the same."""

    verb: str
    label: str
    command: str
    bad: bool = False
    reason: bool = False  # asks for a reason


def _job_actions(visit: Visit, job: Job[Any], letter: DeadLetter | None) -> list[Action]:
    state, id = job.state, formats.short(job.id)  # the command line takes the end of an id, too
    offered: list[tuple[Any, bool, Action]] = [
        (
            "operate",
            state is State.SCHEDULED,
            Action(verb="run-now", label="Run now", command=formats.command("holdfast", "run-now", id)),
        ),
        (
            "operate",
            state.finished,
            Action(
                verb="retry",
                label="Revive" if state is State.DEAD else "Run again",
                command=formats.command("holdfast", "retry", id),
            ),
        ),
        (
            "operate",
            not state.finished and not job.cancel_requested,
            Action(verb="cancel", label="Cancel", command=formats.command("holdfast", "cancel", id), bad=True),
        ),
        (
            "operate",
            state in UNSTARTED,
            Action(verb="bury", label="Bury", command=formats.command("holdfast", "bury", id), bad=True, reason=True),
        ),
        (
            "destroy",
            state is not State.RUNNING,
            Action(verb="delete", label="Delete…", command=formats.command("holdfast", "delete", id), bad=True),
        ),
        (
            "destroy",
            letter is not None and letter.revived_at is None,
            Action(
                verb="discard",
                label="Discard the letter…",
                command=formats.command("holdfast", "dead", "discard", id),
                bad=True,
            ),
        ),
    ]
    return [action for role, fits, action in offered if fits and visit.may(role)]


# ---------------------------------------------------------------------------------------------- failures and letters


async def failures(visit: Visit) -> tuple[str, Values]:
    found = await visit.reads.failures()
    return "failures.html", {"kinds": found.kinds, "letters": found.letters, "capped": found.capped}


LETTERS_SHOWN = 100
LETTERS_SHOWN_MAX = 1000


async def dead(visit: Visit) -> tuple[str, Values]:
    text = " ".join([visit.params.get("q", "").strip(), *conditions(visit)]).strip()
    values: Values = {"q": text, "error": "", "letters": [], "more": False, "longer": None, "total": (0, True)}
    values |= {"completions": await completions(visit), "looked": 0}
    shown = LETTERS_SHOWN * max(1, min(int_or(visit.params.get("show"), 1), LETTERS_SHOWN_MAX // LETTERS_SHOWN))
    try:
        letters = await visit.reads.letters(text, limit=shown + 1)
        tally = await visit.reads.count(f"state:dead {text}".strip(), None)
    except ConfigurationError as error:
        return "dead.html", {**values, "error": str(error)}
    more = len(letters) > shown
    link = visit.link("dead", q=text, show=shown // LETTERS_SHOWN + 1)
    return "dead.html", {
        **values,
        "letters": [(letter, visit.args(letter.task, letter.args)) for letter in letters[:shown]],
        "more": more,
        "longer": link if more and shown < LETTERS_SHOWN_MAX else None,
        "total": (tally.total, tally.complete),
        "looked": LETTERS_SEEN_MAX if text else 0,
    }


def conditions(visit: Visit) -> list[str]:
    """Conditions given as separate parameters, as words of a query."""
    names = ("queue", "task", "reason")
    return [f"{name}:{formats.quoted(visit.params[name])}" for name in names if visit.params.get(name)]


def int_or(text: str | None, default: int) -> int:
    """A small number as a parameter gives it."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 6 else default


# ------------------------------------------------------------------------------------------------- queues and groups


async def queues(visit: Visit) -> tuple[str, Values]:
    stats = await visit.reads.stats("queue", 3600.0)
    return "queues.html", {
        "lines": lines_of(stats),
        "queues": await visit.reads.queues(),
        "serving": served_by(await visit.reads.workers()),
    }


async def queue(visit: Visit) -> tuple[str, Values]:
    name = visit.params.get("name", "")
    found = next((one for one in await visit.reads.queues() if one.name == name), None)
    if found is None:
        raise NotFound(f"there is no queue {name!r}.")
    workers = [worker for worker in await visit.reads.workers() if name in worker.queues]
    groups = await visit.reads.groups(name)
    return "queue.html", {"queue": found, "workers": workers, "groups": groups[:20], "more": len(groups) > 20}


async def groups(visit: Visit) -> tuple[str, Values]:
    queue = visit.params.get("queue") or None
    try:
        found = await visit.reads.groups(queue)
    except ConfigurationError as error:
        raise NotFound(str(error)) from None
    return "groups.html", {"groups": found, "queue": queue, "queues": await visit.reads.queues()}


async def group(visit: Visit) -> tuple[str, Values]:
    queue, name = visit.params.get("queue", ""), visit.params.get("name", "")
    try:
        found = await visit.reads.group(queue, name)
        held = await visit.reads.find(JobQuery(queue=queue, group=name, states=(State.RUNNING, State.READY), limit=10))
        waiting = await visit.reads.find(
            JobQuery(queue=queue, group=name, states=(State.WAITING, State.SCHEDULED), limit=PAGE + 1)
        )
    except (ConfigurationError, JobNotFound) as error:
        raise NotFound(str(error)) from None
    return "group.html", {
        "group": found,
        "held": sorted(held, key=lambda record: record.seq),
        "waiting": sorted(waiting[:PAGE], key=lambda record: formulas.place(record.order, record.seq)),
        "more": len(waiting) > PAGE,
    }


async def tasks(visit: Visit) -> tuple[str, Values]:
    stored = {record.rule.name: record for record in await visit.reads.tasks()}
    code, pauses = visit.reads.code, await visit.reads.paused_tasks()
    names = sorted({*stored, *code, *pauses})
    signatures = {name: formats.signature(known.fn) for name, known in code.items()}
    lines = lines_of(await visit.reads.stats("task", 3600.0))
    names = sorted({*names, *lines})
    return "tasks.html", {
        "lines": lines,
        "signatures": signatures,
        "names": names,
        "stored": stored,
        "code": code,
        "pauses": pauses,
    }


async def task(visit: Visit) -> tuple[str, Values]:
    name = visit.params.get("name", "")
    stored = next((record for record in await visit.reads.tasks() if record.rule.name == name), None)
    known, pause = visit.reads.code.get(name), (await visit.reads.paused_tasks()).get(name)
    recent = await visit.reads.find(JobQuery(task=name, limit=10))
    if known is None and stored is None and pause is None and not recent:
        raise NotFound(f"there is no task {name!r}.")
    return "task.html", {
        "line": lines_of(await visit.reads.stats("task", 3600.0)).get(name),
        "name": name,
        "task": known,
        "stored": stored,
        "pause": pause,
        "signature": None if known is None else formats.signature(known.fn),
        "parameters": [] if known is None else formats.parameters(known.fn),
        "rows": [row(visit, visit.reads.as_job(record)) for record in recent],
    }


STRIPS_MAX = 40  # entries whose runs are shown
ENTRY_NEXT_SHOWN = 8


async def _strips(visit: Visit, tasks: Mapping[str, str]) -> dict[str, Strip]:
    """The latest runs of each entry."""
    made: dict[str, Strip] = {}
    found: dict[str, dict[str, JobRecord]] = {}
    for entry in (await visit.reads.cron_entries())[:STRIPS_MAX]:
        task = tasks.get(entry.name, "")
        if task not in found:
            jobs = await visit.reads.find(JobQuery(task=task, limit=3 * TICKS_SHOWN))
            found[task] = {job.id: job for job in jobs}
        made[entry.name] = strip(entry, found[task], visit.now)
    return made


async def cron(visit: Visit) -> tuple[str, Values]:
    entries = await visit.reads.entries()
    strips = await _strips(visit, {entry.name: entry.task for entry in entries})
    return "cron.html", {
        "strips": strips,
        "entries": sorted(entries, key=lambda entry: entry.name),
    }


async def entry(visit: Visit) -> tuple[str, Values]:
    name = visit.params.get("name", "")
    found = next((one for one in await visit.reads.entries() if one.name == name), None)
    stored = next((one for one in await visit.reads.cron_entries() if one.name == name), None)
    if found is None or stored is None:
        raise NotFound(f"there is no cron entry {name!r}.")
    recent = await visit.reads.find(JobQuery(task=found.task, limit=3 * TICKS_SHOWN))
    known = {job.id: job for job in recent}
    ticks = strip(stored, known, visit.now, coming=ENTRY_NEXT_SHOWN)
    return "entry.html", {
        "entry": found,
        "args": visit.args(found.task, found.args),
        "strip": ticks,
        "rows": [row(visit, visit.reads.as_job(known[tick.id])) for tick in reversed(ticks.past) if tick.id in known],
        "missing": sum(tick.state is None for tick in ticks.past),
        "line": lines_of(await visit.reads.stats("task", 86400.0)).get(found.task),
    }


# ------------------------------------------------------------------------------------------------ workers and system


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker with its decoded status and the jobs it runs."""

    record: WorkerRecord
    status: WorkerStatus
    long: Collection[str]  # jobs that have run for far longer than is usual
    jobs: Mapping[str, JobRecord]  # what it runs, oldest first

    @property
    def free(self) -> int:
        """Free slots to draw: not more than fit on a line."""
        return max(0, min(self.record.slots - len(self.jobs), 64))


def _started(record: JobRecord) -> float:
    return record.started_at or float("inf")


async def workers(visit: Visit) -> tuple[str, Values]:
    records = sorted(await visit.reads.workers(), key=lambda worker: (worker.expired, worker.host, worker.started_at))
    running = await visit.reads.find(JobQuery(states=(State.RUNNING,), limit=500))
    usual = await visit.reads.usual() if running else {}
    views = []
    for record in records:
        own = {one.id: one for one in sorted(running, key=_started) if one.worker == record.id}
        views.append(
            WorkerView(
                record=record,
                status=read(record.portrait) or WorkerStatus(),
                long={one.id for one in own.values() if is_long(usual.get(one.task), visit.now - _started(one))},
                jobs=own,
            )
        )
    live = [record for record in records if not record.expired]
    return "workers.html", {
        "workers": views,
        "live": len(live),
        "slots": sum(record.slots for record in live),
        "running": sum(record.running for record in live),
        "usual": usual,
    }


def is_long(usual: Usual | None, seconds: float) -> bool:
    """Whether a handler runs far longer than its task's usually do."""
    return seconds > LONG_SECONDS if usual is None or usual.runs < USUAL_RUNS_MIN else usual.is_long(seconds)


async def system(visit: Visit) -> tuple[str, Values]:
    health = await visit.reads.health()
    order = {"wrong": 0, "note": 1, "fine": 2}
    return "system.html", {
        "checks": sorted(health.findings, key=lambda one: order[one.verdict]),
        "look": health.store,
        "facts": None if health.store is None else health.store.facts,
        "versions": versions(visit.reads.scheme),
        "totals": await visit.reads.totals(),
        "audit_max": AUDIT_MAX,
    }


def versions(scheme: str) -> dict[str, str]:
    """What this dashboard runs on."""
    from .. import __version__

    drivers = {"postgresql": ("psycopg",), "redis": ("redis", "hiredis"), "redis+cluster": ("redis", "hiredis")}
    found = {"holdfast": __version__, "python": platform.python_version()}
    for name in ("msgspec", "starlette", "jinja2", *drivers.get(scheme, ())):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


PAGES: Mapping[str, Page] = {
    "": overview,
    "jobs": jobs,
    "job": job,
    "failures": failures,
    "dead": dead,
    "queues": queues,
    "queue": queue,
    "groups": groups,
    "group": group,
    "tasks": tasks,
    "task": task,
    "cron": cron,
    "entry": entry,
    "workers": workers,
    "system": system,
}


async def nav_counts(visit: Visit) -> Values:
    """The numbers beside the menu."""
    try:
        totals, queues, workers = await visit.reads.totals(), await visit.reads.queues(), await visit.reads.workers()
    except HoldfastError:
        return {}
    return {"dead": totals[State.DEAD], "queues": len(queues), "workers": sum(not one.expired for one in workers)}
