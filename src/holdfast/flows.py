"""Flows: calls that wait for each other, as users write them (`chain`, `group_of`), and a running flow as a graph.

Called by users and by the app. A flow is just bound calls with `after=`; the store only knows jobs and edges.
So a running flow can be found again from any of its jobs, by walking from job to job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import partial
from graphlib import CycleError, TopologicalSorter
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

from .backends.contract import Backend
from .clock import to_seconds
from .dependencies import BATCH_OPEN_TASK, PARENTS_MAX
from .errors import ConfigurationError, JobNotFound, StateConflict
from .headers import with_parents
from .job import BoundCall, Job
from .lifecycle import State
from .options import Duration
from .store_thread import forbid_running_loop

if TYPE_CHECKING:
    from .app import Holdfast
    from .task import Task

R = TypeVar("R")
T = TypeVar("T")

FLOW_JOBS_MAX = 10_000  # that are followed from one job


class Flow(Generic[R]):
    """Calls that wait for each other. `app.enqueue_flow(flow)` stores them, in one step up to 1,000 calls.

    `R` is what its last step returns; `last` is that call, if there is one.
    """

    __slots__ = ("calls", "ends", "starts")

    def __init__(
        self, calls: tuple[BoundCall[Any], ...], starts: tuple[str, ...], ends: tuple[BoundCall[Any], ...]
    ) -> None:
        self.calls, self.starts, self.ends = calls, starts, ends

    @property
    def last(self) -> BoundCall[R]:
        """The call whose result is the flow's; ConfigurationError if it ends with several."""
        if len(self.ends) != 1:
            raise ConfigurationError(f"this flow ends with {len(self.ends)} calls. Join them: group_of(…, then=call).")
        return self.ends[0]

    def __repr__(self) -> str:
        return f"<Flow of {len(self.calls)} calls>"


Step = BoundCall[R] | Flow[R]


@overload
def chain(a: Step[R], /) -> Flow[R]: ...
@overload
def chain(a: Step[Any], b: Step[R], /) -> Flow[R]: ...
@overload
def chain(a: Step[Any], b: Step[Any], c: Step[R], /) -> Flow[R]: ...
@overload
def chain(a: Step[Any], b: Step[Any], c: Step[Any], d: Step[R], /) -> Flow[R]: ...
@overload
def chain(*steps: Step[Any]) -> Flow[Any]: ...
def chain(*steps: Step[Any]) -> Flow[Any]:
    """One after the other: each step starts when the one before has succeeded, and finds its result in `ctx.parents`.

    A step is a bound call (`task.bind(…)`) or another flow.
    """
    if not steps:
        raise ConfigurationError("chain() needs at least one step.")
    flow = _as_flow(steps[0])
    for step in steps[1:]:
        flow = _joined(flow, _as_flow(step))
    return flow


@overload
def group_of(*members: Step[T]) -> Flow[list[T]]: ...
@overload
def group_of(*members: Step[Any], then: Step[R]) -> Flow[R]: ...
def group_of(*members: Step[Any], then: Step[Any] | None = None) -> Flow[Any]:
    """All at once; `then` starts when all of them have succeeded, and finds their results in `ctx.parents`."""
    if not members:
        raise ConfigurationError("group_of() needs at least one member.")
    flows = [_as_flow(member) for member in members]
    together: Flow[Any] = Flow(
        tuple(call for flow in flows for call in flow.calls),
        tuple(id for flow in flows for id in flow.starts),
        tuple(end for flow in flows for end in flow.ends),
    )
    return together if then is None else _joined(together, _as_flow(then))


def _as_flow(step: object) -> Flow[Any]:
    if isinstance(step, Flow):
        return step
    if isinstance(step, BoundCall):
        return Flow((step,), (step.id,), (step,))
    raise ConfigurationError(f"a step is a bound call or a flow, not a {type(step).__name__}. Use task.bind(…).")


def _joined(before: Flow[Any], after: Flow[Any]) -> Flow[Any]:
    """Both, so that what starts the second waits for what ends the first."""
    known = {call.id for call in before.calls}
    twice = next((call for call in after.calls if call.id in known), None)
    if twice is not None:
        raise ConfigurationError(f"{twice!r} is already in this flow. Bind the task once for each step.")
    parents = tuple(end.id for end in before.ends)
    waiting = {call.id: waits_for(call, parents) if call.id in after.starts else call for call in after.calls}
    return Flow((*before.calls, *waiting.values()), before.starts, tuple(waiting[end.id] for end in after.ends))


def waits_for(call: BoundCall[R], parents: Iterable[str]) -> BoundCall[R]:
    """The call, after these jobs, too."""
    ids = tuple(dict.fromkeys((*call.new.after, *parents)))
    if len(ids) > PARENTS_MAX:
        raise ConfigurationError(f"a job waits for at most {PARENTS_MAX} others, and {call!r} would for {len(ids)}.")
    return replace(call, new=replace(call.new, after=ids, options=with_parents(call.new.options, len(ids))))


