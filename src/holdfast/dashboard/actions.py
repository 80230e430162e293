"""What a form or a call of the API does: one table of verbs, each with its role, its body and the change it makes.

Called by app.py and api.py after host, access, role and origin were checked. Returns an `Outcome` with the sentence
shown afterwards. One refusal among many jobs does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct

from ..bulk import BulkResult
from ..errors import HoldfastError
from ..options import RESET, UNLIMITED
from ..redact import HIDDEN
from ..worker_status import Ask
from .access import Refused, Role
from .store import Changes
from .words import as_json, command, num, short

IDS_MAX = 500  # selected jobs per request
BULK_MAX = 1000  # jobs that match a query, per request
Form = Mapping[str, Sequence[str]]
Text = Annotated[str, Meta(max_length=2000)]


class Jobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Which jobs: by their full ids, or all that match a query, at most BULK_MAX of them in one call."""

    id: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=IDS_MAX)] = []
    query: Annotated[str, Meta(max_length=4000)] | None = None
    reason: Text = ""


class JobEdit(Struct, frozen=True, forbid_unknown_fields=True):
    """A job that has not started, and what becomes of it. What is not given stays."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    args: dict[str, Any] | None = None
    queue: Text | None = None
    group: Text | None = None  # empty: none
    priority: Annotated[int, Meta(ge=-100, le=100)] | None = None
    delay: Annotated[float, Meta(ge=0, le=10 * 366 * 86400)] | None = None  # due in this many seconds


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    """A queue, a group of a queue, or a task; why it is paused, or what its limits become."""

    queue: Text = ""
    group: Text = ""
    task: Text = ""
    reason: Text = ""
    limit: Text = ""  # a number, `none` to lift it, `reset` for the code's own; empty leaves it
    rate: Text = ""  # such as 5/s


class EntryName(Struct, frozen=True, forbid_unknown_fields=True):
    """A cron entry."""

    entry: Text
    reason: Text = ""


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    """A job to enqueue: a task of the app that the dashboard was given, and its arguments by name."""

    task: Text
    args: dict[str, Any] = {}


class WorkerAsk(Struct, frozen=True, forbid_unknown_fields=True):
    """One worker, by its full id."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]


class WorkerSlots(Struct, frozen=True, forbid_unknown_fields=True):
    """One worker, and how many slots it is to use."""

    worker: Annotated[str, Meta(min_length=1, max_length=200)]
    slots: Annotated[int, Meta(ge=1, le=100_000)]


class Refusal(Struct, frozen=True):
    """A job for which it was not done, and why."""

    id: str
    error: str


class Outcome(Struct, frozen=True):
    """What was done."""

    said: str
    command: str = ""  # the command line that does the same
    done: int = 1
    refused: list[Refusal] = []
    text: str = ""  # what was asked for, if that was a text: a worker's stacks


class Verb(Struct, frozen=True):
    """One kind of change."""

    role: Role
    body: type[Struct]
    run: Callable[[Changes, Any], Awaitable[Outcome]]
    about: str
    asks: bool = False  # cannot be undone: a form is asked once more


def asks(verb: Verb, body: Struct) -> bool:
    """Whether a person is to confirm it: it cannot be undone, or it is about all that match."""
    return verb.asks or (isinstance(body, Jobs) and body.query is not None)


def first(form: Form, name: str) -> str:
    """The value of a field; empty if it is not there."""
    return (form.get(name) or [""])[0].strip()


def body_of(verb: Verb, form: Form) -> Struct:
    """A form as the verb's body. Of a field that is given more than once, lists take all, texts the first."""
    given: dict[str, Any] = {}
    for name in verb.body.__struct_fields__:
        if name == "args" and "args" in form:
            given[name] = _typed_args(first(form, "args"))
        elif name == "args" and verb.body is Call:
            given[name] = {
                field[4:]: value for field in form if field.startswith("arg.") and (value := first(form, field))
            }
        elif name == "query":
            given |= {name: "".join(form.get("query", ()))} if first(form, "matching") else {}
        elif name in form and (verb.body is not JobEdit or first(form, name) or name == "group"):
            given[name] = list(dict.fromkeys(form[name])) if name == "id" and verb.body is Jobs else first(form, name)
    try:
        return msgspec.convert(given, verb.body, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, f"The form cannot be read: {error}") from None


