"""The read side of the router: query many shards and combine the results.

Part of backend.py's `ShardedBackend`; `MoveVerbs` uses `flows_of`. Changes nothing. Raises if a shard that may hold
part of the result is silent: half a result is none. Jobs are in the order of their seqs, which is the order in which
they were stored within a shard, and over all shards as far as their clocks and loads agree.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from ...dependencies import Relatives
from ...lifecycle import State
from ...queries.pages import Grouping, Look, Scanned, Tally
from ...records import (
    Command,
    CronEntry,
    DeadLetter,
    Dump,
    Flaw,
    Flow,
    GroupRecord,
    JobQuery,
    JobRecord,
    LetterQuery,
    LogLine,
    Mark,
    Pause,
    QueueRecord,
    TaskRecord,
    TaskRule,
    WorkerRecord,
)
from ...rollups import EventPage, Rollup, RollupQuery, merged
from ...steps import Steps
from ..contract import Backend, Reader
from ..scan_pages import tallied
from ..shard import Shard
from .cron import NOTED
from .dependencies import EdgeVerbs
from .fanout import Answers, at_once
from .lease import HOME
from .places import call_of, place_of_job, shard_name, signed
from .registry import FRESH_SECONDS, Shards

T = TypeVar("T")

PLACES_MAX = 10_000  # jobs whose shard is cached
RUNNING_MAX = 10_000  # running jobs of one task in one shard that are counted one by one


class ShardedReader(Reader):
    """The queries on a store of shards."""

    _shards: Shards
    _places: dict[str, str]  # job → its shard, as last seen: a hint
    _edges: EdgeVerbs

    @abstractmethod
    async def _store(self, name: str) -> Shard:
        """Return the shard of that name (or home), opened on first use."""

    async def _at(self, name: str, verb: Callable[[Backend], Awaitable[T]]) -> T:
        return await verb(await self._store(name))

    async def _at_all(self, names: Sequence[str], verb: Callable[[Backend], Awaitable[T]]) -> Answers[T]:
        return await at_once({name: self._at(name, verb) for name in names})

    async def _everywhere(self, verb: Callable[[Backend], Awaitable[T]], queue: str | None = None) -> dict[str, T]:
        """Return the results of all shards, or those of one queue; raises if one is silent."""
        await self._shards.refresh()
        names = self._shards.all() if queue is None else self._shards.of(queue)
        return (await self._at_all(names, verb)).of_all()

    async def _home(self) -> Backend:
        return await self._store(HOME)

    # ------------------------------------------------------------------ jobs

    async def _first(self, verb: Callable[[Backend], Awaitable[T | None]]) -> T | None:
        """Return the result of the one shard that has one; raises if a silent one might have it."""
        answers: Answers[T | None] = Answers()
        for age in (FRESH_SECONDS, 0.0):  # what no known shard has may be in a new one
            await self._shards.refresh(age)
            names = [name for name in self._shards.all() if name not in answers]
            more = await self._at_all(names, verb)
            for answer in more.values():
                if answer:
                    return answer
            more.of_all()
            answers.update(more)
        return None

    async def get(self, job_id: str) -> JobRecord | None:
        """Return the job. A caller that waits for a result asks repeatedly, so its shard is cached and asked first."""
        known = self._places.get(job_id)
        found = None if known is None else await self._at(known, lambda store: store.get(job_id))
        if found is None:
            found = await self._first(lambda store: store.get(job_id))
            entry = None if found is None else self._shards.registry.queues.get(found.queue)
            if found is not None and entry is not None:
                self._remember(job_id, shard_name(found.queue, place_of_job(found, entry.shards)))
        return found

    async def relatives(self, job_id: str, *, limit: int = 100, values: bool = False, beyond: str = "") -> Relatives:
        shard = await self._shard_of(job_id)
        if shard is None:
            return Relatives()
        found = await self._at(shard, lambda store: store.relatives(job_id, limit=limit, values=values, beyond=beyond))
        if not self._edges.crossing:
            return found
        return await self._edges.relatives(shard, job_id, found, limit, beyond)

    async def steps(self, job_id: str) -> Steps:
        shard = await self._shard_of(job_id)
        if shard is None:
            return Steps(now=await self.clock())
        return await self._at(shard, lambda store: store.steps(job_id))

    async def _shard_of(self, job_id: str) -> str | None:
        """Return where a job is; None if it is unknown."""
        job = await self.get(job_id)
        if job is None:
            return None
        entry = self._shards.registry.queues[job.queue]
        return self._places.get(job_id) or shard_name(job.queue, place_of_job(job, entry.shards))

    def _remember(self, job_id: str, shard: str) -> None:
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places[job_id] = shard

    async def ended(self, job_ids: Sequence[str]) -> Mapping[str, JobRecord | None]:
        """Ask for each id where it was last seen; only those not seen yet, or gone from there, everywhere."""
        found: dict[str, JobRecord | None] = {}
        asked: dict[str, list[str]] = {}
        for job_id in dict.fromkeys(job_ids):
            if job_id in self._places:
                asked.setdefault(self._places[job_id], []).append(job_id)
        missing = set(job_ids) - await self._look(found, asked)
        looked: set[str] = set()
        for age in (FRESH_SECONDS, 0.0):  # what no known shard has may be in a new one
            if missing:
                await self._shards.refresh(age)
                names = [name for name in self._shards.all() if name not in looked]
                missing -= await self._look(found, {name: sorted(missing) for name in names})
                looked.update(names)
        return {**found, **dict.fromkeys(missing)}

    async def _look(self, found: dict[str, JobRecord | None], asked: Mapping[str, list[str]]) -> set[str]:
        """Ask these shards for these ids; collect finished jobs, cache the shard of others. Returns the known ids."""

        async def ask(name: str) -> Mapping[str, JobRecord | None]:
            return await (await self._store(name)).ended(asked[name])

        known: set[str] = set()
        for name, ended in (await at_once({name: ask(name) for name in asked})).of_all().items():
            for job_id in asked[name]:
                job = ended.get(job_id)
                if job is not None:
                    found[job_id] = job
                elif job_id not in ended:
                    self._remember(job_id, name)
                if job is not None or job_id not in ended:
                    known.add(job_id)
        return known

    async def scan(self, query: JobQuery, look: Look) -> Scanned:
        """Scan every shard, each a share of the rows and bytes; the limit is that of each."""
        number = await self._number(query.queue)
        share = replace(look, rows_max=max(1, look.rows_max // number), bytes_max=max(1, look.bytes_max // number))
        found = await self._everywhere(lambda store: store.scan(query, share), query.queue)
        return scanned_by_all(list(found.values()), query)

    async def tally(
        self, query: JobQuery, by: Grouping | None = None, now: float | None = None, *, rows_max: int | None = None
    ) -> Tally:
        """The sum of all shards, each of which looks at a share of the rows."""
        share = max(1, (rows_max or self.scan_rows_max) // await self._number(query.queue))
        found = await self._everywhere(lambda store: store.tally(query, by, now, rows_max=share), query.queue)
        return tally_of(list(found.values()), by)

    async def _number(self, queue: str | None) -> int:
        await self._shards.refresh()
        return len(self._shards.all() if queue is None else self._shards.of(queue)) or 1

    async def count(self, queue: str | None = None) -> Mapping[str, Mapping[State, int]]:
        return counts_of((await self._everywhere(lambda store: store.count(queue), queue)).values())

    async def logs(self, job_id: str) -> list[LogLine]:
        return await self._first(lambda store: store.logs(job_id)) or []

    async def marks(self, job_id: str) -> list[Mark]:
        return await self._first(lambda store: store.marks(job_id)) or []

    async def rollups(self, query: RollupQuery) -> list[Rollup]:
        """Workers record at home; each shard adds the jobs that end there without a lease."""
        home = await (await self._home()).rollups(query)
        found = await self._everywhere(lambda store: store.rollups(query))
        return merged([*home, *(one for part in found.values() for one in part)])

    async def events(self, after: int | None = None, *, limit: int = 500) -> EventPage:
        return await (await self._home()).events(after, limit=limit)

    async def letter(self, job_id: str) -> DeadLetter | None:
        return await self._first(lambda store: store.letter(job_id))

    async def letters(self, query: LetterQuery) -> list[DeadLetter]:
        found = await self._everywhere(lambda store: store.letters(query), query.queue)
        return letters_of(found.values(), query.limit)

    # ------------------------------------------------------------------ queues, groups, tasks, workers, entries

    async def queues(self) -> list[QueueRecord]:
        home = await (await self._home()).queues()
        return queues_of(home, (await self._everywhere(lambda store: store.queues())).values())

    async def waking(self, queues: Sequence[str]) -> bool:
        found = await self._everywhere(lambda store: store.waking(queues))
        return any(found.values())

    async def groups(self, queue: str | None = None, *, limit: int = 100) -> list[GroupRecord]:
        home = await (await self._home()).groups(queue, limit=limit)
        found = await self._everywhere(lambda store: store.groups(queue, limit=limit), queue)
        return groups_of(home, found.values(), limit)

    async def tasks(self) -> list[TaskRecord]:
        home = await (await self._home()).tasks()
        found = await self._everywhere(lambda store: store.tasks())
        shown = tasks_of(home, found.values())
        hidden = [task.rule.name for task in shown]
        counts = {
            name: self._running(name, [task for task in hidden if task not in {one.rule.name for one in there}])
            for name, there in found.items()
        }
        more = [running for running in (await at_once(counts)).of_all().values() if running]
        return [replace(task, running=task.running + sum(one[task.rule.name] for one in more)) for task in shown]

    async def _running(self, shard: str, tasks: Sequence[str]) -> Counter[str]:
        """Count running jobs of these tasks in a shard that does not report them itself: it has no rule for them."""
        running: Counter[str] = Counter()
        for task in tasks:
            if shard in self._shards.registry.shards_of_task(task):
                query = JobQuery(task=task, states=(State.RUNNING,), limit=RUNNING_MAX)
                running[task] = len(await (await self._store(shard)).find(query))
        return running

    async def group(self, queue: str, name: str) -> GroupRecord:
        await self._shards.refresh()
        shard = self._shards.of_group(queue, name)
        return await self._at(HOME if shard is None else shard, lambda store: store.group(queue, name))

    async def pauses(self) -> list[Pause]:
        return await (await self._home()).pauses()

    async def commands(self, worker: str) -> list[Command]:
        return await (await self._home()).commands(worker)

    async def workers(self, now: float | None = None) -> list[WorkerRecord]:
        home = await (await self._home()).workers(now)
        return workers_of(home, (await self._everywhere(lambda store: store.workers(now))).values())

    async def entries(self) -> list[CronEntry]:
        return await (await self._home()).entries()

    async def flaws(self, *, limit: int = 1000) -> list[Flaw]:
        """Each names its shard. Raises if a shard is silent: "nothing is wrong" would be a guess."""
        found = await (await self._home()).flaws(limit=limit)
        for name, listed in (await self._everywhere(lambda store: store.flaws(limit=limit))).items():
            found += [replace(flaw, text=f"{flaw.text} (shard {name})") for flaw in listed]
        return found[:limit]

    async def dump(self) -> Dump:
        home = await (await self._home()).dump()
        found = await self._everywhere(lambda store: store.dump())
        counts = {queue: entry.shards for queue, entry in self._shards.registry.queues.items()}
        return dump_of(home, found, counts)


# ---------------------------------------------------------------------- combining results: pure functions


Row = Mapping[str, Any]


def scanned_by_all(found: Sequence[Scanned], query: JobQuery) -> Scanned:
    """Merge the scans of several shards: as far as all of them have come, or until the limit is reached."""
    places = {query.order(one.before, one.beyond or 0.0): one for one in found if one.before is not None}
    merged = heapq.merge(*(one.jobs for one in found), key=lambda job: query.order(job.seq, job.due_at))
    reached = min(places, default=None)
    jobs = [job for job in merged if reached is None or query.order(job.seq, job.due_at) <= reached]
    rows = sum(one.rows for one in found)
    if len(jobs) > query.limit:
        last = jobs[query.limit - 1]
        return Scanned(jobs=tuple(jobs[: query.limit]), before=last.seq, beyond=last.due_at, rows=rows)
    if reached is None:
        return Scanned(jobs=tuple(jobs), rows=rows)
    return Scanned(jobs=tuple(jobs), before=places[reached].before, beyond=places[reached].beyond, rows=rows)


def tally_of(found: Sequence[Tally], by: Grouping | None) -> Tally:
    counter: Counter[str] = Counter()
    for one in found:
        counter.update({"": one.total} if by is None else one.groups)
    return tallied(counter, by, sum(one.scanned for one in found), complete=all(one.complete for one in found))


def letters_of(found: Iterable[Sequence[DeadLetter]], limit: int) -> list[DeadLetter]:
    letters = [letter for part in found for letter in part]
    return sorted(letters, key=lambda letter: (-letter.failed_at, letter.id))[:limit]


def counts_of(found: Iterable[Mapping[str, Mapping[State, int]]]) -> dict[str, dict[State, int]]:
    total: dict[str, dict[State, int]] = {}
    for part in found:
        for queue, by_state in part.items():
            sums = total.setdefault(queue, {})
            for state, number in by_state.items():
                sums[state] = sums.get(state, 0) + number
    return dict(sorted(total.items()))


def queues_of(home: Sequence[QueueRecord], found: Iterable[Sequence[QueueRecord]]) -> list[QueueRecord]:
    """Rules, overrides and pauses from home; counts, the oldest due time and the rate state from all shards."""
    total = {record.name: record for record in home if record.name != NOTED}
    flows: dict[str, Flow] = {}
    for record in (record for part in found for record in part):
        if record.flow is not None:
            flows[record.name] = _fuller(record.flow, flows.get(record.name))
        known = total.get(record.name)
        if known is None:
            total[record.name] = record
            continue
        counts = dict(known.counts)
        for state, number in record.counts.items():
            counts[state] = counts.get(state, 0) + number
        due = [at for at in (known.oldest_due_at, record.oldest_due_at) if at is not None]
        total[record.name] = replace(known, counts=counts, oldest_due_at=min(due, default=None))
    return [replace(total[name], flow=flows.get(name, total[name].flow)) for name in sorted(total)]


def tasks_of(home: Sequence[TaskRecord], found: Iterable[Sequence[TaskRecord]]) -> list[TaskRecord]:
    """Rules and overrides from home; running counts and the rate state from all shards."""
    total = {record.rule.name: record for record in home}
    flows: dict[str, Flow] = {}
    for record in (record for part in found for record in part):
        name = record.rule.name
        if record.flow is not None:
            flows[name] = _fuller(record.flow, flows.get(name))
        elif name not in total:
            continue  # a rule that home no longer has and the shards are about to lose
        known = total.get(name, TaskRecord(rule=TaskRule(name=name)))
        total[name] = replace(known, running=known.running + record.running)
    return [replace(total[name], flow=flows.get(name, total[name].flow)) for name in sorted(total)]


def _fuller(flow: Flow, other: Flow | None) -> Flow:
    """Combine the rate states of several shards: the later TAT and the later end of a slow-down count."""
    if other is None:
        return flow
    spent, shut = max(flow.spent_until, other.spent_until), max(flow.shut_until, other.shut_until)
    return replace(flow, spent_until=spent, shut_until=shut)


def flows_of(home: Iterable[Flow], found: Iterable[Iterable[Flow]]) -> list[Flow]:
    """Return the rate states of all shards, one per queue, group and task; home's if no shard has that one yet."""
    total: dict[tuple[str, str, str], Flow] = {}
    for flow in (flow for part in found for flow in part):
        total[_scope(flow)] = _fuller(flow, total.get(_scope(flow)))
    for flow in home:
        total.setdefault(_scope(flow), flow)
    return [total[scope] for scope in sorted(total)]


