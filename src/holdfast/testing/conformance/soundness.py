"""What must hold in a dump at any moment, whatever happened before: the rules of the contract that need no history.

Called after every case, and by random walks after every step. Pure: reads a picture of the store, changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ...lifecycle import LIVE, State
from ...records import ERRORS_KEPT_MAX, HISTORY_KEPT_MAX, LOGS_KEPT_MAX
from .comparing import Tables

Row = dict[str, Any]


def faults(tables: Tables) -> list[str]:
    """Every rule that is broken, one line each; empty when the store is sound."""
    return [
        *_leases(tables),
        *_endings(tables),
        *_counters(tables),
        *_letters(tables),
        *_keys(tables),
        *_groups(tables),
        *_lanes(tables),
        *_logs(tables),
    ]


def sound(tables: Tables, when: str) -> None:
    """Assert that no rule is broken."""
    broken = faults(tables)
    assert not broken, f"{when}: the store is not sound\n  " + "\n  ".join(broken[:20])


def _leases(tables: Tables) -> Iterator[str]:
    workers = {row["id"] for row in tables["workers"]}
    tokens: Counter[str] = Counter()
    for job in tables["jobs"]:
        if job["state"] == State.RUNNING:
            if not job["token"] or job["worker"] not in workers:
                yield f"{job['id']} runs without a token or under a worker that is not there ({job['worker']})"
            tokens[job["token"]] += 1
        elif job["token"] is not None or job["worker"] is not None or job["claim_call"] is not None:
            yield f"{job['id']} is {job['state']} and keeps a token, worker or claim_call"
    yield from (f"a token is held by {n} jobs" for n in tokens.values() if n > 1)
    fences = Counter(job["fence"] for job in tables["jobs"] if job["fence"])
    yield from (f"fence {fence} belongs to {n} jobs" for fence, n in fences.items() if n > 1)


def _endings(tables: Tables) -> Iterator[str]:
    holders = {letter["id"] for letter in tables["letters"]}
    for job in tables["jobs"]:
        live = job["state"] in LIVE
        if live == (job["finished_at"] is not None):
            yield f"{job['id']} is {job['state']} with finished_at {job['finished_at']}"
        prunable = not live and job["id"] not in holders
        if prunable != (job["prune_at"] is not None):
            yield f"{job['id']} is {job['state']}, letter {job['id'] in holders}, with prune_at {job['prune_at']}"
        if (job["state"] == State.DEAD) != (job["reason"] is not None):
            yield f"{job['id']} is {job['state']} with reason {job['reason']!r}"


def _counters(tables: Tables) -> Iterator[str]:
    for job in tables["jobs"]:
        if min(job["attempts"], job["failures"], job["stalls"]) < 0:
            yield f"{job['id']} has a counter below 0"
        if job["failures"] + job["stalls"] > job["attempts"]:
            yield f"{job['id']}: {job['failures']} failures and {job['stalls']} stalls in {job['attempts']} attempts"
        if len(job["errors"]) > ERRORS_KEPT_MAX:
            yield f"{job['id']} keeps {len(job['errors'])} errors"
        if job["state"] in LIVE and job["stalls"] > job["max_stalls"]:
            yield f"{job['id']} lives on after {job['stalls']} stalls, {job['max_stalls']} are allowed"


def _logical(row: Row) -> tuple[str, ...]:
    return (row["queue"], row["task"], row["key"]) if row["key"] is not None else (row["id"],)


def _letters(tables: Tables) -> Iterator[str]:
    jobs = {job["id"]: job for job in tables["jobs"]}
    for logical, number in Counter(_logical(letter) for letter in tables["letters"]).items():
        if number > 1:
            yield f"{logical} has {number} dead letters"
    for letter in tables["letters"]:
        job = jobs.get(letter["id"])
        if job is None:
            yield f"the letter of {letter['id']} has no job"
            continue
        live = job["state"] in LIVE
        if not live and job["state"] != State.DEAD:
            yield f"{job['id']} is {job['state']} and its letter is still open"
        if live != (letter["revived_at"] is not None):
            yield f"{job['id']} is {job['state']}, its letter revived_at {letter['revived_at']}"
        if live and letter["revive_at"] is not None:
            yield f"{job['id']} is live and due for automatic revival"
        if letter["failure_count"] < 1 + len(letter["history"]) or len(letter["history"]) > HISTORY_KEPT_MAX:
            yield f"letter of {job['id']}: count {letter['failure_count']}, history {len(letter['history'])}"
        if letter["first_failed_at"] > letter["failed_at"] and not letter["history"]:
            yield f"letter of {job['id']}: the first failure is later than the latest"


def _keys(tables: Tables) -> Iterator[str]:
    live = Counter(_logical(job) for job in tables["jobs"] if job["state"] in LIVE)
    yield from (f"{logical} has {number} live jobs" for logical, number in live.items() if number > 1)


def _limits(tables: Tables, queue: str, group: str) -> tuple[int, bool]:
    """The group's effective limit, and whether it is strict, read off the stored rules."""
    rule = next((row for row in tables["queues"] if row["name"] == queue), None)
    strict = rule is None or rule["group_order"] == "strict"
    if any(pause["queue"] == queue and pause["group"] == group for pause in tables["pauses"]):
        return 0, strict
    if rule is None or strict:
        return 1, True
    override = next(
        (r for r in tables["groups"] if r["queue"] == queue and group in (r.get("name"), r.get("group"))), {}
    )
    given = override.get("override", override.get("limit"))
    return int(rule["group_limit"] if given is None else given), False


def _groups(tables: Tables) -> Iterator[str]:
    members: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for job in tables["jobs"]:
        if job["group"] is not None and job["state"] in LIVE:
            members[job["queue"], job["group"]].append(job)
        elif job["state"] == State.WAITING:
            yield f"{job['id']} waits and has no group"
    for (queue, group), jobs in members.items():
        count = Counter(job["state"] for job in jobs)
        held = sum(1 for job in jobs if job["state"] == State.SCHEDULED and job["held"])
        limit, _strict = _limits(tables, queue, group)
        in_play = count[State.READY] + count[State.RUNNING] + held
        if count[State.READY] and in_play > limit:
            yield f"group {group}: {in_play} in play, limit {limit}, and {count[State.READY]} of them only ready"
        if count[State.WAITING] and in_play < limit:
            yield f"group {group}: {count[State.WAITING]} wait although {in_play} of {limit} places are taken"


def _lanes(tables: Tables) -> Iterator[str]:
    parked = {pause["task"] for pause in tables["pauses"] if pause["task"] is not None}
    for job in tables["jobs"]:
        if job["state"] != State.READY:
            continue
        lane = 2 if job["task"] in parked else 0 if job["group"] is None else 1
        if job["lane"] != lane:
            yield f"{job['id']} is in lane {job['lane']}, belongs into {lane}"
        if job["turn"] is None:
            yield f"{job['id']} is ready and has no turn"


def _logs(tables: Tables) -> Iterator[str]:
    known = {job["id"] for job in tables["jobs"]}
    owners = Counter(
        next((row[c] for c in ("job_id", "job", "id") if row.get(c) in known), None) for row in tables["logs"]
    )
    if owners.pop(None, 0):
        yield "a log line belongs to no job"
    yield from (f"{job} keeps {number} log lines" for job, number in owners.items() if number > LOGS_KEPT_MAX)
