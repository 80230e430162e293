"""Jobs that wait for others: edges, and how the end of a parent reaches its children (R83 to R85).

Called by enqueue.py, promote.py, prune.py, edit.py and move.py, and by a transaction when it closes. A job that waits
is `scheduled` and due in the year 3000, so no other verb needs to know about it. The status of an edge is decided by
formulas.edge_status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any

from msgspec.structs import replace

from ...dependencies import DUE_AFTER_PARENTS, STATUSES, Edge, OnParentFailure
from ...errors import JobNotFound, ParentNotFound, StateConflict
from ...lifecycle import FAILURE_TEXTS, State, state_conflict
from ...records import REMEMBER_SECONDS_MIN, Enqueued, NewJob
from ..formulas import edge_status
from . import enqueue, operate, settle
from .codec import SQL, encoded, state_of
from .connection import Transaction

OutOfLine = tuple[int, str, OnParentFailure]  # status, child and its policy
OPEN, FAILED, MET = range(3)  # positions in STATUSES
_FORGET = (
    SQL["dependencies.uncount"],
    SQL["dependencies.forget_children"],
    SQL["dependencies.forget_parents"],
    SQL["dependencies.forget_dependent"],
    SQL["dependencies.forget_propagating"],
)


# ----------------------------------------------------------------------------------------------------------------------
# Storing


def store(tx: Transaction, jobs: Sequence[NewJob]) -> list[Enqueued]:
    """Store jobs of which some have parents, then their edges; ParentNotFound rolls the whole step back."""
    answers = enqueue.store(tx, [_waiting(job) if job.after else job for job in jobs])
    stands_for = {job.id: answer.id for job, answer in zip(jobs, answers, strict=True)}
    created = {answer.id for answer in answers if answer.created}
    for job, answer in zip(jobs, answers, strict=True):
        if answer.id == job.id and not answer.created:
            continue
        parents = list(dict.fromkeys(stands_for.get(parent, parent) for parent in job.after))
        states = _states_of_parents(tx, parents, job, answer) if parents else []
        if job.before is not None:
            _join(tx, job.before, job.id, created)
        if answer.created and parents:
            _link(tx, job, parents, states)
    tx.close()
    return answers


def _waiting(job: NewJob) -> NewJob:
    return replace(job, delay=None, due_at=DUE_AFTER_PARENTS)


def _states_of_parents(tx: Transaction, parents: list[str], job: NewJob, answer: Enqueued) -> list[State]:
    """Parents must have been stored before the job; so edges never form a cycle."""
    before = job.id if answer.created else None
    found = dict(tx.cursor.execute(SQL["dependencies.stored"], (encoded(parents).decode(), before)).fetchall())
    missing = next((parent for parent in parents if parent not in found), None)
    if missing is not None:
        raise ParentNotFound(missing, job.id)
    return [state_of(found[parent]) for parent in parents]


def _join(tx: Transaction, waiting: str, parent: str, created: set[str]) -> None:
    """Make a job that waits for others wait for this one, too, if this call created it (R87)."""
    row = None if waiting in created else tx.cursor.execute(SQL["dependencies.joined"], (waiting,)).fetchone()
    if row is None:
        raise JobNotFound(waiting)
    state, waits = row
    if not waits:
        raise state_conflict(waiting, "join", state)
    if parent in created:
        tx.cursor.execute(SQL["dependencies.edge"], (parent, OPEN, waiting))
        tx.cursor.execute(SQL["dependencies.count"], (1, 0, waiting))


def _link(tx: Transaction, job: NewJob, parents: list[str], states: list[State]) -> None:
    policy = job.on_parent_failure
    statuses = [STATUSES.index(edge_status("open", state, policy)) for state in states]
    many = tx.cursor.executemany
    many(SQL["dependencies.edge"], [(parent, status, job.id) for parent, status in zip(parents, statuses, strict=True)])
    tx.rules.any_edge = 1
    pending, failed = len(statuses) - statuses.count(MET), statuses.count(FAILED)
    tx.cursor.execute(SQL["dependencies.dependent"], (job.id, pending, failed, policy, job.delay, job.due_at))
    if failed or not pending:
        _resolve(tx, job.id)


# ----------------------------------------------------------------------------------------------------------------------
# Propagating


def propagate(tx: Transaction, limit: int) -> int:
    """Bring edges in line with their parents' states, the parent that changed first before the others; bounded.

    Returns how many edges and parents were processed. Parents that ended in this transaction are queued behind the
    stored ones, in memory; only those left over are stored, for the next call.
    """
    execute, done, size = tx.cursor.execute, 0, limit
    line = {parent: True for (parent,) in execute(SQL["dependencies.next"], (limit,))}
    for parent in tx.line:
        line.setdefault(parent, False)
    tx.line, through = line, list[str]()
    while done < limit and line:
        ahead = list(islice(line, size))
        states = dict(execute(SQL["dependencies.stored"], (encoded(ahead).decode(), None)).fetchall())
        succeeded = _that_succeeded(ahead, states)
        if succeeded:
            done += _meet(tx, succeeded, limit - done, through)
            size = max(1, limit - done)
            continue
        size = 1  # the end of a child may change the state of a queued parent
        [parent, *_] = ahead
        state = states.get(parent)
        edges = [] if state is None else _follow(tx, parent, state, limit - done)
        if len(edges) < limit - done:
            _passed(tx, parent, through)
        done += max(1, len(edges))
    tx.cursor.executemany(SQL["dependencies.forget_propagating"], [(parent,) for parent in through])
    left = [(parent,) for parent, is_stored in line.items() if not is_stored]
    tx.cursor.executemany(SQL["dependencies.to_propagate"], left)
    tx.line = {}
    return done


def _that_succeeded(ahead: list[str], states: Mapping[str, str]) -> list[str]:
    """The first queued parents that succeeded, up to one that has not: propagation cannot change that state."""
    return list(takewhile(lambda parent: states.get(parent) == State.SUCCEEDED, ahead))


def _passed(tx: Transaction, parent: str, through: list[str]) -> None:
    """This parent is done: remove it from the queue, in memory and in the store."""
    if tx.line.pop(parent):
        through.append(parent)


def _follow(tx: Transaction, parent: str, state: str, limit: int) -> list[OutOfLine]:
    """Update the edges of one parent, and their children, to its state. Returns the edges as they were."""
    edges = _out_of_line(tx, parent, state, limit)
    for before, child, policy in edges:
        after = STATUSES.index(edge_status(STATUSES[before], state_of(state), policy))
        _change(tx, parent, child, before, after)
    return edges


def _out_of_line(tx: Transaction, parent: str, state: str, limit: int) -> list[OutOfLine]:
    return tx.cursor.execute(SQL["dependencies.out_of_line"], (parent, state, limit)).fetchall()


def _meet(tx: Transaction, parents: list[str], limit: int, through: list[str]) -> int:
    """These parents have succeeded: their edges are met, whatever the policy. Each child is resolved once."""
    met: list[tuple[int, str, int, str]] = []
    children: dict[str, list[int]] = {}  # how many edges were met, and how many of these had failed
    done = 0
    for parent in parents:
        if done >= limit:
            break
        edges = _out_of_line(tx, parent, State.SUCCEEDED, limit - done)
        for before, child, _ in edges:
            met.append((MET, parent, before, child))
            counts = children.setdefault(child, [0, 0])
            counts[0] += 1
            counts[1] += before == FAILED
        if len(edges) < limit - done:
            _passed(tx, parent, through)
        done += max(1, len(edges))
    tx.cursor.executemany(SQL["dependencies.status"], met)
    for child, (number, failed) in children.items():
        [pending] = tx.cursor.execute(SQL["dependencies.count"], (-number, -failed, child)).fetchone()
        if failed or not pending:
            _resolve(tx, child)
    return done


def _change(tx: Transaction, parent: str, child: str, before: int, after: int) -> None:
    execute = tx.cursor.execute
    execute(SQL["dependencies.status"], (after, parent, before, child))
    execute(SQL["dependencies.count"], (-int(after == MET), int(after == FAILED) - int(before == FAILED), child))
    _resolve(tx, child)


def _resolve(tx: Transaction, child: str) -> None:
    """Put a job into the state its edges require: it waits, is due, is dead or cancelled ("parent"), or comes back.

    A job that was brought into play, ended or rescheduled otherwise is left alone.
    """
    row = tx.cursor.execute(SQL["dependencies.child"], (child,)).fetchone()
    if row is None:
        return
    seq, state, due_at, expires_at, reason, pending, failed, policy, delay, wanted = row
    if state in (State.DEAD, State.CANCELLED) and reason == "parent" and not failed:
        if not _come_back(tx, child):
            return
        state, due_at, expires_at = State.SCHEDULED, DUE_AFTER_PARENTS, None
    if state != State.SCHEDULED or due_at != DUE_AFTER_PARENTS:
        return
    if failed:
        _fail(tx, child, policy)
    elif not pending:
        due = max(tx.now, wanted) if wanted is not None else tx.now + (delay or 0.0)
        expires = None if expires_at is None else due + (expires_at - DUE_AFTER_PARENTS)
        tx.cursor.execute(SQL["dependencies.due"], (due, expires, seq))


def follow_parents(tx: Transaction, job: dict[str, Any]) -> bool:
    """Put a dead or cancelled job into the state its edges require; False if they do not decide about it."""
    row = tx.cursor.execute(SQL["dependencies.child"], (job["id"],)).fetchone()
    if row is None:
        return False
    seq, state, _, _, reason, pending, *_ = row
    if state not in (State.DEAD, State.CANCELLED) or not pending or reason in ("superseded", "discarded"):
        return False
    tx.cursor.execute(SQL["dependencies.because_of_parent"], (seq,))
    _resolve(tx, job["id"])
    return True


def _fail(tx: Transaction, child: str, policy: str) -> None:
    job = operate.job_of(tx, child)
    if policy == "cancel":
        settle.finish(tx, job, State.CANCELLED, reason="parent")
        operate.count(tx, job, "cancelled")
        return
    [parent] = tx.cursor.execute(SQL["dependencies.failed_parent"], (child,)).fetchone()
    operate.kill(tx, job, "parent", FAILURE_TEXTS["parent"] % parent)
    operate.count(tx, job, "dead")


def _come_back(tx: Transaction, child: str) -> bool:
    """Revive a job that died or was cancelled because of a parent; it waits again. False if its key is held."""
    try:
        operate.revive_waiting(tx, child, DUE_AFTER_PARENTS)
    except StateConflict:
        return False
    return True


# ----------------------------------------------------------------------------------------------------------------------
# Removing


def refuse_if_awaited(tx: Transaction, job_id: str, state: str) -> None:
    """Refuse to delete a job that others wait for: they would wait forever."""
    row = tx.cursor.execute(SQL["dependencies.waits"], (job_id,)).fetchone() if tx.rules.any_edge else None
    if row is not None:
        raise state_conflict(job_id, "delete", state, child_id=row[0])


def without_needed(tx: Transaction, seqs: list[int]) -> list[int]:
    """The jobs that may be pruned. Children that have not finished need their parents, which are kept for a while."""
    if not seqs or not tx.rules.any_edge:
        return seqs
    needed = {seq for (seq,) in tx.cursor.execute(SQL["dependencies.needed"], (encoded(seqs).decode(),)).fetchall()}
    keep = tx.now + REMEMBER_SECONDS_MIN
    tx.cursor.executemany(SQL["dependencies.keep"], [(keep, seq) for seq in sorted(needed)])
    return [seq for seq in seqs if seq not in needed]


def forget(tx: Transaction, job_ids: Iterable[str]) -> None:
    """These jobs are removed: remove their edges, on both sides."""
    if not tx.rules.any_edge:
        return
    for job_id in job_ids:
        for statement in _FORGET:
            tx.cursor.execute(statement, (job_id,))


# ----------------------------------------------------------------------------------------------------------------------
# Moving


def carry(tx: Transaction, shipped: Sequence[Edge]) -> None:
    """Store another store's edges. Those that may be out of date are propagated once the store is open."""
    execute = tx.cursor.execute
    for edge in shipped:
        status = STATUSES.index(edge.status)
        if not execute(SQL["dependencies.carried_edge"], (edge.parent, status, edge.child)).rowcount:
            continue
        wanted = (edge.on_parent_failure, edge.delay, edge.due_at)
        execute(SQL["dependencies.carried_dependent"], (edge.child, status < MET, status == FAILED, *wanted))
        if status < MET:
            execute(SQL["dependencies.to_propagate"], (edge.parent,))