def _typed_args(text: str) -> dict[str, Any]:
    """Arguments as typed into a form: a JSON object."""
    value = as_json(text)
    if not isinstance(value, dict):
        raise Refused(400, "Arguments are a JSON object, by name.")
    if HIDDEN in text:
        raise Refused(400, "These arguments have a hidden value, which would be stored as it is shown.")
    return value


def _each(method: str, done: str, line: tuple[str, ...]) -> Callable[[Changes, Jobs], Awaitable[Outcome]]:
    """A verb that is carried out for each selected job."""

    async def run(changes: Changes, jobs: Jobs) -> Outcome:
        if jobs.query is not None:
            return _bulk_outcome(await changes.bulk(method, jobs.query, jobs.reason, BULK_MAX), jobs.query, done, line)
        refused: list[Refusal] = []
        ids = list(dict.fromkeys(jobs.id))
        if not ids:
            raise Refused(400, "Nothing was selected.")
        for id in ids:
            try:
                await getattr(changes, method)(id, *((jobs.reason,) if method == "bury" else ()))
            except HoldfastError as error:
                refused.append(Refusal(id, str(error)))
        count = len(ids) - len(refused)
        said = f"{num(count)} {'job' if count == 1 else 'jobs'} {done}."
        if refused:
            said += f" {num(len(refused))} refused, the first was {short(refused[0].id)}: {refused[0].error}"
        return Outcome(said, command("holdfast", *line, *ids), count, refused)

    return run


def _bulk_outcome(result: BulkResult, query: str, done: str, line: tuple[str, ...]) -> Outcome:
    """What became of all jobs that matched."""
    count = len(result.done)
    said = f"{num(count)} {'job' if count == 1 else 'jobs'} {done}."
    if len(result.matched) >= BULK_MAX:
        said += " That is as many as one request takes: if more match, do it again, or use the command."
    if result.refused:
        said += f" {num(len(result.refused))} refused, the first: {next(iter(result.refused.values()))}"
    if result.stopped is not None:
        said += f" It stopped: {result.stopped}"
    refused = [Refusal(id, str(error)) for id, error in list(result.refused.items())[:IDS_MAX]]
    return Outcome(said, command("holdfast", *line, "--query", query), count, refused)


async def _edit(changes: Changes, edit: JobEdit) -> Outcome:
    given = {name: getattr(edit, name) for name in ("args", "queue", "priority", "delay")}
    given = {name: value for name, value in given.items() if value is not None}
    if edit.group is not None:
        given["group"] = edit.group or None
    if not await changes.edit(edit.id, given):
        return Outcome("Nothing was changed.", done=0)
    words = [word for name, value in given.items() for word in (f"--{name}", _word(value))]
    return Outcome(f"Changed job {short(edit.id)}.", command("holdfast", "edit", edit.id, *words))


def _word(value: Any) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)


def _target(target: Target) -> dict[str, str]:
    """What a pause or a limit is for: a queue, a group of a queue, or a task."""
    named = {name: value for name in ("queue", "group", "task") if (value := getattr(target, name))}
    if not {"queue", "task"} & set(named):
        raise Refused(400, "Neither a queue nor a task is named.")
    return named


def _shown(target: Mapping[str, str]) -> str:
    kind = next(name for name in ("group", "task", "queue") if name in target)
    return f"{kind} {target[kind]}"


def _flags(target: Mapping[str, str]) -> list[str]:
    return [word for name, value in target.items() for word in (f"--{name}", value)]


async def _pause(changes: Changes, target: Target) -> Outcome:
    named = _target(target)
    await changes.pause(named, target.reason)
    said = f"Paused {_shown(named)}. Running jobs end normally; nothing new starts."
    return Outcome(said, command("holdfast", "pause", *_flags(named)))


async def _resume(changes: Changes, target: Target) -> Outcome:
    named = _target(target)
    await changes.resume(named)
    return Outcome(f"Resumed {_shown(named)}.", command("holdfast", "resume", *_flags(named)))


async def _limit(changes: Changes, target: Target) -> Outcome:
    named = _target(target)
    await changes.limit(named, _said(target.limit, int), _said(target.rate, str))
    return Outcome(f"Changed the limits of {_shown(named)}. They hold until they are reset.")


def _said(text: str, kind: type) -> Any:
    """A limit as typed: empty leaves it as it is, `reset` goes back to the code's, `none` lifts it."""
    if not text:
        return UNSET
    if text in ("reset", "none"):
        return RESET if text == "reset" else UNLIMITED
    return kind(text) if kind is str or (text.lstrip("-").isdecimal() and len(text) < 20) else text


