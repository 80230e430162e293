"""The JSON API: one table of endpoints that read, the verbs of actions.py as endpoints that write, and their OpenAPI
document.

Called by app.py after the same checks as the pages. Every response is a struct of documents.py. Every read is
bounded: lists have a limit, counts stop at a cap and say so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from .. import __version__
from ..errors import ConfigurationError, JobNotFound
from ..inspection.explain import limit_in_force, rate_in_force
from ..inspection.history import HistoryEntry
from ..inspection.stats import By, Stats
from ..job import DeadLetter
from ..lifecycle import State
from ..queries import FIELDS, make_query
from ..queries.pages import GROUPINGS
from ..records import SORTS
from . import documents as d
from .access import Refused
from .actions import VERBS, Outcome
from .formats import signature
from .overview import SPANS, served_by
from .pages import gates_of
from .visit import NotFound, Values, Visit
from .work_api import STEPS

BYS: tuple[By, ...] = ("task", "queue", "worker")
LIMIT_MAX = 200
LIMIT = 50
JsonSchema = dict[str, Any]
TEXT: JsonSchema = {"type": "string", "maxLength": 2000}


class Parameter(Struct, frozen=True):
    """A parameter of the query string."""

    name: str
    about: str
    schema: JsonSchema = msgspec.field(default_factory=TEXT.copy)
    required: bool = False


class Endpoint(Struct, frozen=True):
    """One GET."""

    path: str
    about: str
    returns: Any
    run: Callable[[Visit], Awaitable[Any]]
    parameters: tuple[Parameter, ...] = ()


class ErrorReply(Struct, frozen=True):
    """What went wrong, as a sentence."""

    error: str


async def overview(visit: Visit) -> d.OverviewDocument:
    totals, workers = await visit.reads.totals(), await visit.reads.workers()
    live = [worker for worker in workers if not worker.expired]
    return d.OverviewDocument(
        counts={state.value: count for state, count in totals.items()},
        workers=len(live),
        slots=sum(worker.slots for worker in live),
        running=totals[State.RUNNING],
        findings=[d.finding_document(one) for one in await visit.reads.checks() if one.verdict != "fine"],
    )


async def jobs(visit: Visit) -> d.JobsDocument:
    given = visit.params
    query = make_query(given.get("q", ""), {}, given.get("sort") or None, given.get("after") or None)
    page = await visit.reads.page(msgspec.structs.replace(query, limit=limit_of(visit)))
    return d.JobsDocument(
        jobs=[d.job_document(visit, visit.reads.as_job(record)) for record in page.jobs],
        after=page.after,
        scanned=page.scanned,
        sorted_all=page.sorted_all,
    )


async def count(visit: Visit) -> d.TallyDocument:
    tally = await visit.reads.count(visit.params.get("q", ""), visit.params.get("by") or None)
    return d.TallyDocument(total=tally.total, groups=dict(tally.groups), scanned=tally.scanned, complete=tally.complete)


async def job(visit: Visit) -> d.WholeJobDocument:
    id = visit.params.get("id", "")
    found = await visit.reads.job(id)
    why = await visit.reads.explain(id)
    payload = visit.access.payload
    value = visit.args(found.task, {"result": found.value})
    return d.WholeJobDocument(
        job=d.job_document(visit, found),
        summary=why.summary,
        reasons=list(why.reasons) if payload else None,
        next=list(why.next),
        gates=[d.gate_document(gate) for gate in await gates_of(visit, found)],
        errors=[d.error_document(visit, error) for error in found.errors],
        value=None if value is None else value["result"],
        log=[
            d.LogDocument(at=d.moment(line.at), text=line.text if payload else None)
            for line in await visit.reads.logs(id)
        ],
    )


async def history(visit: Visit) -> list[HistoryEntry]:
    entries = await visit.reads.history(visit.params.get("id", ""))
    if visit.access.payload:
        return entries
    return [msgspec.structs.replace(entry, text="") for entry in entries]


async def stats(visit: Visit) -> Stats:
    by = next((one for one in BYS if one == (visit.params.get("by") or "task")), None)
    seconds = SPANS.get(visit.params.get("since") or "1h")
    if by is None or seconds is None:
        raise Refused(400, f"by is one of {', '.join(BYS)}; since is one of {', '.join(SPANS)}.")
    return await visit.reads.stats(by, seconds)


async def failures(visit: Visit) -> d.FailuresDocument:
    found = await visit.reads.failures()
    return d.FailuresDocument(
        kinds=[d.kind_document(kind) for kind in found.kinds], letters=found.letters, capped=found.capped
    )


async def dead(visit: Visit) -> list[d.LetterDocument]:
    filters = {name: visit.params[name] for name in ("queue", "task", "reason") if visit.params.get(name)}
    letters: list[DeadLetter] = await visit.reads.letters(visit.params.get("q", ""), limit=limit_of(visit), **filters)
    return [d.letter_document(visit, letter) for letter in letters]


async def queues(visit: Visit) -> list[d.QueueDocument]:
    serving = served_by(await visit.reads.workers())
    return [
        d.queue_document(
            queue,
            limit_in_force(queue.limit, queue.override),
            rate_in_force(queue.rate, queue.override),
            serving[queue.name],
        )
        for queue in await visit.reads.queues()
    ]


async def groups(visit: Visit) -> list[d.GroupDocument]:
    return [d.group_document(group) for group in await visit.reads.groups(visit.params.get("queue") or None)]


async def group(visit: Visit) -> d.GroupDocument:
    return d.group_document(await visit.reads.group(visit.params.get("queue", ""), visit.params.get("name", "")))


async def tasks(visit: Visit) -> list[d.TaskDocument]:
    stored = {record.rule.name: record for record in await visit.reads.tasks()}
    code, pauses = visit.reads.code, await visit.reads.paused_tasks()
    made = []
    for name in sorted({*stored, *code, *pauses}):
        record, known = stored.get(name), code.get(name)
        rate = rate_in_force(record.rule.rate, record.override) if record else None
        made.append(
            d.TaskDocument(
                name=name,
                signature=None if known is None else signature(known.fn),
                queue=None if known is None else known.defaults.queue,
                running=record.running if record else 0,
                limit=limit_in_force(record.rule.limit, record.override) if record else None,
                rate=None if rate is None else str(rate),
                pause=d.pause_document(pauses.get(name)),
            )
        )
    return made


async def cron(visit: Visit) -> list[d.EntryDocument]:
    return [d.entry_document(entry) for entry in await visit.reads.entries()]


async def workers(visit: Visit) -> list[d.WorkerDocument]:
    return [d.worker_document(worker) for worker in await visit.reads.workers()]


async def system(visit: Visit) -> d.SystemDocument:
    health = await visit.reads.health()
    facts = None if health.store is None else health.store.facts
    return d.SystemDocument(
        version=__version__,
        store=visit.reads.safe_url,
        schema=None if facts is None else facts.schema,
        size_bytes=None if facts is None else facts.size_bytes,
        now=d.moment(visit.now),
        checks=[d.finding_document(one) for one in health.findings],
    )


def limit_of(visit: Visit) -> int:
    """How many to return."""
    text = visit.params.get("limit", "")
    if not text:
        return LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= LIMIT_MAX):
        raise Refused(400, f"limit is a number from 1 to {LIMIT_MAX}.")
    return int(text)


LIMITED = Parameter("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT})
QUERY = Parameter(
    "q", f"The query of `holdfast jobs`. Fields: {', '.join(FIELDS)}.", {"type": "string", "maxLength": 4000}
)
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/api/overview", "Jobs by state, workers, and what is wrong.", d.OverviewDocument, overview),
    Endpoint(
        "/api/jobs",
        "Jobs that match a query, a page at a time.",
        d.JobsDocument,
        jobs,
        (
            QUERY,
            Parameter("sort", "The order; default: newest first.", {"type": "string", "enum": list(SORTS)}),
            Parameter("after", "Where the previous page ended.", {"type": "string", "maxLength": 60}),
            LIMITED,
        ),
    ),
    Endpoint(
        "/api/count",
        "How many jobs match a query; `complete` is false where a bound was reached.",
        d.TallyDocument,
        count,
        (QUERY, Parameter("by", "Count by this.", {"type": "string", "enum": list(GROUPINGS)})),
    ),
    Endpoint(
        "/api/job",
        "One job: why it is where it is, its attempts, result and log.",
        d.WholeJobDocument,
        job,
        (Parameter("id", "Its id.", required=True),),
    ),
    Endpoint(
        "/api/history",
        "A job's timeline, oldest first.",
        list[HistoryEntry],
        history,
        (Parameter("id", "The job's id.", required=True),),
    ),
    Endpoint(
        "/api/stats",
        "What ended, how often it failed, how long it waited and ran, by the minute or hour.",
        Stats,
        stats,
        (
            Parameter("by", "Group by this.", {"type": "string", "enum": list(BYS)}),
            Parameter("since", "The time covered, until now.", {"type": "string", "enum": list(SPANS)}),
        ),
    ),
    Endpoint("/api/failures", "Dead letters grouped by cause.", d.FailuresDocument, failures),
    Endpoint(
        "/api/dead",
        "The newest dead letters that match.",
        list[d.LetterDocument],
        dead,
        (QUERY, Parameter("queue", ""), Parameter("task", ""), Parameter("reason", ""), LIMITED),
    ),
    Endpoint("/api/queues", "All queues.", list[d.QueueDocument], queues),
    Endpoint(
        "/api/groups",
        "Groups with unfinished jobs, an override or a pause; at most 200.",
        list[d.GroupDocument],
        groups,
        (Parameter("queue", "Only of this queue."),),
    ),
    Endpoint(
        "/api/group",
        "One group.",
        d.GroupDocument,
        group,
        (Parameter("queue", "Its queue.", required=True), Parameter("name", "Its name.", required=True)),
    ),
    Endpoint("/api/tasks", "Tasks with a rule, a pause or code.", list[d.TaskDocument], tasks),
    Endpoint("/api/cron", "Cron entries.", list[d.EntryDocument], cron),
    Endpoint("/api/workers", "Workers, lost ones too.", list[d.WorkerDocument], workers),
    Endpoint("/api/system", "The store and the checks about it.", d.SystemDocument, system),
)
READS: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in ENDPOINTS}


async def read(endpoint: Endpoint, visit: Visit) -> Any:
    """Handle a GET; raises NotFound if there is no such thing."""
    try:
        return await endpoint.run(visit)
    except JobNotFound as error:
        raise NotFound(str(error)) from None
    except ConfigurationError as error:
        raise Refused(400, str(error)) from None


async def page(_: Visit) -> tuple[str, Values]:
    """The page that lists all endpoints."""
    return "api.html", {"endpoints": ENDPOINTS, "verbs": VERBS, "steps": STEPS}


# ----------------------------------------------------------------------------------------------------------------------
# The OpenAPI document.


def openapi(root: str) -> dict[str, Any]:
    """The description of all endpoints, for the prefix the dashboard is mounted under."""
    types = [
        *(endpoint.returns for endpoint in ENDPOINTS),
        *(verb.body for verb in VERBS.values()),
        *(kind for step in STEPS.values() for kind in (step.body, step.returns)),
        Outcome,
        ErrorReply,
    ]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    returned, bodies = schemas[: len(ENDPOINTS)], schemas[len(ENDPOINTS) : len(ENDPOINTS) + len(VERBS)]
    work = schemas[len(ENDPOINTS) + len(VERBS) : -2]
    paths: dict[str, Any] = {
        endpoint.path: {"get": _get(endpoint, schema)} for endpoint, schema in zip(ENDPOINTS, returned, strict=True)
    }
    for (name, verb), schema in zip(VERBS.items(), bodies, strict=True):
        paths[f"/api/do/{name}"] = {"post": _post(f"do-{name}", verb.about, verb.role, schema, schemas[-2])}
    for (name, step), body, answer in zip(STEPS.items(), work[::2], work[1::2], strict=True):
        paths[f"/api/{name}"] = {"post": _post(name, step.about, "work", body, answer)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Monitor and control the jobs of one store.",
        },
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "password": {"type": "http", "scheme": "bearer", "description": "The password, if there is one."}
            },
        },
        "security": [{}, {"password": []}],
    }


def _get(endpoint: Endpoint, schema: JsonSchema) -> JsonSchema:
    return {
        "summary": endpoint.about,
        "operationId": endpoint.path.removeprefix("/api/"),
        "parameters": [
            {
                "name": one.name,
                "in": "query",
                "description": one.about,
                "required": one.required,
                "schema": one.schema,
            }
            for one in endpoint.parameters
        ],
        "responses": _responses(schema),
    }


def _post(name: str, about: str, role: str, body: JsonSchema, outcome: JsonSchema) -> JsonSchema:
    return {
        "summary": about,
        "description": f"Needs the role `{role}`.",
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": _responses(outcome),
    }


def _responses(schema: JsonSchema) -> JsonSchema:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorReply"}}}
    return {
        "200": {"description": "Done.", "content": {"application/json": {"schema": schema}}},
        "default": {"description": "Refused; the text says why.", "content": error},
    }
