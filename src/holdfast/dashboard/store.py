"""The dashboard's access to the store: `Reads`, which cannot change anything, and `Changes`, created only if the
visitor's role and the mode allow it. So read-only is enforced here, not in the pages.

Called by the pages and actions. Every read is bounded; what several visitors see is read about twice a second at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from ..app import Holdfast
from ..backends import Address, parse_url
from ..backends.contract import Backend
from ..bulk import BulkResult, BulkSettings
from ..cron.api import Backfilled, Entry
from ..dependencies import Relatives
from ..errors import HoldfastError, TaskNotRegistered
from ..inspection.audit import Audit
from ..inspection.coverage import judge_service, look_at_service
from ..inspection.explain import Explanation
from ..inspection.failures import Failures
from ..inspection.history import HistoryEntry
from ..inspection.machine import Finding, wrong
from ..inspection.pace import Usual, judge_pace, look_at_pace, usual_runs
from ..inspection.stats import By, Stats
from ..inspection.store_health import StoreLook, judge_store, look_at_store
from ..job import DeadLetter, Job
from ..lifecycle import UNSTARTED, State
from ..queries.pages import JobPage, Tally
from ..records import CronEntry, GroupRecord, JobQuery, JobRecord, LogLine, Pause, QueueRecord, TaskRecord, WorkerRecord
from ..steps import Step
from ..worker_status import Ask
from .access import Refused
from .formats import as_json, command, parameters
from .request_bodies import BULK_MAX

T = TypeVar("T")
KEPT_SECONDS = 0.2  # shared by open pages: less than the time between two reads of one page
COST_TIMES = 20.0  # counts and related jobs are kept for this many times as long as reading them took
STATS_SECONDS = 5.0
SAMPLE_SECONDS = 10.0
SAMPLES_MAX = 360
TALLY_SECONDS = 3.0  # a count may look at thousands of jobs
WORKER_SECONDS = 20.0  # a worker answers with its next renewal
KEPT_MAX = 200  # results of reads
CHECKS_SECONDS = 15.0  # doctor's checks query the server's settings
GROUPS_MAX = 200
RELATED_MAX = 6
RELATIVES_MAX = 10  # parents, and children, that a job's page shows
LETTERS_MAX = 1000
AUDIT_MAX = 20_000  # jobs in a store that a page may audit


class Sample(Struct, frozen=True, kw_only=True):
    """The backlog at one time."""

    at: float
    ready: int
    waiting: int
    oldest: float | None  # seconds that the oldest due job has waited


class Health(Struct, frozen=True, kw_only=True):
    """What the checks found, and the store as they saw it."""

    findings: list[Finding]
    store: StoreLook | None = None  # None: in memory, or it could not be reached


class Reads:
    """Everything the pages show."""

    def __init__(self, app: Holdfast, code: Mapping[str, Any]) -> None:
        self._app = app
        self.code = code  # the tasks of the app the dashboard was given; empty if it got only a URL
        self._address: Address = parse_url(app.url)
        self._kept: dict[str, tuple[float, Any]] = {}
        self._reading: dict[str, asyncio.Lock] = {}
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    @property
    def scheme(self) -> str:
        return self._address.scheme

    @property
    def safe_url(self) -> str:
        return self._address.safe_url

    async def _keep(self, name: str, seconds: float, read: Callable[[], Awaitable[T]], *, by_cost: bool = False) -> T:
        """The result of a read, at most `seconds` old; with `by_cost`, newer if reading it again is cheap."""
        if len(self._kept) > KEPT_MAX:
            self._kept.clear()
            self._reading.clear()
        lock = self._reading.setdefault(name, asyncio.Lock())
        async with lock:
            until, value = self._kept.get(name, (float("-inf"), None))
            began = time.monotonic()
            if began >= until:
                value = await read()
                now = time.monotonic()
                kept = min(seconds, max(KEPT_SECONDS, COST_TIMES * (now - began))) if by_cost else seconds
                self._kept[name] = now + kept, value
            return value  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Drop cached reads after a change, so that the next page shows it."""
        self._kept.clear()

    async def clock(self) -> float:
        """The store's time, which decides what is due."""
        return (await self._app.anow()).timestamp()

    async def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Jobs per state, by queue."""
        return await self._keep("counts", KEPT_SECONDS, self._app.acounts)

    async def totals(self) -> dict[State, int]:
        """Jobs per state over all queues."""
        counts = await self.counts()
        return {state: sum(one.get(state, 0) for one in counts.values()) for state in State}

    async def stats(self, by: By, seconds: float) -> Stats:
        """What ended within the last N seconds."""
        kept = STATS_SECONDS if seconds <= 3600 else CHECKS_SECONDS
        return await self._keep(f"stats {by} {seconds}", kept, lambda: self._app.astats(by, since=seconds))

    async def history(self, id: str) -> list[HistoryEntry]:
        return await self._app.ahistory(id)

    async def steps(self, id: str) -> list[Step]:
        return await self._app.asteps(id)

    def samples(self) -> list[Sample]:
        """The backlog over time while a page was open, oldest first; at least one sample."""
        return list(self._samples)

    async def _sample(self) -> None:
        """Sample the backlog, at most once in SAMPLE_SECONDS."""
        now = time.time()
        if self._samples and now - self._samples[-1].at < SAMPLE_SECONDS:
            return
        totals, queues = await self.totals(), await self.queues()
        due = [queue.oldest_due_at for queue in queues if queue.oldest_due_at is not None]
        oldest = max(0.0, await self.clock() - min(due)) if due else None
        self._samples.append(Sample(at=now, ready=totals[State.READY], waiting=totals[State.WAITING], oldest=oldest))

    async def clock_and_sample(self) -> float:
        """The store's time; also samples the backlog."""
        await self._sample()
        return await self.clock()

    async def workers(self) -> list[WorkerRecord]:
        return await self._keep("workers", KEPT_SECONDS, self._app.aworkers)

    async def queues(self) -> list[QueueRecord]:
        async def read() -> list[QueueRecord]:
            return list(await self._app.queues.alist())

        return await self._keep("queues", KEPT_SECONDS, read)

    async def groups(self, queue: str | None) -> list[GroupRecord]:
        return await self._app.groups.alist(queue, limit=GROUPS_MAX)

    async def group(self, queue: str, name: str) -> GroupRecord:
        return await self._app.groups.aget(queue, name)

    async def tasks(self) -> list[TaskRecord]:
        return await self._app.tasks.alist()

    async def paused_tasks(self) -> dict[str, Pause]:
        """The pauses of tasks, by task."""
        return {pause.task: pause for pause in await self.pauses() if pause.task is not None}

    async def pauses(self) -> list[Pause]:
        """Everything that is paused now."""

        async def read() -> list[Pause]:
            return list(await self._app._ado(lambda backend: backend.pauses()))

        return await self._keep("pauses", KEPT_SECONDS, read)

    async def entries(self) -> list[Entry]:
        return await self._app.cron.alist()

    async def page(self, query: JobQuery) -> JobPage:
        """One bounded page of jobs."""
        return await self._app._apage(query)

    async def count(self, query: str, by: str | None) -> Tally:
        """How many match, up to a cap."""
        read = partial(self._app.acount, query, by=by)
        return await self._keep(f"count {by} {query}", TALLY_SECONDS, read, by_cost=True)

    async def relatives(self, id: str) -> Relatives:
        """The jobs that a job waits for or waited for, and those that wait for it."""
        return await self._app.arelatives(id, limit=RELATIVES_MAX)

    async def related(self, job: Job[Any]) -> list[JobRecord]:
        """The newest other jobs of its key, else of its group."""
        if job.key is None and job.group is None:
            return []
        by = {"group": job.group} if job.key is None else {"key": job.key}
        query = JobQuery(queue=job.queue, limit=RELATED_MAX + 1, **by)
        page = await self._keep(f"related {query}", STATS_SECONDS, partial(self.page, query), by_cost=True)
        return [one for one in page.jobs if one.id != job.id][:RELATED_MAX]

    async def cron_entries(self) -> list[CronEntry]:
        """Cron entries as stored, by name."""
        found = await self._app._ado(lambda backend: backend.entries())
        return sorted(found, key=lambda entry: entry.name)

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """The newest matching jobs that one bounded read finds."""
        return list((await self.page(query)).jobs)

    async def job(self, id: str) -> Job[Any]:
        return await self._app.ajob(id)

    def as_job(self, record: JobRecord) -> Job[Any]:
        return Job(self._app, record)

    async def explain(self, id: str) -> Explanation:
        catch_all = any(task.defaults.catch_all for task in self.code.values())
        return await self._app.aexplain(id, tasks=None if catch_all else self.code or None)

    async def logs(self, id: str) -> list[LogLine]:
        return await self._app.alogs(id)

    async def letters(self, query: str = "", *, limit: int = LETTERS_MAX, **filters: Any) -> list[DeadLetter]:
        return await self._app.dead.alist(query, limit=limit, **filters)

    async def letter(self, id: str) -> DeadLetter:
        return await self._app.dead.aget(id)

    async def failures(self) -> Failures:
        """The dead letters, grouped by cause."""
        return await self._app.afailures()

    async def checks(self) -> list[Finding]:
        """What `holdfast doctor` finds about the store and its workers."""
        return (await self.health()).findings

    async def health(self) -> Health:
        """The checks, and what the store said about itself."""
        return await self._keep("health", CHECKS_SECONDS, self._health)

    async def _health(self) -> Health:
        async def look(backend: Backend) -> Health:
            service = judge_service(await look_at_service(backend, tasks=False))
            service += judge_pace(await look_at_pace(backend))
            if self.scheme == "memory":
                return Health(findings=service)
            store = await look_at_store(backend, self._address)
            return Health(findings=[*judge_store(store), *service], store=store)

        try:
            return await self._app._ado(look)
        except HoldfastError as error:
            return Health(findings=[wrong("store", str(error))])

    async def quiet_seconds(self) -> float:
        """How long the store hands out no jobs, according to the latest checks; 0 if it does."""
        store = (await self.health()).store
        return 0.0 if store is None else store.facts.quiet_seconds

    async def usual(self) -> dict[str, Usual]:
        """How long attempts of each task took in the last day."""

        async def look(backend: Backend) -> dict[str, Usual]:
            return await usual_runs(backend, await backend.clock())

        return await self._keep("usual", CHECKS_SECONDS, lambda: self._app._ado(look))


