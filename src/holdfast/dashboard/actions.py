"""What forms and API calls do: one table of verbs, each with its role, its body and the change it makes.

Called by app.py and api.py after host, access, role and origin were checked. Returns an `Outcome` with the sentence
shown afterwards. If one of many jobs is refused, the others still change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from ..bulk import VERBS as BULK_VERBS
from ..bulk import BulkResult
from ..clock import duration_seconds
from ..errors import HoldfastError
from ..lifecycle import UNSTARTED, State
from ..options import RESET, UNLIMITED
from ..queries import make_query
from ..rates import parse_rate
from ..redact import HIDDEN
from ..worker_status import Ask
from .access import Refused, Role
from .formats import as_json, command, num, short, short_worker
from .request_bodies import (
    BULK_MAX,
    IDS_MAX,
    Backfill,
    Call,
    EntryName,
    JobEdit,
    Jobs,
    JobsEdit,
    Nothing,
    QueueName,
    Rescheduling,
    Revival,
    Target,
    WorkerAsk,
    WorkerSlots,
)
from .store import AUDIT_MAX, Changes, Reads

Form = Mapping[str, Sequence[str]]


class Refusal(Struct, frozen=True):
    """A job that was refused, and why."""

    id: str
    error: str


class Outcome(Struct, frozen=True):
    """What was done."""

    said: str
    command: str = ""  # the command line that does the same
    done: int = 1
    refused: list[Refusal] = []
    text: str = ""  # the requested text, if there is one: a worker's stacks


class Verb(Struct, frozen=True):
    """One kind of change."""

    role: Role
    body: type[Struct]
    run: Callable[[Changes, Any], Awaitable[Outcome]]
    about: str
    asks: bool = False  # cannot be undone: a form has to be confirmed
    line: tuple[str, ...] = ()  # the words of the command that does the same
    method: str = ""  # for many jobs: the method of app.bulk


def line_of(verb: Verb, body: Struct) -> str:
    """The command line that does the same."""
    words: list[str] = []
    match body:
        case Jobs():
            words = list(body.id) if body.query is None else ["--query", body.query]
            words += [word for name, value in _changes_of(body).items() for word in (f"--{name}", _word(name, value))]
        case QueueName():
            words = [body.queue]
        case Backfill():
            words = [body.entry, "--from", body.start, "--to", body.end]
        case WorkerSlots():
            words = [body.worker, str(body.slots)]
        case WorkerAsk():
            words = [body.worker]
        case EntryName():
            words = [body.entry]
    return command("holdfast", *verb.line, *words)


def _changes_of(body: Jobs) -> dict[str, Any]:
    """What else changes about each job, by the names that the app and the command line use."""
    names = ("queue", "priority", "delay", "rate", "args")
    return {name: value for name in names if (value := getattr(body, name, None)) not in (None, "")}


def _word(name: str, value: Any) -> str:
    if name == "delay":
        return f"{value:g}s"
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value)


async def carry_out(verb: Verb, changes: Changes, body: Struct) -> Outcome:
    """Make the change; the outcome names the command that does the same."""
    outcome = await verb.run(changes, body)
    return outcome if outcome.command or not verb.line else replace(outcome, command=line_of(verb, body))


class Preview(Struct, frozen=True):
    """How many jobs a change affects, shown before it is confirmed."""

    count: int
    complete: bool = True
    thing: str = "jobs"


async def preview(verb: Verb, body: Struct, reads: Reads, changes: Changes) -> Preview:
    """Count the jobs that the change affects: those in a state to which the verb applies."""
    match body:
        case Jobs(query=str(query)):
            tally = await reads.count(query, "state")
            states = make_query(query, {}).states or BULK_VERBS[verb.method]
            return Preview(sum(tally.groups.get(state.value, 0) for state in states), tally.complete)
        case Jobs():
            return Preview(len(body.id))
        case QueueName():
            counts = (await reads.counts()).get(body.queue, {})
            return Preview(sum(counts.get(state, 0) for state in (UNSTARTED if verb.line[-1] == "empty" else State)))
        case Backfill():
            ticks = await changes.backfill(body.entry, _moment(body.start), _moment(body.end), dry_run=True)
            return Preview(sum(tick.created for tick in ticks))
    return Preview(1, thing="workers")


def asks(verb: Verb, body: Struct) -> bool:
    """Whether it has to be confirmed: it cannot be undone, or it affects all jobs that match a query."""
    return verb.asks or (isinstance(body, Jobs) and body.query is not None)


def first(form: Form, name: str) -> str:
    """The value of a field; empty if it is not there."""
    return (form.get(name) or [""])[0].strip()


def body_of(verb: Verb, form: Form) -> Struct:
    """A form as the verb's body. If a field is given more than once, lists take all values, texts the first."""
    given: dict[str, Any] = {}
    for name in verb.body.__struct_fields__:
        if name == "args" and verb.body is not Call:
            given |= {name: _typed_args(text)} if (text := first(form, name)) else {}
        elif name == "args":
            given[name] = {
                field[4:]: value for field in form if field.startswith("arg.") and (value := first(form, field))
            }
        elif name == "query":
            given |= {name: "".join(form.get("query", ()))} if first(form, "matching") else {}
        elif name == "id" and issubclass(verb.body, Jobs):
            given[name] = list(dict.fromkeys(form.get(name, ())))
        elif name == "delay":
            given |= {name: _seconds(text)} if (text := first(form, name)) else {}
        elif first(form, name) or (name == "group" and name in form):
            given[name] = first(form, name)
    try:
        return msgspec.convert(given, verb.body, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(400, f"The form cannot be read: {error}") from None


def _seconds(text: str) -> float:
    """A duration as typed into a form."""
    seconds = duration_seconds(text)
    if seconds is None:
        raise Refused(400, f"{text[:40]!r} is not a duration. Write 90s, 15m, 2h or 7d.")
    return seconds


def _typed_args(text: str) -> dict[str, Any]:
    """Arguments as typed into a form: a JSON object."""
    value = as_json(text)
    if not isinstance(value, dict):
        raise Refused(400, "Arguments are a JSON object, by name.")
    if HIDDEN in text:
        raise Refused(400, "These arguments contain a hidden value: the mask itself would be stored.")
    return value


_REASONED = ("bury", "cancel")  # verbs that take a reason


def _each(method: str, done: str) -> Callable[[Changes, Jobs], Awaitable[Outcome]]:
    """A verb that is carried out for each selected job."""

    async def run(changes: Changes, jobs: Jobs) -> Outcome:
        made = _changes_of(jobs)
        if jobs.query is not None:
            more = {"reason": jobs.reason} if method in _REASONED else {}
            return _bulk_outcome(await changes.bulk(method, jobs.query, {**made, **more}), done)
        refused: list[Refusal] = []
        ids = list(dict.fromkeys(jobs.id))
        if not ids:
            raise Refused(400, "Nothing was selected.")
        rate = parse_rate(made.pop("rate")) if "rate" in made else None
        for place, id in enumerate(ids):
            given = made if rate is None else {**made, "delay": place * rate.every}
            try:
                await changes.one(method, id, {"reason": jobs.reason} if method in _REASONED else given)
            except HoldfastError as error:
                refused.append(Refusal(id, str(error)))
        count = len(ids) - len(refused)
        said = f"{num(count)} {'job' if count == 1 else 'jobs'} {done}."
        if refused:
            said += f" {num(len(refused))} refused; the first, {short(refused[0].id)}: {refused[0].error}"
        return Outcome(said, "", count, refused)

    return run


def _bulk_outcome(result: BulkResult, done: str) -> Outcome:
    """The outcome for all jobs that matched."""
    count = len(result.done)
    said = f"{num(count)} {'job' if count == 1 else 'jobs'} {done}."
    if len(result.matched) >= BULK_MAX:
        said += " That is the most that one request changes: if more match, repeat it, or use the command."
    if result.refused:
        said += f" {num(len(result.refused))} refused, the first: {next(iter(result.refused.values()))}"
    if result.stopped is not None:
        said += f" It stopped: {result.stopped}"
    refused = [Refusal(id, str(error)) for id, error in list(result.refused.items())[:IDS_MAX]]
    return Outcome(said, "", count, refused)


async def _edit_many(changes: Changes, jobs: JobsEdit) -> Outcome:
    if not _changes_of(jobs):
        raise Refused(400, "Give a new queue, a new priority, or both.")
    return await _each("edit", "changed")(changes, jobs)


async def _empty(changes: Changes, queue: QueueName) -> Outcome:
    return _bulk_outcome(await changes.empty(queue.queue), f"of queue {queue.queue} deleted")


async def _obliterate(changes: Changes, queue: QueueName) -> Outcome:
    if queue.confirm != queue.queue:
        raise Refused(400, f"To obliterate it, type its name: {queue.queue}.")
    return _bulk_outcome(await changes.obliterate(queue.queue), f"of queue {queue.queue} deleted, and its settings")


def _moment(text: str) -> datetime:
    """A time as typed: ISO 8601, in UTC unless it says otherwise."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Refused(400, f"{text!r} is not a time. Write 2030-01-31T09:00.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


async def _backfill(changes: Changes, body: Backfill) -> Outcome:
    ticks = await changes.backfill(body.entry, _moment(body.start), _moment(body.end))
    made = sum(tick.created for tick in ticks)
    kept = f" {num(len(ticks) - made)} had one already." if made < len(ticks) else ""
    return Outcome(f"Enqueued {num(made)} {'job' if made == 1 else 'jobs'} of {body.entry}.{kept}", done=made)


async def _audit(changes: Changes, _: Nothing) -> Outcome:
    audit = await changes.audit()
    looked = ", ".join(f"{num(count)} {name}" for name, count in audit.checked.items())
    if audit.holds:
        return Outcome(f"The audit holds: {looked}.")
    found = [f"{one.rule}  {one.job_id or ''}  {one.text}" for one in audit.violations]
    return Outcome(f"The audit found {num(len(found))} violations in {looked}.", text="\n".join(found))


async def _edit(changes: Changes, edit: JobEdit) -> Outcome:
    given = {name: getattr(edit, name) for name in ("args", "queue", "priority", "order", "delay")}
    given = {name: value for name, value in given.items() if value is not None}
    if edit.group is not None:
        given["group"] = edit.group or None
    if not await changes.edit(edit.id, given):
        return Outcome("Nothing was changed.", done=0)
    words = [word for name, value in given.items() for word in (f"--{name}", _word(name, value))]
    return Outcome(f"Changed job {short(edit.id)}.", command("holdfast", "edit", edit.id, *words))


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
    await changes.resume(named, skip_dead=target.skip_dead)
    more = ["--skip-dead"] if target.skip_dead else []
    return Outcome(f"Resumed {_shown(named)}.", command("holdfast", "resume", *_flags(named), *more))


async def _limit(changes: Changes, target: Target) -> Outcome:
    named = _target(target)
    await changes.limit(named, _said(target.limit, int), _said(target.rate, str))
    return Outcome(f"Changed the limits of {_shown(named)}. They apply until they are reset.")


def _said(text: str, kind: type) -> Any:
    """A limit as typed: empty keeps it, `reset` restores the code's, `none` lifts it."""
    if not text:
        return UNSET
    if text in ("reset", "none"):
        return RESET if text == "reset" else UNLIMITED
    return kind(text) if kind is str or (text.lstrip("-").isdecimal() and len(text) < 20) else text


async def _pause_entry(changes: Changes, entry: EntryName) -> Outcome:
    await changes.pause_entry(entry.entry, entry.reason)
    return Outcome(f"Paused {entry.entry}.")


async def _resume_entry(changes: Changes, entry: EntryName) -> Outcome:
    await changes.resume_entry(entry.entry)
    return Outcome(f"Resumed {entry.entry}; ticks missed while it was paused are not fired.")


async def _run_entry(changes: Changes, entry: EntryName) -> Outcome:
    id = await changes.run_entry(entry.entry)
    return Outcome(f"Enqueued job {short(id)} of {entry.entry}.")


async def _enqueue(changes: Changes, call: Call) -> Outcome:
    id = await changes.enqueue(call.task, call.args)
    words = [f"{name}={value}" for name, value in call.args.items()]
    return Outcome(f"Enqueued job {short(id)} of {call.task}.", command("holdfast", "enqueue", call.task, *words))


def _ask(ask: Ask) -> Callable[[Changes, WorkerAsk], Awaitable[Outcome]]:
    """Send a command to one worker, which receives it with its next renewal, and wait for its answer."""

    async def run(changes: Changes, about: WorkerAsk) -> Outcome:
        result = await changes.ask_worker(about.worker, ask)
        if ask == "stacks":
            return Outcome(f"Stacks of worker {short_worker(about.worker)}.", text=result)
        return Outcome(f"Worker {short_worker(about.worker)}: {result}.")

    return run


async def _slots(changes: Changes, about: WorkerSlots) -> Outcome:
    result = await changes.set_slots(about.worker, about.slots)
    return Outcome(f"Worker {short_worker(about.worker)}: {result}.")


def _many(
    role: Role, method: str, done: str, about: str, line: tuple[str, ...], body: type[Jobs] = Jobs, asks: bool = False
) -> Verb:
    return Verb(role, body, _each(method, done), about, asks, line, method)


VERBS: Mapping[str, Verb] = {
    "cancel": _many("operate", "cancel", "cancelled or asked to stop", "Cancel jobs.", ("cancel",)),
    "retry": _many("operate", "retry", "ready again, with fresh budgets", "Run jobs again.", ("retry",)),
    "run-now": _many("operate", "run_now", "made due now", "Make scheduled jobs due now.", ("run-now",)),
    "bury": _many("operate", "bury", "buried", "Bury jobs that have not started.", ("bury",)),
    "revive": _many("operate", "revive", "revived", "Revive dead letters.", ("dead", "revive"), Revival),
    "discard": _many("destroy", "discard", "discarded", "Discard dead letters.", ("dead", "discard"), asks=True),
    "delete": _many("destroy", "delete", "deleted", "Delete jobs that are not running.", ("delete",), asks=True),
    "reschedule": _many(
        "operate", "reschedule", "rescheduled", "Change when jobs that have not started are due.", ("reschedule",),
        Rescheduling,
    ),
    "edit-many": Verb(
        "operate", JobsEdit, _edit_many, "Move jobs that have not started to another queue, or change their priority.",
        line=("edit",), method="edit",
    ),
    "edit": Verb("operate", JobEdit, _edit, "Change a job that has not started.", line=("edit",)),
    "empty": Verb("destroy", QueueName, _empty, "Delete the unstarted jobs of a queue.", True, ("queues", "empty")),
    "obliterate": Verb(
        "destroy", QueueName, _obliterate, "Delete all jobs, dead letters and operators' settings of a queue.", True,
        ("queues", "obliterate"),
    ),
    "pause": Verb("operate", Target, _pause, "Pause a queue, a group or a task."),
    "resume": Verb("operate", Target, _resume, "End a pause."),
    "limit": Verb("operate", Target, _limit, "Override a limit or a rate."),
    "cron-pause": Verb("operate", EntryName, _pause_entry, "Pause a cron entry.", line=("cron", "pause")),
    "cron-resume": Verb("operate", EntryName, _resume_entry, "Resume a cron entry.", line=("cron", "resume")),
    "cron-run": Verb("operate", EntryName, _run_entry, "Enqueue a job of a cron entry now.", line=("cron", "run")),
    "cron-backfill": Verb(
        "operate", Backfill, _backfill, "Enqueue jobs for past ticks that have none.", True, ("cron", "backfill")
    ),
    "worker-pause": Verb(
        "operate", WorkerAsk, _ask("pause"), "Make a worker stop claiming jobs.", line=("workers", "pause")
    ),
    "worker-resume": Verb(
        "operate", WorkerAsk, _ask("resume"), "Make a paused worker claim jobs again.", line=("workers", "resume")
    ),
    "worker-slots": Verb(
        "operate", WorkerSlots, _slots, "Change how many slots a worker uses.", line=("workers", "slots")
    ),
    "worker-stacks": Verb(
        "operate", WorkerAsk, _ask("stacks"), "Show the stacks of a worker's handlers.", line=("workers", "stacks")
    ),
    "worker-stop": Verb(
        "destroy", WorkerAsk, _ask("stop"), "Stop a worker gracefully, like SIGTERM.", True, ("workers", "stop")
    ),
    "audit": Verb(
        "operate", Nothing, _audit, f"Check the store against every guarantee, if it has at most {AUDIT_MAX:,} jobs.",
        line=("audit",),
    ),
    "enqueue": Verb("operate", Call, _enqueue, "Enqueue a job of a task of the app that the dashboard was given."),
}  # fmt: skip