def in_chunks(task: Task[[list[T]], Any], rows: Iterable[T], size: int) -> Iterator[BoundCall[Any]]:
    """A call for every `size` rows."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigurationError(f"chunk= is a number of rows from 1 on, not {size!r}.")
    left = iter(rows)
    while some := list(islice(left, size)):
        yield task.bind(some)


# ----------------------------------------------------------------------------------------------------------------------
# A flow in the store


class FlowJob(Struct, frozen=True):
    """One job of a flow."""

    id: str
    task: str
    state: State
    after: tuple[str, ...] = ()


class FlowGraph(Struct, frozen=True):
    """The jobs that are linked to one another, parents first; `capped` if there are more than were followed."""

    jobs: tuple[FlowJob, ...]
    capped: bool = False

    @property
    def counts(self) -> Mapping[State, int]:
        """How many jobs are in each state."""
        return Counter(job.state for job in self.jobs)

    @property
    def progress(self) -> float:
        """The part that has finished, from 0 to 1."""
        return sum(job.state.finished for job in self.jobs) / len(self.jobs)

    def dot(self) -> str:
        """The graph in the language of Graphviz."""
        lines = [
            *(f'  "{job.id}" [label="{_quoted(job.task)}\\n{job.id[-8:]} {job.state.value}"];' for job in self.jobs),
            *(f'  "{parent}" -> "{job.id}";' for job in self.jobs for parent in job.after),
        ]
        return "\n".join(["digraph flow {", "  rankdir=LR;", "  node [shape=box];", *lines, "}"])

    def svg(self) -> str:
        """The graph as a drawing, parents left of their children, coloured by state: SVG for a browser or a report."""
        depth = depths(self)
        rows: Counter[int] = Counter()
        places: dict[str, tuple[int, int]] = {}
        for job in self.jobs:
            column = depth[job.id]
            places[job.id] = (MARGIN + column * (BOX[0] + GAP[0]), MARGIN + rows[column] * (BOX[1] + GAP[1]))
            rows[column] += 1
        width = MARGIN + len(rows) * (BOX[0] + GAP[0]) - GAP[0] + MARGIN
        height = MARGIN + max(rows.values()) * (BOX[1] + GAP[1]) - GAP[1] + MARGIN
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            *(_curve(places[parent], places[job.id]) for job in self.jobs for parent in job.after),
            *(_box(job, *places[job.id]) for job in self.jobs),
            "</svg>",
        ]
        return "\n".join(lines)


def depths(graph: FlowGraph) -> dict[str, int]:
    """How many jobs are in the longest line before each job, by id."""
    depth: dict[str, int] = {}
    for job in graph.jobs:  # parents come first, except in a cycle
        depth[job.id] = max((depth[parent] + 1 for parent in job.after if parent in depth), default=0)
    return depth


NAME_CHARS_MAX = 26  # of a task in a drawing
MARGIN, BOX, GAP = 10, (190, 38), (60, 12)  # of a drawing, in pixels: width and height
COLOURS = {  # of a box, by state
    State.SCHEDULED: "#b8c4d6",
    State.WAITING: "#c9c2e0",
    State.READY: "#9cc3f0",
    State.RUNNING: "#f5cf6b",
    State.SUCCEEDED: "#9ad3a5",
    State.CANCELLED: "#d0d0d0",
    State.DEAD: "#f0a09a",
}


def _curve(parent: tuple[int, int], child: tuple[int, int]) -> str:
    x, y, to_x, to_y = parent[0] + BOX[0], parent[1] + BOX[1] // 2, child[0], child[1] + BOX[1] // 2
    middle = (x + to_x) // 2
    return f'<path d="M{x} {y} C{middle} {y} {middle} {to_y} {to_x} {to_y}" fill="none" stroke="#888"/>'


def _box(job: FlowJob, x: int, y: int) -> str:
    name = job.task if len(job.task) <= NAME_CHARS_MAX else f"…{job.task[1 - NAME_CHARS_MAX :]}"
    return (
        f"<g><title>{escape(job.task)} {escape(job.id)}</title>"
        f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="5" fill="{COLOURS[job.state]}"/>'
        f'<text x="{x + 8}" y="{y + 16}">{escape(name)}</text>'
        f'<text x="{x + 8}" y="{y + 31}" fill="#333">{escape(job.id[-8:])} {job.state.value}</text></g>'
    )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


class FlowRun(Generic[R]):
    """A flow that was stored, found from any of its jobs. Each method has an `a…` twin."""

    __slots__ = ("_app", "_last", "id")

    def __init__(self, app: Holdfast, id: str, last: BoundCall[R] | None = None) -> None:
        self._app, self.id, self._last = app, id, last

    def graph(self) -> FlowGraph:
        """Its jobs and their states as they are now."""
        forbid_running_loop("flow.graph()", "flow.agraph()")
        return self._app._store.call(self._graph)

    async def agraph(self) -> FlowGraph:
        """Async version of `graph`."""
        return await self._app._store.acall(self._graph)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the last step and return its result; raises what `job.result` raises."""
        return self._last_job(self._app.job(self._last_id())).result(timeout)

    async def aresult(self, timeout: Duration | None = None) -> R:
        """Async version of `result`."""
        return await self._last_job(await self._app.ajob(self._last_id())).aresult(timeout)

    def finished(self, timeout: Duration | None = None) -> FlowGraph:
        """Wait until all its jobs have finished, and return their final states. WaitTimedOut."""
        forbid_running_loop("flow.finished()", "flow.afinished()")
        return self._app._store.call(partial(self._finished, self._until(timeout)))

    async def afinished(self, timeout: Duration | None = None) -> FlowGraph:
        """Async version of `finished`."""
        return await self._app._store.acall(partial(self._finished, self._until(timeout)))

    def cancel(self, *, by: str = "") -> int:
        """Cancel its unfinished jobs; returns how many."""
        forbid_running_loop("flow.cancel()", "flow.acancel()")
        return self._app._store.call(partial(self._cancel, by))

    async def acancel(self, *, by: str = "") -> int:
        """Async version of `cancel`."""
        return await self._app._store.acall(partial(self._cancel, by))

    def retry_failed(self, *, by: str = "") -> int:
        """Rerun the jobs that died or were cancelled, each when its parents have succeeded; returns how many.

        Jobs that ended only because a parent did come back with it, and are not counted.
        """
        forbid_running_loop("flow.retry_failed()", "flow.aretry_failed()")
        return self._app._store.call(partial(self._retry_failed, by))

    async def aretry_failed(self, *, by: str = "") -> int:
        """Async version of `retry_failed`."""
        return await self._app._store.acall(partial(self._retry_failed, by))

    def __repr__(self) -> str:
        return f"<FlowRun of {self.id}>"

    def _last_id(self) -> str:
        if self._last is None:
            raise ConfigurationError("this flow has no single last step. Use finished(), or app.job(id).result().")
        return self._last.id

    def _last_job(self, job: Job[Any]) -> Job[R]:
        return job

    def _until(self, timeout: Duration | None) -> float | None:
        return None if timeout is None else self._app._clock.steady() + to_seconds(timeout, "timeout=")

    async def _graph(self, backend: Backend) -> FlowGraph:
        return await graph_of(backend, self.id)

    async def _finished(self, until: float | None, backend: Backend) -> FlowGraph:
        while True:
            graph = await graph_of(backend, self.id)
            job = next((one for one in graph.jobs if not one.state.finished), None)
            if job is None:
                return graph
            left = None if until is None else max(0.0, until - self._app._clock.steady())
            await self._app._store.waiter.wait(job.id, left, backend)

    async def _cancel(self, by: str, backend: Backend) -> int:
        jobs = [job for job in (await graph_of(backend, self.id)).jobs if not job.state.finished]
        done = 0
        for job in reversed(jobs):  # children first: they end as cancelled, not because of a parent
            done += await was_done(backend.cancel(job.id, by=by))
        return done

    async def _retry_failed(self, by: str, backend: Backend) -> int:
        graph = await graph_of(backend, self.id)
        states = {job.id: job.state for job in graph.jobs}
        over = (State.DEAD, State.CANCELLED)
        # A batch is closed by a cancel, which is no failure.
        failed = [job for job in graph.jobs if job.state in over and job.task != BATCH_OPEN_TASK]
        first: list[FlowJob] = []  # those without parents
        done = 0
        for job in reversed(failed):  # children first: they follow their parents when those come back
            record = await backend.get(job.id)
            if record is None or record.state is not job.state or record.reason == "parent":
                continue  # it ended with a parent, and comes back with it
            waits = any(states[id] is not State.SUCCEEDED for id in job.after)
            if waits and await was_done(backend.rejoin(job.id, by=by)):
                done += 1
            else:
                first.append(job)
        for job in first:
            done += await was_done((backend.revive if job.state is State.DEAD else backend.retry)(job.id, by=by))
        return done


