"""Putting together what many shards show: jobs, letters, queues, groups, workers and the dump.

Called by backend.py. Pure: takes what was read. Jobs are in the order of their seqs, which is the order in which they
were stored within a shard, and over all shards as far as their clocks and loads agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from ...lifecycle import State
from ...records import DeadLetter, Dump, GroupRecord, JobRecord, QueueRecord, WorkerRecord
from ...rules import Flow, TaskRecord, TaskRule
from .sharding import call_of, signed
from .ticking import NOTED

Row = Mapping[str, Any]


def newest_first(found: Iterable[Sequence[JobRecord]], limit: int) -> list[JobRecord]:
    """Pages of several shards, each newest first, as one page."""
    return list(islice(heapq.merge(*found, key=lambda job: -job.seq), max(limit, 0)))


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
    """Rules, overrides and pauses as home has them; counts, the oldest due time and the bucket of all shards."""
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
    """Rules and overrides as home has them; what runs, and the bucket, of all shards."""
    total = {record.rule.name: record for record in home}
    flows: dict[str, Flow] = {}
    for record in (record for part in found for record in part):
        name = record.rule.name
        if record.flow is not None:
            flows[name] = _fuller(record.flow, flows.get(name))
        elif name not in total:
            continue  # a rule that is gone from home and on its way out of the shards
        known = total.get(name, TaskRecord(rule=TaskRule(name=name)))
        total[name] = replace(known, running=known.running + record.running)
    return [replace(total[name], flow=flows.get(name, total[name].flow)) for name in sorted(total)]


def _fuller(flow: Flow, other: Flow | None) -> Flow:
    """Of the buckets of several shards that are one: full again, and open, when the last of them is."""
    if other is None:
        return flow
    spent, shut = max(flow.spent_until, other.spent_until), max(flow.shut_until, other.shut_until)
    return replace(flow, spent_until=spent, shut_until=shut)


def flows_of(home: Iterable[Flow], found: Iterable[Iterable[Flow]]) -> list[Flow]:
    """The buckets of all shards, one per queue, group and task; home's where no shard has that one yet."""
    total: dict[tuple[str, str, str], Flow] = {}
    for flow in (flow for part in found for flow in part):
        total[_scope(flow)] = _fuller(flow, total.get(_scope(flow)))
    for flow in home:
        total.setdefault(_scope(flow), flow)
    return [total[scope] for scope in sorted(total)]


def _scope(flow: Flow) -> tuple[str, str, str]:
    return (flow.queue or "", flow.group or "", flow.task or "")


def groups_of(home: Sequence[GroupRecord], found: Iterable[Sequence[GroupRecord]], limit: int) -> list[GroupRecord]:
    """A group is shown by the shard it is in; what only home knows of it, by home."""
    total = {(record.queue, record.name): record for record in home}
    for record in (record for part in found for record in part):
        known = total.get((record.queue, record.name))
        total[record.queue, record.name] = replace(record, pause=known.pause) if known is not None else record
    return [total[name] for name in sorted(total)[:limit]]


def workers_of(home: Sequence[WorkerRecord], found: Iterable[Sequence[WorkerRecord]]) -> list[WorkerRecord]:
    """One row per worker, as home has it where it does, with all the leases its rows hold together."""
    total = {record.id: record for record in home}
    for record in (record for part in found for record in part):
        known = total.get(record.id)
        total[record.id] = record if known is None else replace(known, running=known.running + record.running)
    return list(total.values())


def dump_of(home: Dump, found: Mapping[str, Dump], shards: Mapping[str, int]) -> Dump:
    """One picture made of the shards' pictures, each consistent in itself. `shards` is the number of each queue's."""
    jobs = [_job_row(name, row) for name, dump in found.items() for row in dump.tables["jobs"]]
    tables = dict(home.tables)
    tables["jobs"] = tuple(sorted(jobs, key=lambda row: row["seq"]))
    tables["workers"] = _worker_rows([home, *found.values()])
    tables["queues"] = tuple({**row, "shards": shards.get(row["name"], 1)} for row in home.tables["queues"])
    order = {row["id"]: row["seq"] for row in jobs}
    logs = (row for dump in found.values() for row in dump.tables["logs"])
    tables["logs"] = tuple(sorted(logs, key=lambda row: order[row["job_id"]]))
    tables["letters"] = tuple(row for dump in found.values() for row in dump.tables["letters"])
    flows = [[msgspec.convert(row, Flow) for row in dump.tables["flows"]] for dump in (home, *found.values())]
    tables["flows"] = tuple(msgspec.to_builtins(flow) for flow in flows_of(flows[0], flows[1:]))
    pending = any(dump.rearranging for dump in (home, *found.values()))
    return Dump(tables=tables, sharded=True, rearranging=pending)


def _job_row(shard: str, row: Row) -> dict[str, Any]:
    token, call = row["token"], row["claim_call"]
    return {
        **row,
        "token": None if token is None else signed(shard, token),
        "claim_call": None if call is None else call_of(call),
    }


def _worker_rows(dumps: Sequence[Dump]) -> tuple[dict[str, Any], ...]:
    """One row per worker, home's where it has one, with the latest call any shard has seen."""
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for dump in dumps for row in dump.tables["workers"]):
        known = rows.setdefault(row["id"], {**row, "last_call": 0})
        known["last_call"] = max(known["last_call"], call_of(row["last_call"]))
    return tuple(rows[name] for name in sorted(rows))
