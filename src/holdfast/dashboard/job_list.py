"""The list of jobs: the query with its completion, tabs by state with their numbers, one page, and counts by a field.

Called through pages.PAGES. Everything is read by the store's own bounded pages and tallies; what was only partly
counted or read is marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigurationError, QueryRejected
from ..job import Job
from ..lifecycle import UNSTARTED, Failure, State
from ..queries import make_query, without_states
from ..queries.pages import Tally
from ..records import JobQuery
from . import formats
from .visit import Values, Visit

PAGE = 50
GROUPS_SHOWN_MAX = 12
COMPLETIONS_MAX = 40  # names of one kind
GROUPINGS = ("state", "task", "queue", "error")
SORTS = {"created": "newest first", "due": "due first", "finished": "last ended first", "priority": "highest first"}
FIELDS = (
    ("state:", "scheduled, waiting, ready, running, succeeded, cancelled, dead, live, finished"),
    ("queue:", "a queue; * stands for any characters"),
    ("task:", "a task: mail.send, mail.*"),
    ("group:", "a group"),
    ("key:", "a unique key"),
    ("id:", "the beginning or end of an id"),
    ("error:", "part of an error's class or text"),
    ("args.", "an argument: args.user.id:42"),
    ("tag:", "a word given with .options(tags=…)"),
    ("header.", "a header: header.tenant:acme"),
    ("age:", "since it was enqueued: age:>1h"),
    ("running:", "how long it has run: running:>10m"),
    ("wait:", "how long it has been due"),
    ("attempts:", "attempts:>3"),
    ("worker:", "a worker's id"),
)


class JobRow(Struct, frozen=True, kw_only=True):
    """A job in a table."""

    job: Job[Any]
    args: str | None
    error: Failure | None
    at: float | None


def row(visit: Visit, job: Job[Any]) -> JobRow:
    """A job as a line of a table."""
    args = visit.args(job.task, job.args)
    errors = job.errors
    at = job.finished_at or (job.started_at if job.state is State.RUNNING else None)
    at = at or (job.due_at if job.state in UNSTARTED else None) or job.created_at
    return JobRow(
        job=job,
        args=None if args is None else formats.one_line(args),
        error=errors[-1] if errors and job.state is not State.SUCCEEDED else None,
        at=formats.seconds_of(at),
    )


async def jobs(visit: Visit) -> tuple[str, Values]:
    text, sort = visit.params.get("q", "").strip(), visit.params.get("sort") or "created"
    values: Values = {"q": text, "sort": sort, "error": "", "rows": [], "older": None, "groups": [], "by": None}
    values |= {"completions": await completions(visit), "sorts": SORTS, "groupings": GROUPINGS}
    try:
        query = make_query(text, {}, sort, visit.params.get("after") or None)
    except ConfigurationError as error:
        column = getattr(error, "column", None)
        tabs = _tabs(visit, text, sort, None)
        return "jobs.html", {**values, "error": str(error), "column_at": column, "tabs": tabs, "query": JobQuery()}
    page = await visit.reads.page(replace(query, limit=PAGE))
    rows = [visit.reads.as_job(record) for record in page.jobs]
    tally = await _tally(visit, text, query)
    by = visit.params.get("by") if visit.params.get("by") in GROUPINGS else None
    link = {"q": text, "sort": None if sort == "created" else sort}
    return "jobs.html", {
        **values,
        "query": query,
        "rows": [row(visit, job) for job in rows],
        "older": page.after and visit.link("jobs", **link, after=page.after),
        "first": not visit.params.get("after"),
        "newest": visit.link("jobs", **link),
        "scanned": page.scanned,
        "sorted_all": page.sorted_all,
        "tabs": _tabs(visit, text, sort, tally),
        "total": _total(query, tally),
        "actions": _bulk_actions(visit, query),
        "changes": _bulk_changes(visit, query),
        "column": _time_column(query),
        "errors": any(job.errors and job.state is not State.SUCCEEDED for job in rows),
        "by": by,
        "groups": await _groups(visit, text, by),
    }


async def completions(visit: Visit) -> list[tuple[str, str]]:
    """Completions of the query: fields first, then values from the store."""
    reads = visit.reads
    queues = [queue.name for queue in await reads.queues()][:COMPLETIONS_MAX]
    tasks = sorted({*reads.code, *(record.rule.name for record in await reads.tasks())})[:COMPLETIONS_MAX]
    return [
        *FIELDS,
        *((f"state:{state.value}", "") for state in State),
        *((f"queue:{formats.quoted(name)}", "") for name in queues),
        *((f"task:{formats.quoted(name)}", "") for name in tasks),
    ]


def _time_column(query: JobQuery) -> str:
    """What the time in the list means, if all rows mean the same."""
    match query.states:
        case (State.RUNNING,):
            return "Running for"
        case (State.SCHEDULED,):
            return "Due"
        case (State.READY,) | (State.WAITING,):
            return "Due since"
        case (State.DEAD,):
            return "Died"
        case (State.SUCCEEDED,) | (State.CANCELLED,):
            return "Ended"
    return "Last change"


async def _tally(visit: Visit, text: str, query: JobQuery) -> Tally:
    """Jobs by state, for the query without its states. Without conditions, or for one queue, the numbers are exact."""
    others, _ = without_states(text)
    if not others:
        totals = await visit.reads.totals()
    elif replace(query, states=(), queue=None) == JobQuery() and query.queue is not None:
        counts = (await visit.reads.counts()).get(query.queue, {})
        totals = {state: counts.get(state, 0) for state in State}
    else:
        return await visit.reads.count(others, "state")
    return Tally(total=sum(totals.values()), groups={state.value: count for state, count in totals.items()})


class Tab(Struct, frozen=True, kw_only=True):
    """A state, as a link with its number."""

    state: State | None
    link: str
    current: bool
    count: int | None
    more: bool  # there may be more: a bound was reached


def _tabs(visit: Visit, text: str, sort: str, tally: Tally | None) -> list[Tab]:
    try:
        others, chosen = without_states(text)
    except QueryRejected:  # the page says why
        others, chosen = "", []
    order = None if sort == "created" else sort
    more = tally is not None and not tally.complete
    tabs = [
        Tab(
            state=None,
            link=visit.link("jobs", q=others, sort=order),
            current=not chosen,
            count=None if tally is None else tally.total,
            more=more,
        )
    ]
    for state in State:
        q = f"state:{state.value} {others}".strip()
        current = chosen in ([f"state:{state.value}"], [state.value])
        count = None if tally is None else tally.groups.get(state.value, 0)
        tabs.append(Tab(state=state, link=visit.link("jobs", q=q, sort=order), current=current, count=count, more=more))
    return tabs


def _total(query: JobQuery, tally: Tally) -> tuple[int, bool]:
    """How many jobs match the query, and whether all were counted."""
    states = [state.value for state in query.states] or list(tally.groups)
    return sum(tally.groups.get(state, 0) for state in states), tally.complete


async def _groups(visit: Visit, text: str, by: str | None) -> list[Values]:
    """The jobs counted by a field, most first, each a link to its part."""
    if by is None:
        return []
    tally = await visit.reads.count(text, by)
    top = max(tally.groups.values(), default=1)
    return [
        {
            "name": name or "none",
            "count": count,
            "share": 100 * count / top,
            "link": visit.link("jobs", q=f"{text} {by}:{formats.quoted(name)}".strip()) if name else None,
        }
        for name, count in list(tally.groups.items())[:GROUPS_SHOWN_MAX]
    ]


def _bulk_changes(visit: Visit, query: JobQuery) -> list[str]:
    """What can be changed about selected jobs in the states shown."""
    states = set(query.states) or set(State)
    fits = {"edit": bool(states & UNSTARTED), "revive": State.DEAD in states}
    return [name for name, fit in fits.items() if fit and visit.may("operate")]


def _bulk_actions(visit: Visit, query: JobQuery) -> list[tuple[str, str]]:
    """Verbs for selected jobs that fit the states shown."""
    states = set(query.states) or set(State)
    offered: Mapping[str, tuple[str, bool]] = {
        "retry": ("Revive" if states == {State.DEAD} else "Retry", any(state.finished for state in states)),
        "run-now": ("Run now", State.SCHEDULED in states),
        "cancel": ("Cancel", not all(state.finished for state in states)),
    }
    allowed = [(verb, label) for verb, (label, fits) in offered.items() if fits and visit.may("operate")]
    return [*allowed, ("delete", "Delete")] if visit.may("destroy") and states != {State.RUNNING} else allowed
