"""Jobs that wait for others: edges, and how the end of a parent reaches its children (R83 to R85).

Called by operating.py, moving.py, reading.py and the end of every step. What SQL and Lua count, this derives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.backends.formulas import edge_status
from holdfast.dependencies import DUE_AFTER_PARENTS, PROPAGATE_MAX, STATUSES, Edge, Relative, Relatives
from holdfast.errors import JobNotFound, ParentNotFound
from holdfast.lifecycle import FAILURE_TEXTS, LIVE, State, state_conflict
from holdfast.records import REMEMBER_SECONDS_MIN, Enqueued, NewJob

from . import elsewhere
from .rows import Row
from .store import RETAIN_SECONDS, Store

ELSEWHERE = "elsewhere"  # stands for a job in another shard


def waiting(job: NewJob) -> NewJob:
    """The job as it is stored while it waits."""
    return replace(job, delay=None, due_at=DUE_AFTER_PARENTS) if job.after else job


def check(store: Store, jobs: Sequence[NewJob], wall: float, others: Collection[str] = ()) -> None:
    """Refuse a parent that is not there and does not come earlier in the batch."""
    coming: set[str] = set(others)
    for job in jobs:
        if not store.knows(job.id, wall):
            for parent in job.after:
                if parent not in store.jobs and parent not in coming:
                    raise ParentNotFound(parent, job.id)
            check_waiting(store, job.before)
        coming.add(job.id)


def check_waiting(store: Store, job_id: str | None) -> None:
    """Refuse a job that is to wait for a new one and does not wait."""
    if job_id is None:
        return
    row = store.jobs.get(job_id)
    if row is None:
        raise JobNotFound(job_id)
    if row.state is not State.SCHEDULED or row.due_at != DUE_AFTER_PARENTS or not store.parents_of.get(job_id):
        raise state_conflict(job_id, "join", row.state)


def link(
    store: Store, jobs: Sequence[NewJob], answers: Sequence[Enqueued], wall: float, others: Collection[str] = ()
) -> None:
    stands_for = {job.id: answer.id for job, answer in zip(jobs, answers, strict=True)}
    for job, answer in zip(jobs, answers, strict=True):
        if not answer.created:
            continue
        if job.before is not None:
            join(store, job.before, job.id)
        if not job.after:
            continue
        for named in job.after:
            parent = stands_for.get(named, named)
            state = State.SCHEDULED if parent in others else store.jobs[parent].state
            status = edge_status("open", state, job.on_parent_failure)
            edge = Edge(
                parent=parent,
                child=job.id,
                status=status,
                on_parent_failure=job.on_parent_failure,
                delay=job.delay,
                due_at=job.due_at,
            )
            _keep(store, edge)
        resolve(store, store.jobs[job.id], wall)


def join(store: Store, waiting: str, parent: str) -> None:
    policy = _edges_of(store, waiting)[0]
    _keep(store, replace(policy, parent=parent, status="open"))


def _keep(store: Store, edge: Edge) -> None:
    store.edges[edge.parent, edge.child] = edge
    store.parents_of.setdefault(edge.child, {})[edge.parent] = None
    store.children_of.setdefault(edge.parent, {})[edge.child] = None


def _edges_of(store: Store, child: str) -> list[Edge]:
    return [store.edges[parent, child] for parent in store.parents_of.get(child, ())]


def end_step(store: Store, wall: float) -> None:
    """Tell those that wait for jobs that ended in this step."""
    if store.ended:
        note(store)
        propagate(store, wall, PROPAGATE_MAX)


def note(store: Store) -> None:
    for parent in store.ended:
        if any(store.edges[parent, child].status != "met" for child in store.children_of.get(parent, ())):
            store.propagating[parent] = None
        if parent in store.watchers:
            elsewhere.note(store, store.jobs[parent])
    store.ended.clear()


def propagate(store: Store, wall: float, limit: int) -> int:
    done = 0
    note(store)
    while done < limit and store.propagating:
        parent = next(iter(store.propagating))
        row = store.jobs.get(parent) or store.elsewhere.get(parent)
        edges = [] if row is None else _out_of_line(store, parent, row.state)[: limit - done]
        for edge in edges:
            assert row is not None
            _keep(store, replace(edge, status=edge_status(edge.status, row.state, edge.on_parent_failure)))
            resolve(store, store.jobs[edge.child], wall)
            note(store)
        if len(edges) < limit - done:
            store.propagating.pop(parent, None)
        done += max(1, len(edges))
    return done


def _out_of_line(store: Store, parent: str, state: State) -> list[Edge]:
    edges = [store.edges[parent, child] for child in store.children_of.get(parent, ())]
    found = [edge for edge in edges if edge_status(edge.status, state, edge.on_parent_failure) != edge.status]
    return sorted(found, key=lambda edge: (STATUSES.index(edge.status), edge.child))


def resolve(store: Store, row: Row, wall: float) -> None:
    edges = _edges_of(store, row.id)
    failed = [edge.parent for edge in edges if edge.status == "failed"]
    if row.state in (State.DEAD, State.CANCELLED) and row.reason == "parent" and not failed:
        holder = None if row.key is None else store.key_holder(row.key_name, wall)
        if holder is not None and holder.id != row.id:
            return
        was_dead = row.state is State.DEAD
        store.again(row, wall, waits=True)
        store.mark(row, "revive", wall, text="parent")
        letter = store.letters.get(row.logical)
        if was_dead and letter is not None and letter.id == row.id:
            store.keep_letter(row.logical, replace(letter, revived_at=wall, revive_at=None))
    if row.state is not State.SCHEDULED or row.due_at != DUE_AFTER_PARENTS:
        return
    if failed:
        _fail(store, row, min(failed), edges[0], wall)
    elif all(edge.status == "met" for edge in edges):
        wanted = edges[0].due_at
        due_at = max(wall, wanted) if wanted is not None else wall + (edges[0].delay or 0.0)
        expires_at = None if row.expires_at is None else due_at + (row.expires_at - DUE_AFTER_PARENTS)
        store.move(row, State.SCHEDULED, due_at=due_at, expires_at=expires_at)


def waits_in_vain(store: Store, row: Row) -> bool:
    """Whether a job has ended, and has parents that have not succeeded."""
    ended = row.state in (State.DEAD, State.CANCELLED) and row.reason not in ("superseded", "discarded")
    return ended and any(edge.status != "met" for edge in _edges_of(store, row.id))


def _fail(store: Store, row: Row, parent: str, edge: Edge, wall: float) -> None:
    if edge.on_parent_failure == "cancel":
        store.finish(row, wall, State.CANCELLED, RETAIN_SECONDS, reason="parent")
        store.count_ended(row, "cancelled", wall)
    else:
        store.bury_unstarted(row, wall, "parent", FAILURE_TEXTS["parent"] % parent)
        store.count_ended(row, "dead", wall)


def refuse_if_awaited(store: Store, row: Row) -> None:
    for child in sorted(store.children_of.get(row.id, ())):
        other = store.jobs[child]
        waits = other.state is State.SCHEDULED and other.due_at == DUE_AFTER_PARENTS
        if waits and store.edges[row.id, child].status == "open":
            raise state_conflict(row.id, "delete", row.state, child_id=child)
    if store.watchers.get(row.id):
        raise state_conflict(row.id, "delete", row.state, child_id=ELSEWHERE)


def may_go(store: Store, row: Row, wall: float) -> bool:
    """Whether no child needs the job any more; else it is kept a while."""
    note(store)
    live = [child for child in store.children_of.get(row.id, ()) if store.jobs[child].state in LIVE]
    watched = bool(store.watchers.get(row.id))
    if not live and not watched and row.id not in store.propagating and ("news", row.id) not in store.outbox:
        return True
    if watched:
        elsewhere.post(store, "ask", row.id)
    if row.prune_at is not None:
        store.move(row, row.state, prune_at=max(row.prune_at, wall + REMEMBER_SECONDS_MIN))
    return False


def relatives(store: Store, job_id: str, limit: int, *, values: bool, beyond: str) -> Relatives:
    def relative(name: str, edge: Edge, *, value: bool) -> Relative:
        row = store.jobs.get(name)
        if row is None:
            other = store.elsewhere[name]
            return Relative(id=name, task=other.task, state=other.state, status=edge.status)
        shown = row.value if value and row.state is State.SUCCEEDED else None
        return Relative(id=name, task=row.task, state=row.state, status=edge.status, value=shown)

    parents = sorted(one for one in store.parents_of.get(job_id, ()) if one > beyond)
    children = sorted(one for one in store.children_of.get(job_id, ()) if one > beyond)
    return Relatives(
        parents=tuple(relative(one, store.edges[one, job_id], value=values) for one in parents[:limit]),
        children=tuple(relative(one, store.edges[job_id, one], value=False) for one in children[:limit]),
        pending=sum(edge.status != "met" for edge in _edges_of(store, job_id)),
        more=max(len(parents), len(children)) > limit,
    )


def in_order(store: Store) -> list[Edge]:
    return sorted(store.edges.values(), key=lambda edge: (edge.child, edge.parent))


def dependents(store: Store) -> list[dict[str, Any]]:
    found = []
    for child in sorted(store.parents_of):
        edges = _edges_of(store, child)
        pending, failed = (sum(edge.status in those for edge in edges) for those in (("open", "failed"), ("failed",)))
        found.append({"child": child, "pending": pending, "failed": failed})
    return found


def carry(store: Store, edges: Sequence[Edge]) -> None:
    for edge in edges:
        if (edge.parent, edge.child) not in store.edges:
            _keep(store, edge)
            if edge.status != "met":
                store.propagating[edge.parent] = None


def out_of_line(store: Store) -> list[str]:
    """Parents whose edges may be out of line, here or in other shards."""
    return sorted({*store.propagating, *(name for kind, name in store.outbox if kind in ("watch", "news"))})