def _scope(flow: Flow) -> tuple[str, str, str]:
    return (flow.queue or "", flow.group or "", flow.task or "")


def groups_of(home: Sequence[GroupRecord], found: Iterable[Sequence[GroupRecord]], limit: int) -> list[GroupRecord]:
    """A group comes from the shard it is in; home adds its pause, and groups that only home knows."""
    total = {(record.queue, record.name): record for record in home}
    for record in (record for part in found for record in part):
        known = total.get((record.queue, record.name))
        total[record.queue, record.name] = replace(record, pause=known.pause) if known is not None else record
    return [total[name] for name in sorted(total)[:limit]]


def workers_of(home: Sequence[WorkerRecord], found: Iterable[Sequence[WorkerRecord]]) -> list[WorkerRecord]:
    """One row per worker, from home if it has one, with the leases of all its rows together."""
    total = {record.id: record for record in home}
    for record in (record for part in found for record in part):
        known = total.get(record.id)
        total[record.id] = record if known is None else replace(known, running=known.running + record.running)
    return list(total.values())


def dump_of(home: Dump, found: Mapping[str, Dump], shards: Mapping[str, int]) -> Dump:
    """Combine the shards' snapshots, each of one instant but for `moving`. `shards`: the shards of each queue."""
    jobs = [_job_row(name, row) for name, dump in found.items() for row in dump.tables["jobs"]]
    tables = dict(home.tables)
    tables["jobs"] = tuple(sorted(jobs, key=lambda row: row["seq"]))
    tables["workers"] = _worker_rows([home, *found.values()])
    tables["queues"] = tuple({**row, "shards": shards.get(row["name"], 1)} for row in home.tables["queues"])
    order = {row["id"]: row["seq"] for row in jobs}
    logs = (row for dump in found.values() for row in dump.tables["logs"])
    tables["logs"] = tuple(sorted(logs, key=lambda row: order[row["job_id"]]))
    marks = (row for dump in found.values() for row in dump.tables["marks"])
    tables["marks"] = tuple(sorted(marks, key=lambda row: order[row["job_id"]]))
    for table in ("edges", "dependents", "propagating"):
        rows = [row for dump in found.values() for row in dump.tables[table]]
        tables[table] = tuple(sorted(rows, key=lambda row: (row.get("child", ""), row.get("parent", ""))))
    steps = [row for dump in found.values() for row in dump.tables["steps"]]
    tables["steps"] = tuple(sorted(steps, key=lambda row: (row["job_id"], row["kind"], row["name"])))
    tables["letters"] = tuple(row for dump in found.values() for row in dump.tables["letters"])
    flows = [[msgspec.convert(row, Flow) for row in dump.tables["flows"]] for dump in (home, *found.values())]
    tables["flows"] = tuple(msgspec.to_builtins(flow) for flow in flows_of(flows[0], flows[1:]))
    pending = any(dump.rearranging for dump in (home, *found.values()))
    moving = tuple(row for dump in (home, *found.values()) for row in dump.moving)
    return Dump(tables=tables, sharded=True, rearranging=pending, moving=moving)


def _job_row(shard: str, row: Row) -> dict[str, Any]:
    token, call = row["token"], row["claim_call"]
    return {
        **row,
        "token": None if token is None else signed(shard, token),
        "claim_call": None if call is None else call_of(call),
    }


def _worker_rows(dumps: Sequence[Dump]) -> tuple[dict[str, Any], ...]:
    """One row per worker, home's if it has one, with the latest call any shard has seen."""
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for dump in dumps for row in dump.tables["workers"]):
        known = rows.setdefault(row["id"], {**row, "last_call": 0})
        known["last_call"] = max(known["last_call"], call_of(row["last_call"]))
    return tuple(rows[name] for name in sorted(rows))
