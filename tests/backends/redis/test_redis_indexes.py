"""Every index agrees with the records: after each step of random walks all of them are rebuilt and compared.

Claims, refills and counts read indexes only. One that differs from its job is a job never found, or found twice.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, defaultdict
from typing import Any

import pytest
import redis

from holdfast.backends.redis import codec, limits
from holdfast.backends.redis.keys import KEY_NAMES, KEY_TYPES, keys_of
from holdfast.backends.redis.layouts import FIELDS, TERMS
from holdfast.testing.conformance import World
from holdfast.testing.conformance.walk import FlowWalk, Walk
from tests.servers.valkey import hash_of, scores_of

from ...servers import valkey

STEPS = 120
TURN_ZERO = 2**52
UNSTARTED = "swr"

Indexes = defaultdict[str, dict[bytes, float]]


def _place(queue: str, name: str | bool) -> bytes:
    return codec.escaped(queue) + (codec.escaped(str(name)) if name else b"\1\0")


def _key_name(job: dict[str, Any]) -> bytes:
    terms, key = job["terms"], str(job["key"]).encode()
    if isinstance(terms, list) and terms[0]:
        return b"g" + codec.escaped(job["task"]) + key
    return b"k" + codec.escaped(job["queue"]) + codec.escaped(job["task"]) + key


def _list_live(job: dict[str, Any], found: Indexes) -> None:
    job_id, state, lane, queue = job["id"].encode(), job["state"], job["lane"], job["queue"]
    held = b"0" if job["held"] else b"1"
    if state == "r":
        rank = 0 if lane & 4 else job["priority"]
        tail = struct.pack(">IQQd", 2**31 - rank, job["turn"] + TURN_ZERO, job["seq"], job["due_at"]) + job_id
        if lane % 4 == 3:
            found["apart"][_place(queue, job["task"]) + tail] = 0.0
        else:
            found["ready"][codec.escaped(queue) + b"%d" % (lane % 4) + tail] = 0.0
        if lane & 8:
            found["staged"][_place(queue, job["group"]) + struct.pack(">Q", job["turn"] + TURN_ZERO) + job_id] = 0.0
    elif state == "x":
        numbers = struct.pack(">QQ", job["fence"], job["seq"])
        found["running"][codec.escaped(job["worker"]) + numbers + codec.escaped(queue) + job_id] = 0.0
    elif state == "w":
        order = job["terms"][-1] if isinstance(job["terms"], list) and len(job["terms"]) == len(TERMS) else False
        between = b"" if order is False else b"\1" + struct.pack(">Q", order + TURN_ZERO)
        rank_ = struct.pack(">I", 2**31 - job["priority"]) + between + struct.pack(">Q", job["seq"])
        found["waiting"][_place(queue, job["group"]) + held + rank_ + job_id] = 0.0
    elif state == "s":
        due = struct.pack(">dQ", max(0.0, job["due_at"]), job["seq"])
        found["scheduled"][_place(queue, job["group"]) + held + due + job_id] = 0.0
        found["due"][struct.pack(">Q", job["seq"]) + job_id] = job["due_at"]
    if job["group"] and (state in "rx" or (state in "sd" and job["held"])):
        found["play"][_place(queue, job["group"]) + job_id] = 0.0


def _list(job: dict[str, Any], found: Indexes) -> None:
    job_id, state = job["id"].encode(), job["state"]
    found["seqs"][job_id] = job["seq"]
    _list_live(job, found)
    if state in "ocd":
        seq = struct.pack(">Q", job["seq"])
        found["finished"][state.encode() + codec.escaped(job["queue"]) + seq + job_id] = 0.0
        if job["prune_at"]:
            found["prunable"][job_id] = job["prune_at"]
        if state != "d":
            ended = struct.pack(">dQ", job["finished_at"], job["seq"])
            found["kept"][codec.escaped(job["task"]) + ended + job_id] = 0.0
    elif state in UNSTARTED and job["expires_at"]:
        found["expiring"][job_id] = job["expires_at"]


def _list_letters(letters: dict[bytes, bytes], seqs: dict[str, int], found: Indexes) -> None:
    for logical, packed in letters.items():
        letter = codec.letter(packed)
        found["holders"][codec.escaped(letter.id) + logical] = 0.0
        found["failed"][logical] = letter.failed_at
        when = struct.pack(">dQ", letter.failed_at, seqs[letter.id])
        found["dead"][codec.escaped(letter.task) + when + logical] = 0.0
        if letter.revive_at is not None:
            found["revivals"][logical] = letter.revive_at


def _list_flows(client: redis.Redis, key: dict[str, str], found: Indexes) -> None:
    for name in ("flows", "group_flows"):
        for scope, packed in hash_of(client, key[name]).items():
            spent_until, shut_until, wakes_at = codec.unpack(packed)
            found["lapsing"][scope] = float("inf") if wakes_at else max(spent_until, shut_until)
            if wakes_at:
                found["waking"][scope] = wakes_at


def _list_rollups(client: redis.Redis, key: dict[str, str], found: Indexes) -> None:
    for name in hash_of(client, key["rollups"]):
        start = float(name[1:].partition(b"\0")[0])
        found["minutes" if name.startswith(b"m") else "hours"][name] = start


def _kept(
    client: redis.Redis, key: dict[str, str], finished: dict[bytes, float], there: dict[bytes, float]
) -> dict[bytes, float]:
    """Which finished jobs are to be listed: those of tasks that keep a number of them, unless prune is still to list
    those that finished before. Others may be, whose task once kept some."""
    said = [item for pair in hash_of(client, key["tasks"]).items() for item in pair]
    keeping = [codec.escaped(rule.name) for rule in limits.task_rules(said) if rule.retain_count is not None]
    listed = {one for one in finished if not client.hexists(key["meta"], "listing") and one.startswith(tuple(keeping))}
    return {one: 0.0 for one in finished if one in listed or one in there}


# Of workers; of statistics, which outlive the jobs; of ids whose jobs are gone.
OF_NO_JOB = {"deadlines", "minutes", "hours", "remembered"}


def audit(client: redis.Redis, prefix: str) -> list[str]:
    """Where an index of the store says something else than its records."""
    key = dict(zip(KEY_NAMES, keys_of(prefix), strict=True))
    jobs = [dict(zip(FIELDS, codec.unpack(one), strict=True)) for one in hash_of(client, key["jobs"]).values()]
    found: Indexes = defaultdict(dict)
    for job in jobs:
        _list(job, found)
    _list_letters(hash_of(client, key["letters"]), {job["id"]: job["seq"] for job in jobs}, found)
    _list_flows(client, key, found)
    _list_rollups(client, key, found)
    faults = []
    for name in (name for name, kind in KEY_TYPES.items() if kind == "zset" and name not in OF_NO_JOB):
        there = scores_of(client, key[name])
        if name == "kept":
            found[name] = _kept(client, key, found[name], there)
        if there != found[name]:
            more, less = there.items() - found[name].items(), found[name].items() - there.items()
            faults.append(f"{name}: {sorted(more)} too many, {sorted(less)} missing")
    running = Counter(part for job in jobs if job["state"] == "x" for part in ("q" + job["queue"], "t" + job["task"]))
    busy = {scope.decode(): int(number) for scope, number in hash_of(client, key["busy"]).items()}
    if busy != dict(running):
        faults.append(f"busy: {busy}, and {dict(running)} run")
    holding = {_key_name(job): job["id"].encode() for job in jobs if job["key"] and _holds(job)}
    if client.hgetall(key["keyed"]) != holding:
        faults.append(f"keyed: {client.hgetall(key['keyed'])}, and these hold: {holding}")
    used = client.hget(key["meta"], "used") or b""
    unsaid = [letter for letter, name in _USED.items() if client.hlen(key[name]) and letter.encode() not in used]
    return [*faults, *(f"used does not say {letter}" for letter in unsaid)]


_USED = {"p": "pauses", "o": "overrides", "t": "tasks", "f": "flows", "g": "group_flows", "d": "letters"}


def _holds(job: dict[str, Any]) -> bool:
    terms = job["terms"]
    return bool(terms[5] if isinstance(terms, list) else terms)


@pytest.mark.parametrize("seed", range(2000, 2006))
@pytest.mark.parametrize("kind", [Walk, FlowWalk])
def test_indexes_and_numbers_are_those_of_the_records(kind: type[Walk], seed: int) -> None:
    async def run() -> None:
        world = await World.create(valkey.fresh_stores())
        prefix = world.backend.prefix  # type: ignore[attr-defined]
        with valkey.shared_server().client() as client:
            walk = kind(world, seed)
            for number in range(STEPS):
                name, answer = await walk.step()
                faults = audit(client, prefix)
                assert not faults, f"seed {seed}, step {number}, {name} → {answer}:\n" + "\n".join(faults)
            assert await world.backend.flaws() == []
        await world.close()

    asyncio.run(run())


def test_an_index_that_lacks_a_job_and_a_number_that_is_off_are_found() -> None:
    async def run() -> None:
        world = await World.create(valkey.fresh_stores())
        prefix = world.backend.prefix  # type: ignore[attr-defined]
        key = dict(zip(KEY_NAMES, keys_of(prefix), strict=True))
        await world.enqueue(key="k")
        await world.leased(1)
        with valkey.shared_server().client() as client:
            assert audit(client, prefix) == []
            client.hincrby(key["busy"], "tother", 1)
            client.delete(key["keyed"])
            client.zrem(key["seqs"], "job-000001")
            assert [fault.partition(":")[0] for fault in audit(client, prefix)] == ["seqs", "busy", "keyed"]
        await world.close()

    asyncio.run(run())
