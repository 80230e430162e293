"""Dumps made by hand: a clean store, and rows to spoil it with. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.records import Dump

NOW = 1_000.0


def job(number: int, state: str, **fields: Any) -> dict[str, Any]:
    """A job's row that fits its state; `fields` spoil or refine it."""
    row: dict[str, Any] = {
        "id": f"job-{number}",
        "seq": number,
        "task": "mail.send",
        "queue": "mail",
        "state": state,
        "args": b"{}",
        "priority": 0,
        "group": None,
        "key": None,
        "attempts": 0,
        "failures": 0,
        "stalls": 0,
        "max_stalls": 3,
        "created_at": NOW,
        "due_at": NOW,
        "started_at": None,
        "finished_at": None,
        "fence": 0,
        "worker": None,
        "held": False,
        "cancel_requested": False,
        "reason": None,
        "errors": [],
        "key_scope": "queue",
        "key_until": "finished",
        "key_window": None,
        "token": None,
        "turn": None,
        "lane": 0,
        "claim_call": None,
        "prune_at": None,
    }
    if state == "running":
        row |= {"token": f"token-{number}", "worker": "w1", "fence": 100 + number, "started_at": NOW + number}
    if state in ("succeeded", "dead"):
        start = NOW + number
        row |= {"fence": 100 + number, "started_at": start, "finished_at": start + 0.5, "attempts": 1}
    if state == "cancelled":
        row["finished_at"] = NOW + number
    if state in ("succeeded", "cancelled"):
        row["prune_at"] = NOW + 86400
    if state == "dead":
        row |= {"reason": "failed", "failures": 1, "errors": [error(number, NOW + number, NOW + number + 0.5)]}
    row |= fields
    if "holds_key" not in fields:
        row["holds_key"] = row["key"] is not None and state not in ("succeeded", "cancelled", "dead")
    if "lane" not in fields and row["group"] is not None:
        row["lane"] = 1
    return row


def error(number: int, start: float, end: float, **fields: Any) -> dict[str, Any]:
    return {"at": end, "started_at": start, "fence": 100 + number, "reason": "failed", "attempt": 1, **fields}


def letter(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"job-{number}",
        "task": "mail.send",
        "queue": "mail",
        "key": None,
        "group": None,
        "failure_count": 1,
        "first_failed_at": NOW,
        "failed_at": NOW,
        "reason": "failed",
        "revived_at": None,
        **fields,
    }


def dump(*jobs: dict[str, Any], **tables: Any) -> Dump:
    """A dump of these jobs, with worker w1 registered."""
    return Dump(tables={"jobs": jobs, "workers": ({"id": "w1"},), **tables})


def clean() -> list[dict[str, Any]]:
    """Jobs in every state, nothing wrong with any of them."""
    return [
        job(1, "succeeded", group="ann"),
        job(2, "succeeded", group="ann"),
        job(3, "running", group="ann"),
        job(4, "waiting", group="ann"),
        job(5, "waiting", group="ann"),
        job(6, "ready"),
        job(7, "scheduled", due_at=NOW + 60),
        job(8, "cancelled"),
        job(9, "dead"),
        job(10, "scheduled", group="ben", held=True, due_at=NOW + 60, attempts=1, failures=1),
        job(11, "waiting", group="ben"),
        job(12, "ready", group="cid", key="k"),
        job(13, "ready", task="mail.parked", lane=2),
        job(14, "dead", reason="superseded", prune_at=NOW + 700),
        job(15, "ready", task="mail.capped", lane=3, group="dan"),
        job(16, "running", key="k2", key_until="started", holds_key=False),
        job(17, "scheduled", key="k2", key_until="started", due_at=NOW + 60),
        job(18, "succeeded", key="k3", key_window=90_000.0, holds_key=True, prune_at=NOW + 90_000),
    ]