async def _pause_entry(changes: Changes, entry: EntryName) -> Outcome:
    await changes.pause_entry(entry.entry, entry.reason)
    return Outcome(f"Paused {entry.entry}.", command("holdfast", "cron", "pause", entry.entry))


async def _resume_entry(changes: Changes, entry: EntryName) -> Outcome:
    await changes.resume_entry(entry.entry)
    said = f"Resumed {entry.entry}; ticks missed while it was paused are not fired."
    return Outcome(said, command("holdfast", "cron", "resume", entry.entry))


async def _run_entry(changes: Changes, entry: EntryName) -> Outcome:
    id = await changes.run_entry(entry.entry)
    return Outcome(f"Enqueued job {short(id)} of {entry.entry}.", command("holdfast", "cron", "run", entry.entry))


async def _enqueue(changes: Changes, call: Call) -> Outcome:
    id = await changes.enqueue(call.task, call.args)
    words = [f"{name}={value}" for name, value in call.args.items()]
    return Outcome(f"Enqueued job {short(id)} of {call.task}.", command("holdfast", "enqueue", call.task, *words))


def _ask(ask: Ask) -> Callable[[Changes, WorkerAsk], Awaitable[Outcome]]:
    """A command for one worker: it carries it out with its next renewal, and this waits for its answer."""

    async def run(changes: Changes, about: WorkerAsk) -> Outcome:
        result = await changes.ask_worker(about.worker, ask)
        line = command("holdfast", "workers", ask, about.worker)
        if ask == "stacks":
            return Outcome(f"Stacks of worker {short(about.worker)}.", line, text=result)
        return Outcome(f"Worker {short(about.worker)}: {result}.", line)

    return run


async def _slots(changes: Changes, about: WorkerSlots) -> Outcome:
    result = await changes.set_slots(about.worker, about.slots)
    line = command("holdfast", "workers", "slots", about.worker, str(about.slots))
    return Outcome(f"Worker {short(about.worker)}: {result}.", line)


VERBS: Mapping[str, Verb] = {
    "cancel": Verb("operate", Jobs, _each("cancel", "cancelled or asked to stop", ("cancel",)), "Cancel jobs."),
    "retry": Verb("operate", Jobs, _each("retry", "ready again, with fresh budgets", ("retry",)), "Run jobs again."),
    "run-now": Verb("operate", Jobs, _each("run_now", "made due now", ("run-now",)), "Make scheduled jobs due now."),
    "bury": Verb("operate", Jobs, _each("bury", "buried", ("bury",)), "Bury jobs that have not started."),
    "revive": Verb("operate", Jobs, _each("revive", "revived", ("dead", "revive")), "Revive dead letters."),
    "discard": Verb("destroy", Jobs, _each("discard", "discarded", ("dead", "discard")), "Discard dead letters.", True),
    "delete": Verb("destroy", Jobs, _each("delete", "deleted", ("delete",)), "Delete jobs that are not running.", True),
    "edit": Verb("operate", JobEdit, _edit, "Change a job that has not started."),
    "pause": Verb("operate", Target, _pause, "Pause a queue, a group or a task."),
    "resume": Verb("operate", Target, _resume, "End a pause."),
    "limit": Verb("operate", Target, _limit, "Override a limit or a rate."),
    "cron-pause": Verb("operate", EntryName, _pause_entry, "Pause a cron entry."),
    "cron-resume": Verb("operate", EntryName, _resume_entry, "Resume a cron entry."),
    "cron-run": Verb("operate", EntryName, _run_entry, "Enqueue a job of a cron entry now."),
    "worker-pause": Verb("operate", WorkerAsk, _ask("pause"), "Have a worker claim nothing more."),
    "worker-resume": Verb("operate", WorkerAsk, _ask("resume"), "Have a paused worker claim again."),
    "worker-slots": Verb("operate", WorkerSlots, _slots, "Change how many slots a worker uses."),
    "worker-stacks": Verb("operate", WorkerAsk, _ask("stacks"), "Ask a worker where its handlers are."),
    "worker-stop": Verb("destroy", WorkerAsk, _ask("stop"), "Have a worker stop, as SIGTERM does.", True),
    "enqueue": Verb("operate", Call, _enqueue, "Enqueue a job of a task of the app that the dashboard was given."),
}
