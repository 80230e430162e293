"""What must hold in a store at any moment, whatever happened before: the rules of the contract that need no history.

Called after every case, and by random walks after every step. Reads through the contract, changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...backends.contract import Backend
from ...backends.formulas import edge_status
from ...dependencies import DUE_AFTER_PARENTS
from ...lifecycle import LIVE, SHARED_STALLS_MAX, UNSTARTED, State
from ...rates import UNLIMITED, Rate
from ...records import (
    ERRORS_KEPT_MAX,
    HISTORY_KEPT_MAX,
    READY_PER_GROUP_MAX,
    DeadLetter,
    GroupRecord,
    LetterQuery,
    Override,
    Pause,
    TaskRecord,
)
from .portrait import ALL

Row = dict[str, Any]


async def sound(backend: Backend, when: str) -> None:
    """Assert that no rule is broken; the message names each that is."""
    broken = await faults(backend)
    assert not broken, f"{when}: the store is not sound\n  " + "\n  ".join(broken[:20])


async def faults(backend: Backend) -> list[str]:
    """Every rule that is broken, one line each; empty when the store is sound."""
    tables = (await backend.dump()).tables
    jobs = [dict(row) for row in tables["jobs"]]
    workers = {str(row["id"]) for row in tables["workers"]}
    letters = await backend.letters(LetterQuery(limit=ALL))
    groups = await backend.groups(limit=ALL)
    tasks = await backend.tasks()
    return [
        *_leases(jobs, workers),
        *_fences(jobs, by_group=backend.sharded),
        *_endings(jobs, {letter.id for letter in letters}),
        *_counters(jobs),
        *_letters(jobs, letters, by_group=backend.sharded),
        *_keys(jobs, by_group=backend.sharded),
        *_groups(jobs, groups),
        *_lanes(jobs, await backend.pauses(), _apart(tasks)),
        *_running(jobs, tasks),
        *_edges(jobs, tables),
        *_steps(jobs, tables),
    ]


def _steps(jobs: list[Row], tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Steps belong to jobs, in order, and none is of a later lease than the job has had (R91)."""
    fences = {job["id"]: job["fence"] for job in jobs}
    order = [(step["job_id"], step["kind"], step["name"]) for step in tables["steps"]]
    if order != sorted(set(order)):
        yield "the steps are not in order, or one is there twice"
    for step in tables["steps"]:
        if step["job_id"] not in fences:
            yield f"there are steps of job {step['job_id']}, which is not there"
        elif step["fence"] > fences[step["job_id"]]:
            yield f"a step of job {step['job_id']} has fence {step['fence']}, its job {fences[step['job_id']]}"


