"""Refusals that all stores word alike: a verb while it is sealed, a shipment that does not fit its seal, an
impossible limit; and the encoding of seals.

Called by every store's seal and carry, by the verbs a seal refuses, and by limit and declare. Pure functions; no store
access.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..errors import ConfigurationError, StoreSealed
from ..lifecycle import State
from ..names import check_dead_queue
from ..records import GROUP_WEIGHT_MAX, Flow, Override, Pause, QueueRule, Seal, Shipment, TaskRule
from ..steps import SIGNALS_MAX
from ..worker_status import COMMANDS_KEPT_MAX

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Seal).decode


def written(seal: Seal) -> str:
    """The seal as stored: equal seals have equal text."""
    return _encode(seal).decode()


def read(record: str) -> Seal:
    return _decode(record)


def refusal(seal: Seal) -> StoreSealed:
    """The error of a verb that a sealed store refuses."""
    return StoreSealed(role=seal.role, stage=seal.stage, other=seal.other)


def is_new_target(seal: Seal | None, before: Seal | None) -> bool:
    """Whether this seal makes the store the target of a move it was not part of; the store must then be empty."""
    return seal is not None and seal.role == "target" and (before is None or before.move != seal.move)


def refuse_unless_empty(jobs: int, letters: int, overrides: int, pauses: int, entries: int) -> None:
    """A target may hold only what the move brings."""
    held = {
        "jobs": jobs,
        "dead letters": letters,
        "overrides": overrides,
        "pauses": pauses,
        "cron entries": entries,
    }
    found = [f"{number} {what}" for what, number in held.items() if number]
    if found:
        raise ConfigurationError(
            f"the target of a move must be empty, and this store holds {', '.join(found)}. "
            "Name a store that has never been used."
        )


def check_carry(seal: Seal | None, move: str, shipment: Shipment) -> Seal:
    """Return the seal if it accepts the shipment, else raise."""
    if seal is None or not seal.closed:
        raise ConfigurationError("this store is not the target of a move in progress. Start the move again.")
    if seal.move != move or seal.role != "target" or seal.stage != "moving":
        raise refusal(seal)
    if any(job.state is State.RUNNING for job in shipment.jobs):
        raise ConfigurationError("a running job cannot be carried to another store. Wait until its lease has ended.")
    return seal


def key_taken() -> ConfigurationError:
    """The error of a shipment that would create two live jobs with one key."""
    return ConfigurationError(
        "two live jobs of one queue and task have the same key, as a store of shards allows it in different groups; "
        "this store cannot hold both. Abandon the move, cancel one of them, and start again."
    )


def unreadable(what: str, name: str, fields: Iterable[str]) -> ConfigurationError:
    """The error of an export that meets an unreadable row."""
    return ConfigurationError(
        f"{what} {name!r} cannot be read ({', '.join(fields)}): a move copies everything or nothing. "
        "Repair or remove it, see `holdfast doctor`."
    )


# ---------------------------------------------------------------------- impossible limits


def place_of(wanted: Pause | Override | Flow, what: str) -> tuple[str, str, str]:
    """(kind, queue, name of the group or task): what a pause, override or rate applies to."""
    if wanted.task is not None and wanted.queue is None and wanted.group is None:
        return "task", "", wanted.task
    if wanted.task is None and wanted.queue is not None:
        return ("queue", wanted.queue, "") if wanted.group is None else ("group", wanted.queue, wanted.group)
    raise ConfigurationError(f"{what} is of a queue, of a group (queue and group) or of a task. Name one of them.")


def too_many_signals(job_id: str) -> ConfigurationError:
    """The error of a signal to a job that has as many as it can have."""
    return ConfigurationError(
        f"job {job_id} already has {SIGNALS_MAX} signals, the most a job can have. Send one signal with all the values."
    )


def too_many_commands(worker: str) -> ConfigurationError:
    """The error of a command to a worker that has not answered the earlier ones."""
    return ConfigurationError(
        f"worker {worker} has {COMMANDS_KEPT_MAX} commands that it has not answered. It receives them with its "
        "renewals: `holdfast workers` shows when it last renewed."
    )


def check_limit(limit: object, what: str) -> None:
    """Refuse a limit below 1; None and UNSET are not checked."""
    if isinstance(limit, int) and limit < 1:
        raise ConfigurationError(f"{what} must be at least 1, not {limit}. To stop it, pause it.")


def check_rules(rules: Iterable[QueueRule], tasks: Iterable[TaskRule]) -> None:
    """Refuse rules with an invalid limit."""
    for rule in rules:
        check_limit(rule.group_limit, f"group_limit of queue {rule.name!r}")
        check_limit(rule.limit, f"limit of queue {rule.name!r}")
        check_dead_queue(rule.dead_queue, rule.name)
    for task in tasks:
        check_limit(task.limit, f"limit of task {task.name!r}")


def check_weight(override: Override) -> None:
    """Refuse a weight of anything but a group, or out of range; None and UNSET are not checked."""
    if not isinstance(override.weight, int):
        return
    if override.group is None:
        raise ConfigurationError("only a group has a weight.")
    if not 1 <= override.weight <= GROUP_WEIGHT_MAX:
        raise ConfigurationError(
            f"the weight of group {override.group!r} must be from 1 to {GROUP_WEIGHT_MAX}, not {override.weight}."
        )


def strict_limit(queue: str, limit: int) -> ConfigurationError:
    return ConfigurationError(
        f"queue {queue!r} is strict: its groups run one job at a time, so {limit} cannot hold. "
        'Declare the queue with group_order="relaxed" first.'
    )
