"""Dependencies on jobs in other shards: parents elsewhere, watchers, and the outbox (R115 to R119).

Called by backend.py and depending.py inside the critical section.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.backends.formulas import edge_status
from holdfast.backends.shard import News, Post, PostKind, Ties, Unless
from holdfast.dependencies import DUE_AFTER_PARENTS, EdgeStatus
from holdfast.errors import JobNotFound, StateConflict
from holdfast.lifecycle import State

from . import depending
from .rows import Row
from .store import Store


class Elsewhere(Struct, frozen=True):
    """A parent in another shard, as last reported."""

    shard: str
    state: State = State.SCHEDULED
    task: str = ""
    tick: int = 0


def check(store: Store, ties: Ties) -> list[tuple[str, str, str]]:
    """The joins to make: those that are there already, and with `noted` those that are too late, are left out."""
    joins = []
    for join in ties.joins:
        if (join.parent, join.waiting) in store.edges:
            continue
        try:
            depending.check_waiting(store, join.waiting)
        except (JobNotFound, StateConflict):
            if ties.noted:
                continue
            raise
        joins.append((join.waiting, join.parent, join.shard))
    return joins


def tie(store: Store, ties: Ties, joins: Sequence[tuple[str, str, str]]) -> None:
    for waiting, parent, shard in joins:
        store.elsewhere.setdefault(parent, Elsewhere(shard))
        depending.join(store, waiting, parent)
    for job in ties.notes:
        store.notes[job.id] = job
        post(store, "job", job.id)
    for parent, shard in ties.parents.items():
        if store.children_of.get(parent):
            store.elsewhere.setdefault(parent, Elsewhere(shard))
            post(store, "watch", parent)
    for job_id, shard in ties.watchers:
        if job_id in store.jobs and _watch(store, job_id, shard) != "open":
            post(store, "news", job_id)


def post(store: Store, kind: PostKind, name: str) -> None:
    store.outbox.pop((kind, name), None)
    store.outbox[kind, name] = store.next_turn()


def watch(store: Store, parents: Sequence[str], shard: str) -> list[News]:
    here = [parent for parent in parents if parent in store.jobs]
    for parent in here:
        _watch(store, parent, shard)
    return [_news(store, store.jobs[parent]) for parent in here]


def _watch(store: Store, parent: str, shard: str) -> EdgeStatus:
    status = edge_status("open", store.jobs[parent].state, "bury")
    store.watchers.setdefault(parent, {})[shard] = status
    return status


def note(store: Store, row: Row) -> None:
    """A job finished or came back: notify the shards that watch it."""
    for shard, status in store.watchers.get(row.id, {}).items():
        now: EdgeStatus = edge_status(status, row.state, "bury")
        if now != status:
            store.watchers[row.id][shard] = now
            post(store, "news", row.id)


def _news(store: Store, row: Row) -> News:
    return News(row.id, row.state, row.task, store.next_turn())


def follow(store: Store, news: Sequence[News]) -> None:
    for one in news:
        known = store.elsewhere.get(one.parent)
        if known is not None and known.tick < one.tick:
            store.elsewhere[one.parent] = replace(known, state=one.state, task=one.task, tick=one.tick)
            store.propagating[one.parent] = None


def let_go(store: Store, parent: str, unless: Unless) -> str | None:
    for child in sorted(store.children_of.get(parent, ())) if parent in store.elsewhere else ():
        row, status = store.jobs[child], store.edges[parent, child].status
        waits = row.state is State.SCHEDULED and row.due_at == DUE_AFTER_PARENTS and status == "open"
        if (unless == "unfinished" and row.state.live) or (unless == "waiting" and waits):
            return child
    if parent in store.elsewhere:
        children = list(store.children_of.get(parent, ()))
        store.forget_edges(parent)
        store.elsewhere.pop(parent, None)
        for child in children:
            depending.resolve(store, store.jobs[child], store.wall)
    return None


def outbox(store: Store, limit: int, after: int) -> list[Post]:
    posts = []
    later = [(note, tick) for note, tick in store.outbox.items() if tick > after]
    for (kind, name), tick in later[:limit]:
        row = store.jobs.get(name)
        posts.append(
            Post(
                kind=kind,
                name=name,
                tick=tick,
                job=store.notes[name] if kind == "job" else None,
                shard=store.elsewhere[name].shard if kind == "watch" and name in store.elsewhere else "",
                shards=tuple(sorted(store.watchers.get(name, ()))) if kind in ("news", "ask") else (),
                news=None if kind != "news" or row is None else _news(store, row),
            )
        )
    return posts


def delivered(store: Store, posts: Sequence[Post]) -> None:
    for one in posts:
        if store.outbox.get((one.kind, one.name)) == one.tick:
            del store.outbox[one.kind, one.name]
            if one.kind == "job":
                del store.notes[one.name]
