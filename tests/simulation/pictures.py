"""Pictures of a store and of the model in the same words, and what must hold in every picture whatever the model says.

Called by the random walk after every step. Pure: takes dumps that were already made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.records import Dump

from .model import Model
from .shapes import ModelJob

Row = dict[str, Any]
Tables = dict[str, list[Row]]

LIVE = ("scheduled", "waiting", "ready", "running")
AS_STORED = (
    *("task", "queue", "state", "args", "priority", "group", "key", "attempts", "failures", "stalls", "due_at"),
    *("shared_stalls", "suspect", "created_at", "key_scope", "key_until", "key_window", "holds_key", "due_max"),
    "on_expire",
    *("expires_at", "started_at", "finished_at", "prune_at", "value", "progress", "reason", "worker", "options"),
)
WORDED_BY_STORE = ("stalled", "expired")  # failures whose text is the store's own


def plain(dump: Dump) -> Tables:
    """The dump as builtins: no enums, no structs."""
    return {
        table: [msgspec.to_builtins(dict(row), builtin_types=(bytes,)) for row in rows]
        for table, rows in dump.tables.items()
    }


# ---------------------------------------------------------------------- store and model, in the same words


def jobs_of_store(tables: Tables) -> dict[str, Row]:
    return {row["id"]: _job_of_store(row) for row in tables["jobs"]}


def _job_of_store(row: Row) -> Row:
    running, state = row["state"] == "running", row["state"]
    seen = {name: row[name] for name in AS_STORED}
    seen["held"] = bool(row["held"]) if state in (*LIVE, "dead") else None
    seen["begun"] = bool(row["begun"]) if running else None
    seen["cancel_requested"] = bool(row["cancel_requested"]) if running else None
    seen["call"] = row["claim_call"] if running else None
    seen["lane"] = row["lane"] if state == "ready" else None
    seen["leased"] = row["token"] is not None
    seen["errors"] = [(error.get("reason", "failed"), error.get("attempt", 0)) for error in row["errors"]]
    return seen


def jobs_of_model(model: Model) -> dict[str, Row]:
    return {job_id: _job_of_model(model, job) for job_id, job in model.jobs.items()}


def _job_of_model(model: Model, job: ModelJob) -> Row:
    ticket, state = job.ticket, job.state.value
    called = ("task", "queue", "key", "options", "key_scope", "key_until", "key_window", "on_expire")
    seen = {name: getattr(job.new if name in called else job, name, None) for name in AS_STORED}
    seen["state"] = state
    seen["worker"] = None if ticket is None else ticket.worker
    seen["held"] = job.held if state in (*LIVE, "dead") else None
    seen["begun"] = None if ticket is None else job.begun
    seen["cancel_requested"] = None if ticket is None else job.cancel_requested
    seen["call"] = None if ticket is None else ticket.call
    seen["lane"] = model.lane(job) if state == "ready" else None
    seen["leased"] = ticket is not None
    seen["errors"] = job.errors
    return seen


def rest_of_store(tables: Tables) -> Row:
    """Letters, workers, log lines and cron entries."""
    return {
        "letters": {
            row["id"]: (
                row["failure_count"],
                row["first_failed_at"],
                row["failed_at"],
                row["reason"],
                row["args"],
                [(past["job_id"], past["at"], past["reason"]) for past in row["history"]],
                row["cycles"],
                row["revive_at"],
                row["revived_at"],
            )
            for row in tables["letters"]
        },
        "workers": {row["id"]: (row["deadline"], row["last_call"], row["isolates"]) for row in tables["workers"]},
        "logs": [row["text"] for row in tables["logs"]],
        "entries": {row["name"]: row for row in tables["entries"]},
    }


def rest_of_model(model: Model) -> Row:
    return {
        "letters": {
            letter.id: (
                letter.count,
                letter.first_failed_at,
                letter.failed_at,
                letter.reason,
                letter.args,
                letter.history,
                letter.cycles,
                letter.revive_at,
                letter.revived_at,
            )
            for letter in model.letters.values()
        },
        "workers": {name: (one.deadline, one.last_call, one.isolates) for name, one in model.workers.items()},
        "logs": [line for job in model.jobs.values() for line in job.logs],
        "entries": {name: msgspec.to_builtins(x, builtin_types=(bytes,)) for name, x in model.entries.items()},
    }


def same(seen: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    """Assert equality; the message names what differs instead of printing everything."""
    if seen == wanted:
        return
    lines = []
    for key in sorted({*seen, *wanted}):
        left, right = seen.get(key, "missing"), wanted.get(key, "missing")
        if left != right and isinstance(left, Mapping) and isinstance(right, Mapping):
            names = sorted(name for name in {*left, *right} if left.get(name) != right.get(name))
            lines += [f"{key}.{name}: {left.get(name)!r}, not {right.get(name)!r}" for name in names]
        elif left != right:
            lines.append(f"{key}: {left!r}, not {right!r}")
    raise AssertionError(f"{what}:\n  " + "\n  ".join(lines))


# ---------------------------------------------------------------------- invariants


def check_invariants(tables: Tables) -> None:
    """What no history may break, judged from the picture alone."""
    jobs = tables["jobs"]
    wide = {"global": None}
    held = [
        (wide.get(row["key_scope"], row["queue"]), row["key_scope"], row["task"], row["key"])
        for row in jobs
        if row["holds_key"]
    ]
    assert len(held) == len(set(held)), f"a key is held twice: {sorted(held, key=repr)}"
    logical = [
        (row["queue"], row["task"], row["key"]) if row["key"] is not None else (row["id"],) for row in tables["letters"]
    ]
    assert len(logical) == len(set(logical)), f"a logical job has two letters: {sorted(logical)}"
    workers = {row["id"] for row in tables["workers"]}
    for row in jobs:
        running = row["state"] == "running"
        assert running == (row["token"] is not None), f"{row['id']} is {row['state']} with token {row['token']!r}"
        assert not running or row["worker"] in workers, f"{row['id']} runs on unknown worker {row['worker']}"
        assert (row["state"] in LIVE) == (row["finished_at"] is None), f"{row['id']}: finished_at and state disagree"
    letters = {row["id"] for row in tables["letters"]}
    for row in jobs:
        if row["state"] == "dead" and row["id"] not in letters:
            assert row["reason"] in ("superseded", "discarded"), f"{row['id']} is dead ({row['reason']}), no letter"
            assert row["prune_at"] is not None, f"{row['id']} holds no letter, yet is kept for ever"


def check_groups(tables: Tables, limits: Mapping[tuple[str, str], int]) -> None:
    """Limits are kept, and no group with room lets its jobs wait."""
    for (queue, group), limit in limits.items():
        members = [row for row in tables["jobs"] if (row["queue"], row["group"]) == (queue, group)]
        states = Counter(row["state"] for row in members)
        held = sum(row["state"] in ("scheduled", "dead") and bool(row["held"]) for row in members)
        in_play = states["ready"] + states["running"] + held
        # what runs or backs off while a limit is lowered may exceed it; then nothing more is let in
        assert in_play <= max(limit, states["running"] + held), f"{queue}/{group}: {in_play} in play, limit {limit}"
        assert not (states["waiting"] and in_play < limit), f"{queue}/{group} is wedged: {dict(states)}, limit {limit}"


def check_order(tables: Tables, model: Model) -> None:
    """The lanes stand in the order in which the model saw their jobs come into play.

    Among the parked, grouped and ungrouped jobs are told apart: they will never be in one lane again.
    """
    ready = [row for row in tables["jobs"] if row["state"] == "ready"]
    lanes = {row["id"]: (row["queue"], row["lane"], row["group"] is not None) for row in ready}
    ready.sort(key=lambda row: (lanes[row["id"]], -row["priority"], row["turn"], row["seq"]))
    ranks = [(lanes[row["id"]], model.rank(model.jobs[row["id"]])) for row in ready]
    assert ranks == sorted(ranks), f"a lane is out of order: {[row['id'] for row in ready]}, {ranks}"


# ---------------------------------------------------------------------- two stores beside each other


def comparable(tables: Tables) -> dict[str, Row]:
    """A picture without chance and counters, so that two stores can be compared.

    The order of claims is not in it: jobs that came into play in the same step may stand in any order.
    """
    jobs = tables["jobs"]
    order = {"of enqueue": [row["id"] for row in sorted(jobs, key=lambda row: row["seq"])]}
    errors = {row["id"]: [_error(error, row) for error in row["errors"]] for row in jobs}
    letters = {
        row["id"]: {
            **{name: row[name] for name in ("task", "queue", "key", "group")},
            "error": None if row["error"] is None else _error(row["error"], {}),
            "history": [_past(past) for past in row["history"]],
        }
        for row in tables["letters"]
    }
    return {"jobs": jobs_of_store(tables), "order": order, "errors": errors, "letters": letters}


def _error(error: Row, row: Row) -> Row:
    seen = {name: value for name, value in error.items() if name != "fence"}
    seen["of the latest lease"] = bool(row) and error.get("fence") == row["fence"]
    if seen.get("reason") in WORDED_BY_STORE:
        seen.pop("text", None)
    return seen


def _past(past: Row) -> Row:
    return {name: value for name, value in past.items() if name != "error" or past["reason"] not in WORDED_BY_STORE}