async def was_done(verb: Coroutine[Any, Any, object]) -> bool:
    """Whether it was done: the job may have changed its state, or never have been stored."""
    try:
        await verb
    except (StateConflict, JobNotFound):
        return False
    return True


async def graph_of(backend: Backend, job_id: str) -> FlowGraph:
    """Walk from job to job, over parents and children, until all are known or the bound is reached."""
    record = await backend.get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    found = {record.id: (record.task, record.state)}
    parents: dict[str, tuple[str, ...]] = {}
    waiting, capped = [record.id], False
    while waiting:
        id = waiting.pop()
        near = await backend.relatives(id, limit=FLOW_JOBS_MAX)
        capped = capped or near.more
        parents[id] = tuple(one.id for one in near.parents)
        for one in (*near.parents, *near.children):
            if one.id not in found:
                if len(found) == FLOW_JOBS_MAX:
                    capped = True
                    break
                found[one.id] = (one.task, one.state)
                waiting.append(one.id)
    known = {id: tuple(parent for parent in parents.get(id, ()) if parent in found) for id in found}
    order = sorted(found)
    try:
        order = list(TopologicalSorter({id: known[id] for id in order}).static_order())
    except CycleError:
        pass  # a job of a batch waits for the batch, by way of another: that must be seen, too
    return FlowGraph(tuple(FlowJob(id, *found[id], known[id]) for id in order), capped)