class Changes:
    """What an operator may do. Created per request, only if the visitor has the role and the dashboard may write."""

    def __init__(self, app: Holdfast, by: str, code: Holdfast | None) -> None:
        self._app, self._by, self._code = app, by, code

    @property
    def _knowing(self) -> Holdfast:
        """The app whose tasks' signatures check arguments, if one is known."""
        return self._code or self._app

    async def one(self, verb: str, id: str, changes: Mapping[str, Any]) -> None:
        """Carry out one verb of BULK_VERBS for one job."""
        done: Mapping[str, Callable[..., Awaitable[Any]]] = {
            "cancel": self._app.acancel,
            "retry": self._app.aretry,
            "run_now": self._app.arun_now,
            "bury": self._app.abury,
            "revive": self._knowing.dead.arevive,
            "discard": self._app.dead.adiscard,
            "delete": self._app.adelete,
            "edit": self._knowing.aedit,
            "reschedule": self._app.areschedule,
        }
        await done[verb](id, by=self._by, **changes)

    async def edit(self, id: str, changes: dict[str, Any]) -> bool:
        """Change a job that has not started; arguments are checked if the app is known. False: nothing differs."""
        job = await self._app.ajob(id)
        if "args" in changes and changes["args"] == job.args:
            del changes["args"]
        same = {"queue": job.queue, "group": job.group, "priority": job.priority, "order": job.order}
        wanted = {name: value for name, value in changes.items() if name not in same or same[name] != value}
        if wanted:
            await self._knowing.aedit(id, by=self._by, **wanted)
        return bool(wanted)

    async def bulk(self, verb: str, query: str, changes: Mapping[str, Any]) -> BulkResult:
        """The same for all jobs that match, at most BULK_MAX, the oldest first."""
        settings: BulkSettings = {"by": self._by, "limit": BULK_MAX, **changes}  # type: ignore[typeddict-item]
        return await self._knowing.abulk(verb, query, **settings)

    async def empty(self, queue: str) -> BulkResult:
        """Delete what has not started in a queue, at most BULK_MAX jobs, the oldest first."""
        states = tuple(sorted(UNSTARTED))
        return await self._app.abulk("delete", JobQuery(queue=queue, states=states), by=self._by, limit=BULK_MAX)

    async def obliterate(self, queue: str) -> BulkResult:
        """Delete a whole queue, or refuse: one request deletes a bounded number of jobs, and never half a queue."""
        number = sum((await self._app.acounts(queue)).get(queue, {}).values())
        if number > BULK_MAX:
            line = command("holdfast", "queues", "obliterate", queue)
            raise Refused(409, f"Queue {queue!r} has {number:,} jobs; one request deletes {BULK_MAX:,}. Use `{line}`.")
        return await self._app.queues.aobliterate(queue, by=self._by)

    async def backfill(self, name: str, start: datetime, end: datetime, *, dry_run: bool = False) -> list[Backfilled]:
        return await self._app.cron.abackfill(name, start, end, dry_run=dry_run)

    async def audit(self) -> Audit:
        """Check every guarantee. It reads all rows at once, so a large store is left to the command."""
        number = sum(sum(one.values()) for one in (await self._app.acounts()).values())
        if number > AUDIT_MAX:
            raise Refused(409, f"The store has {number:,} jobs, too many to read for a page. Use `holdfast audit`.")
        return await self._app.aaudit()

    async def pause(self, target: Mapping[str, str], reason: str) -> None:
        await self._app.apause(**target, reason=reason, by=self._by)

    async def resume(self, target: Mapping[str, str], *, skip_dead: bool = False) -> None:
        queue, group, task = (target.get(name) for name in ("queue", "group", "task"))
        await self._app.aresume(queue=queue, group=group, task=task, skip_dead=skip_dead)

    async def limit(self, target: Mapping[str, str], limit: Any, rate: Any) -> None:
        """Override a limit and a rate: a value, UNLIMITED to lift it, RESET for the code's own, UNSET to leave it."""
        if "task" in target:
            await self._app.tasks.alimit(target["task"], limit, rate=rate)
        elif "group" in target:
            await self._app.groups.alimit(target["queue"], target["group"], limit, rate=rate)
        else:
            await self._app.queues.alimit(target["queue"], limit, rate=rate)

    async def enqueue(self, name: str, given: Mapping[str, Any]) -> str:
        """One job of a task of the app's own code. Text for a parameter that takes none is read as JSON."""
        known = self._code.tasks if self._code is not None else {}
        task = known.get(name)
        if task is None:
            raise TaskNotRegistered(name, tuple(known))
        text = {one.name for one in parameters(task.fn) if one.kind == "str"}
        typed = {name for name, value in given.items() if isinstance(value, str) and name not in text}
        args = {name: as_json(value) if name in typed else value for name, value in given.items()}
        return str((await task.options(by=self._by).aenqueue(**args)).id)

    async def ask_worker(self, worker: str, ask: Ask) -> str:
        """Send one worker a command, and wait a while for its answer."""
        asked: Mapping[Ask, Callable[..., Awaitable[str]]] = {
            "pause": self._app.apause_worker,
            "resume": self._app.aresume_worker,
            "stacks": self._app.aworker_stacks,
            "stop": self._app.astop_worker,
        }
        return await asked[ask](worker, by=self._by, timeout=WORKER_SECONDS)

    async def set_slots(self, worker: str, slots: int) -> str:
        return await self._app.aset_worker_slots(worker, slots, by=self._by, timeout=WORKER_SECONDS)

    async def pause_entry(self, name: str, reason: str) -> None:
        await self._app.cron.apause(name, reason=reason, by=self._by)

    async def resume_entry(self, name: str) -> None:
        await self._app.cron.aresume(name)

    async def run_entry(self, name: str) -> str:
        return (await self._app.cron.arun_now(name)).id
