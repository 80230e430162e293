"""What a form does: one table of verbs, each with the role it needs and the change it makes.

Called by app.py after host, access, role, origin and token were checked. Returns the sentence shown afterwards and
where to go next. Errors of the store become that sentence; nothing is half done without saying so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from ..errors import HoldfastError
from .access import Refused, Role
from .store import Changes
from .words import num, short

IDS_MAX = 500  # selected jobs per request
Form = Mapping[str, Sequence[str]]
Run = Callable[[Changes, Form], Awaitable[str]]


class Verb(Struct, frozen=True):
    """One kind of change."""

    role: Role
    run: Run


def first(form: Form, name: str) -> str:
    """The value of a field; empty if it is not there."""
    return (form.get(name) or [""])[0].strip()


def _each(method: str, done: str) -> Run:
    """A verb that is carried out for each selected job; one refusal does not keep the others from it."""

    async def run(changes: Changes, form: Form) -> str:
        ids = list(dict.fromkeys(form.get("id", ())))
        if not ids:
            raise Refused(400, "Nothing was selected.")
        if len(ids) > IDS_MAX:
            raise Refused(400, f"At most {IDS_MAX} jobs at once; {num(len(ids))} were given.")
        extra = (first(form, "reason"),) if method == "bury" else ()
        refused: list[str] = []
        for id in ids:
            try:
                await getattr(changes, method)(id, *extra)
            except HoldfastError as error:
                refused.append(f"{short(id)}: {error}")
        count = len(ids) - len(refused)
        said = f"{num(count)} {'job' if count == 1 else 'jobs'} {done}."
        if refused:
            said += f" {num(len(refused))} refused, the first was {refused[0]}"
        return said

    return run


def _target(form: Form) -> dict[str, str]:
    """What a pause or a limit is for: a queue, a group of a queue, or a task."""
    target = {name: value for name in ("queue", "group", "task") if (value := first(form, name))}
    if not {"queue", "task"} & set(target):
        raise Refused(400, "The form names no queue and no task.")
    return target


def _shown(target: Mapping[str, str]) -> str:
    kind = next(name for name in ("group", "task", "queue") if name in target)
    return f"{kind} {target[kind]}"


async def _pause(changes: Changes, form: Form) -> str:
    target = _target(form)
    await changes.pause(target, first(form, "reason"))
    return f"Paused {_shown(target)}. Running jobs end normally; nothing new starts."


async def _resume(changes: Changes, form: Form) -> str:
    target = _target(form)
    await changes.resume(target)
    return f"Resumed {_shown(target)}."


async def _limit(changes: Changes, form: Form) -> str:
    target = _target(form)
    await changes.limit(target, _said(form, "limit", int), _said(form, "rate", str))
    return f"Changed the limits of {_shown(target)}. They hold until they are reset."


def _said(form: Form, name: str, kind: type) -> Any:
    """A limit as typed: empty leaves it as it is, `reset` goes back to the code's, `none` lifts it."""
    text = first(form, name)
    if not text:
        return UNSET
    if text == "reset":
        return None
    return kind(text) if kind is str or text.lstrip("-").isdecimal() else text


async def _pause_entry(changes: Changes, form: Form) -> str:
    await changes.pause_entry(first(form, "entry"), first(form, "reason"))
    return f"Paused {first(form, 'entry')}."


async def _resume_entry(changes: Changes, form: Form) -> str:
    await changes.resume_entry(first(form, "entry"))
    return f"Resumed {first(form, 'entry')}; ticks missed meanwhile are not made up for."


async def _run_entry(changes: Changes, form: Form) -> str:
    return f"Enqueued job {short(await changes.run_entry(first(form, 'entry')))} of {first(form, 'entry')}."


async def _enqueue(changes: Changes, form: Form) -> str:
    """A job of a task whose code the dashboard has: fields `arg.NAME`, JSON where they read as JSON, else text."""
    given = {field[4:]: value for field in form if field.startswith("arg.") and (value := first(form, field))}
    id = await changes.enqueue(first(form, "task"), given)
    return f"Enqueued job {short(id)} of {first(form, 'task')}."


VERBS: Mapping[str, Verb] = {
    "enqueue": Verb("operate", _enqueue),
    "cancel": Verb("operate", _each("cancel", "cancelled or asked to stop")),
    "retry": Verb("operate", _each("retry", "ready again, with fresh budgets")),
    "run-now": Verb("operate", _each("run_now", "made due now")),
    "bury": Verb("operate", _each("bury", "buried")),
    "revive": Verb("operate", _each("revive", "revived")),
    "discard": Verb("destroy", _each("discard", "discarded")),
    "pause": Verb("operate", _pause),
    "resume": Verb("operate", _resume),
    "limit": Verb("operate", _limit),
    "cron-pause": Verb("operate", _pause_entry),
    "cron-resume": Verb("operate", _resume_entry),
    "cron-run": Verb("operate", _run_entry),
}


async def carry_out(verb: str, changes: Changes, form: Form) -> str:
    """Do it, and say what was done."""
    try:
        return await VERBS[verb].run(changes, form)
    except HoldfastError as error:
        return f"Not done: {error}"