def _edges(jobs: list[Row], tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Edges, what is counted of them, and the states of the jobs on both sides agree (R84)."""
    by_id = {job["id"]: job for job in jobs}
    propagating = {row["parent"] for row in tables["propagating"]}
    pending: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for edge in tables["edges"]:
        parent, child, status = edge["parent"], edge["child"], edge["status"]
        pending[child] += status != "met"
        failed[child] += status == "failed"
        if parent not in by_id or child not in by_id:
            yield f"the edge from {parent} to {child} leads to a job that is not there"
            continue
        told = edge_status(status, State(by_id[parent]["state"]), edge["on_parent_failure"])
        if told != status and parent not in propagating:
            yield f"the edge from {parent} to {child} is {status}, and its parent is {by_id[parent]['state']}"
    counted = {row["child"]: row for row in tables["dependents"]}
    for child in sorted({*pending, *counted}):
        row = counted.get(child)
        if row is None or (row["pending"], row["failed"]) != (pending[child], failed[child]):
            yield f"of the edges of {child}, {pending[child]} wait and {failed[child]} failed, counted as {row}"
    for job in jobs:
        waits = job["state"] == State.SCHEDULED and job["due_at"] == DUE_AFTER_PARENTS
        if waits and (not pending[job["id"]] or failed[job["id"]]):
            yield f"job {job['id']} waits: {pending[job['id']]} parents have not succeeded, {failed[job['id']]} failed"


def _leases(jobs: list[Row], workers: set[str]) -> Iterator[str]:
    for job in jobs:
        if job["state"] == State.RUNNING:
            if not job["token"] or job["worker"] not in workers:
                yield f"{job['id']} runs without a token or under a worker that is not there ({job['worker']})"
        elif job["token"] is not None or job["worker"] is not None or job["claim_call"] is not None:
            yield f"{job['id']} is {job['state']} and keeps a token, worker or claim_call"
    tokens = Counter(job["token"] for job in jobs if job["token"])
    yield from (f"a token is held by {number} jobs" for number in tokens.values() if number > 1)


def _fences(jobs: list[Row], *, by_group: bool) -> Iterator[str]:
    """No fence twice in the store; where each shard has a counter of its own, none twice in a group."""
    fenced = [job for job in jobs if job["fence"] and (job["group"] is not None or not by_group)]
    fences = Counter((job["fence"], (job["queue"], job["group"]) if by_group else None) for job in fenced)
    yield from (f"fence {fence} belongs to {number} jobs" for (fence, _), number in fences.items() if number > 1)


def _endings(jobs: list[Row], holders: set[str]) -> Iterator[str]:
    for job in jobs:
        live = job["state"] in LIVE
        if live == (job["finished_at"] is not None):
            yield f"{job['id']} is {job['state']} with finished_at {job['finished_at']}"
        prunable = not live and job["id"] not in holders
        if prunable != (job["prune_at"] is not None):
            yield f"{job['id']} is {job['state']}, letter {job['id'] in holders}, with prune_at {job['prune_at']}"
        window = 0.0 if job["key"] is None else job["key_window"] or 0.0
        if (job["prune_at"] or float("inf")) < job["created_at"] + window:
            yield f"{job['id']} may be pruned at {job['prune_at']}, within its key's window"
        dropped = job["state"] == State.CANCELLED and job["reason"] in ("expired", "parent")
        if (job["state"] == State.DEAD or dropped) != (job["reason"] is not None):
            yield f"{job['id']} is {job['state']} with reason {job['reason']!r}"


def _counters(jobs: list[Row]) -> Iterator[str]:
    for job in jobs:
        attempts, failures, stalls, shared = (job[name] for name in ("attempts", "failures", "stalls", "shared_stalls"))
        if min(attempts, failures, stalls, shared) < 0:
            yield f"{job['id']} has a counter below 0"
        if failures + stalls + shared > attempts:
            yield f"{job['id']}: {failures} failures, {stalls} + {shared} stalls in {attempts} attempts"
        if len(job["errors"]) > ERRORS_KEPT_MAX:
            yield f"{job['id']} keeps {len(job['errors'])} errors"
        if job["state"] in LIVE and stalls > job["max_stalls"]:
            yield f"{job['id']} lives on after {stalls} stalls, {job['max_stalls']} are allowed"
        if job["state"] in LIVE and shared > SHARED_STALLS_MAX:
            yield f"{job['id']} lives on after {shared} shared stalls, {SHARED_STALLS_MAX} are allowed"
        if job["suspect"] and stalls + shared == 0:
            yield f"{job['id']} is a suspect and never stalled"


def _letters(jobs: list[Row], letters: list[DeadLetter], *, by_group: bool) -> Iterator[str]:
    by_id = {job["id"]: job for job in jobs}
    groups = {x.id: x.group if by_group else None for x in letters}
    logical = Counter((x.queue, x.task, x.key, groups[x.id]) if x.key is not None else (x.id,) for x in letters)
    yield from (f"{name} has {number} dead letters" for name, number in logical.items() if number > 1)
    for letter in letters:
        job = by_id.get(letter.id)
        if job is None:
            yield f"the letter of {letter.id} has no job"
            continue
        live = job["state"] in LIVE
        if not live and job["state"] != State.DEAD:
            yield f"{letter.id} is {job['state']} and its letter is still open"
        if live != (letter.revived_at is not None):
            yield f"{letter.id} is {job['state']}, its letter revived_at {letter.revived_at}"
        if live and letter.revive_at is not None:
            yield f"{letter.id} is live and due for automatic revival"
        if letter.failure_count < 1 + len(letter.history) or len(letter.history) > HISTORY_KEPT_MAX:
            yield f"letter of {letter.id}: count {letter.failure_count}, history {len(letter.history)}"


def _keys(jobs: list[Row], *, by_group: bool) -> Iterator[str]:
    """One holder per key; where the groups of a queue are in different shards, per key and group."""
    holding = [job for job in jobs if job["holds_key"]]
    keys = Counter((*_key(job, by_group=by_group), job["group"] if by_group else None) for job in holding)
    yield from (f"the key {name} has {number} holders" for name, number in keys.items() if number > 1)
    for job in jobs:
        live, holds = job["state"] in LIVE, bool(job["holds_key"])
        if job["key"] is None or job["key_window"] is not None:
            wrong = job["key"] is None and holds
        elif job["key_until"] == "finished":
            wrong = holds != live
        else:
            fresh = job["state"] in UNSTARTED and job["fence"] == 0
            wrong = (holds and job["state"] not in UNSTARTED) or (fresh and not holds)
        if wrong:
            yield f"{job['id']} is {job['state']}, key {job['key']} until {job['key_until']}, holds_key {holds}"


def _key(job: Row, *, by_group: bool) -> tuple[str | None, ...]:
    """What the key is one of; shards of two queues know nothing of each other."""
    wide = job["key_scope"] == "global" and not by_group
    return job["key_scope"], None if wide else job["queue"], job["task"], job["key"]


def _groups(jobs: list[Row], groups: list[GroupRecord]) -> Iterator[str]:
    shown = {(group.queue, group.name): group for group in groups}
    members: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for job in jobs:
        if job["group"] is not None and (job["state"] in LIVE or job["held"]):
            members[job["queue"], job["group"]].append(job)
        elif job["state"] == State.WAITING:
            yield f"{job['id']} waits and has no group"
    for name, found in members.items():
        if name in shown:
            yield from (f"group {name}: {fault}" for fault in _in_play(shown[name], found))
        else:
            yield f"group {name} has unfinished jobs or is stopped, and is not shown"
    for job in jobs:
        if job["held"] and job["state"] in (State.SUCCEEDED, State.CANCELLED):
            yield f"{job['id']} is {job['state']} and keeps its group's place"


def _in_play(group: GroupRecord, found: list[Row]) -> Iterator[str]:
    count = Counter(job["state"] for job in found)
    held = sum(1 for job in found if job["state"] in (State.SCHEDULED, State.DEAD) and job["held"])
    in_play = count[State.READY] + count[State.RUNNING] + held
    if count[State.READY] and in_play > group.limit:
        yield f"{in_play} in play, limit {group.limit}, {count[State.READY]} of them only ready"
    if count[State.READY] > READY_PER_GROUP_MAX:
        yield f"{count[State.READY]} are ready, {READY_PER_GROUP_MAX} may be"
    if count[State.WAITING] and in_play < group.limit and count[State.READY] < READY_PER_GROUP_MAX:
        # a rate may hold them back: then the claim of a ready one, or its time, brings the next
        wakes = group.flow is not None and group.flow.wakes_at is not None
        if group.rate is None or not (wakes or count[State.READY]):
            yield f"{count[State.WAITING]} wait although {in_play} of {group.limit} places are taken"


def _lanes(jobs: list[Row], pauses: list[Pause], apart: set[str]) -> Iterator[str]:
    parked = {pause.task for pause in pauses if pause.task is not None}
    for job in jobs:
        if job["state"] != State.READY:
            if job["rank"] != 0:
                yield f"{job['id']} is {job['state']} and has rank {job['rank']}"
            continue
        lane = 2 if job["task"] in parked else 3 if job["task"] in apart else 0 if job["group"] is None else 1
        if job["lane"] != lane:
            yield f"{job['id']} is in lane {job['lane']}, belongs into {lane}"
        if job["turn"] is None:
            yield f"{job['id']} is ready and has no turn"
        if job["rank"] not in (0, job["priority"]):
            yield f"{job['id']} has rank {job['rank']}, priority {job['priority']}"


def _apart(tasks: list[TaskRecord]) -> set[str]:
    """Tasks whose ready jobs have a lane of their own: by their rule, or by a limit or rate in force."""
    found: set[str] = set()
    for task in tasks:
        said = task.override or Override(limit=None, rate=None, apart=None)
        limit = said.limit if isinstance(said.limit, int) else task.rule.limit
        rate = said.rate if isinstance(said.rate, Rate) else task.rule.rate
        if (
            task.rule.apart
            or said.apart is True
            or (limit or UNLIMITED) < UNLIMITED
            or (rate is not None and not rate.none)
        ):
            found.add(task.rule.name)
    return found


def _running(jobs: list[Row], tasks: list[TaskRecord]) -> Iterator[str]:
    """What is shown as running is what runs."""
    running = Counter(job["task"] for job in jobs if job["state"] == State.RUNNING)
    for task in tasks:
        if task.running != running[task.rule.name]:
            yield f"task {task.rule.name} shows {task.running} running, {running[task.rule.name]} are"
